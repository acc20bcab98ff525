"""Runs the programs of docs/clients.md and docs/analysts.md exactly as printed there (`make clients`)."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from helpers.api import Api, Serve
from helpers.key_rings import KEK
from helpers.markdown_examples import blocks, files
from helpers.stage import MemoryServer
from installed import HOME, PYTHON, node, started, with_packages

from turnlog.agent.access.api_keys import create_key
from turnlog.agent.operations.analysis import export_log
from turnlog.consumers.servers.nats_server import free_port

DOG = "My dog is called Sesame."
WITH_PANDAS = "\nimport pandas\nprint(len(pandas.read_parquet('FOLDER')))\n"


def program(page: str, language: str, word: str) -> str:
    (text,) = (block.text for block in blocks(page, language, "") if word in block.text)
    return text


async def say(api: Api, text: str) -> None:
    async with api.client() as ann:
        said = await ann.post("/api/threads/pets/turns", json={"turns": [{"role": "user", "content": text}]})
        assert said.is_success, said.text


AUTH = """
from langgraph_sdk import Auth

auth = Auth()


@auth.authenticate
async def who(authorization: str) -> str:
    return authorization.removeprefix("Bearer ")
"""


@pytest.mark.parametrize("user", ["ann", "graph"], ids=["with authentication", "as the key's own user"])
async def test_langgraphs_development_server_has_a_memory(
    serve: Serve, model: MemoryServer, tmp_path: Path, user: str
) -> None:
    async with serve("agent", api_base_url=model.url, model="m") as api, api.client(user) as person:
        key = await create_key(api.runtime, "default", "graph", "user", ["read", "write", "ask", "act-as-user"])
        graph = program("docs/clients.md", "python", "StateGraph").replace("tl_…", key.key)
        (tmp_path / "graph.py").write_text(graph.replace("http://127.0.0.1:8484", api.url), "utf-8")
        (tmp_path / "who.py").write_text(AUTH, "utf-8")
        settings: dict[str, Any] = {"dependencies": ["."], "graphs": {"memory": "./graph.py:graph"}}
        settings |= {"auth": {"path": "./who.py:auth"}} if user == "ann" else {}
        async with langgraph_dev(tmp_path, settings, user) as client:
            thread = await run(client, DOG)
        turns = (await person.get(f"/api/threads/{thread}/turns")).json()["items"]
    assert [turn["content"] for turn in turns] == [DOG, f"echo: {DOG}"]


async def test_a_graph_of_the_development_server_keeps_its_state_in_turnlog(
    serve: Serve, nats_url: str, database_url: str, tmp_path: Path
) -> None:
    graph = "from langgraph.graph import START, MessagesState, StateGraph\n\n\ndef answer(state):\n"
    graph += '    return {"messages": [("ai", "heard")]}\n\n\n'
    graph += 'graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile()\n'
    (tmp_path / "graph.py").write_text(graph, "utf-8")
    (tmp_path / "saver.py").write_text(files("docs/clients.md")["saver.py"], "utf-8")
    settings = {"dependencies": ["."], "graphs": {"memory": "./graph.py:graph"}}
    servers = {"NATS_URL": nats_url, "DATABASE_URL": database_url, "TURNLOG_KEK": KEK}
    async with serve() as api:
        saver: dict[str, Any] = {"checkpointer": {"path": "./saver.py:saver"}}
        async with langgraph_dev(tmp_path, settings | saver, "ann", **servers) as client:
            thread = await run(client, DOG, user_id="ann")
        async with api.client() as ann:
            turns = (await ann.get(f"/api/threads/{thread}/turns")).json()["items"]
    assert [turn["content"] for turn in turns] == [DOG, "heard"]


@asynccontextmanager
async def langgraph_dev(
    folder: Path, settings: dict[str, Any], user: str, **more: str
) -> AsyncIterator[httpx2.AsyncClient]:
    (folder / "langgraph.json").write_text(json.dumps(settings), "utf-8")
    port, packages = free_port(), HOME / "langgraph-dev"
    words = (sys.executable, "-m", "langgraph_cli", "dev", "--no-browser", "--no-reload", "--port", port)
    environment = {"PYTHONPATH": str(packages), "PATH": os.environ["PATH"], **more}
    async with started(folder, f"http://127.0.0.1:{port}/ok", *words, **environment) as client:
        client.headers["Authorization"] = f"Bearer {user}"
        yield client


async def run(client: httpx2.AsyncClient, text: str, **configurable: str) -> str:
    """Asks the graph in a new thread, waits until the graph has ended, and returns the thread's id."""
    thread: str = (await client.post("/threads", json={})).json()["thread_id"]
    question = {"messages": [{"role": "user", "content": text}]}
    asked = {"assistant_id": "memory", "input": question, "config": {"configurable": configurable}}
    ended = await client.post(f"/threads/{thread}/runs/wait", json=asked)
    assert len(ended.json()["messages"]) == 2, ended.text
    return thread


async def test_nats_js_reads_the_events(serve: Serve, nats_url: str, tmp_path: Path) -> None:
    (with_packages(tmp_path) / "read.mjs").write_text(program("docs/clients.md", "js", "nats-io"), "utf-8")
    url = urlsplit(nats_url)
    environment = {"NATS_URL": nats_url, "NATS_USER": url.username or "", "NATS_PASSWORD": url.password or ""}
    async with serve() as api:
        await say(api, DOG)
        reader = await asyncio.create_subprocess_exec(
            node(), "read.mjs", cwd=tmp_path, env=environment, stdout=subprocess.PIPE
        )
        assert reader.stdout is not None
        try:
            assert await asyncio.wait_for(reader.stdout.readline(), 60) == b"pets user\n"
        finally:
            reader.kill()
            await reader.communicate()


async def test_duckdb_and_pandas_read_the_days_of_a_log(serve: Serve, tmp_path: Path) -> None:
    async with serve() as api:
        await say(api, DOG)
        written = await export_log(api.runtime, "default", tmp_path / "log", words=True)
    code = program("docs/analysts.md", "python", "duckdb") + WITH_PANDAS
    shown = await asyncio.to_thread(
        subprocess.run, [PYTHON, "-c", code.replace("FOLDER", str(tmp_path / "log"))], capture_output=True, text=True
    )
    assert shown.returncode == 0, shown.stderr
    assert "turnlog.turn_recorded" in shown.stdout and " user " in shown.stdout
    assert json.loads(shown.stdout.split()[-1]) == written.events > 0
