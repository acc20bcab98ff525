"""The programs of docs/clients.md and docs/analysts.md, run as they stand there (`make clients`)."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

from helpers.api import Api, Serve
from helpers.markdown_examples import blocks
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


async def test_langgraphs_development_server_has_a_memory(serve: Serve, model: MemoryServer, tmp_path: Path) -> None:
    async with serve("agent", api_base_url=model.url, model="m") as api, api.client() as ann:
        key = await create_key(api.runtime, "default", "graph", "user", ["read", "write", "ask", "act-as-user"])
        graph = program("docs/clients.md", "python", "StateGraph").replace("tl_…", key.key)
        (tmp_path / "graph.py").write_text(graph.replace("http://127.0.0.1:8484", api.url), "utf-8")
        (tmp_path / "langgraph.json").write_text('{"dependencies": ["."], "graphs": {"memory": "./graph.py:graph"}}')
        port, packages = free_port(), HOME / "langgraph-dev"
        words = (sys.executable, "-m", "langgraph_cli", "dev", "--no-browser", "--no-reload", "--port", port)
        environment = {"PYTHONPATH": str(packages), "PATH": os.environ["PATH"]}
        async with started(tmp_path, f"http://127.0.0.1:{port}/ok", *words, **environment) as client:
            thread = (await client.post("/threads", json={})).json()["thread_id"]
            question = {"messages": [{"role": "user", "content": DOG}]}
            run = {"assistant_id": "memory", "input": question, "config": {"configurable": {"user_id": "ann"}}}
            answered = await client.post(f"/threads/{thread}/runs/wait", json=run)
        assert answered.json()["messages"][-1]["content"] == f"echo: {DOG}", answered.text
        turns = (await ann.get(f"/api/threads/{thread}/turns")).json()["items"]
    assert [turn["content"] for turn in turns] == [DOG, f"echo: {DOG}"]


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
