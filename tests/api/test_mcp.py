"""Tests MCP with the official client, over HTTP with a token and over stdio."""

import asyncio
import logging
import sys
from importlib.metadata import version
from pathlib import Path

import httpx2
import psutil
import pytest
from helpers.api import Serve
from helpers.callers import call, mcp_of
from helpers.cli_process import environment
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters

from turnlog.consumers.api.mcp.tools import MOST_MEMORIES, make_server

pytestmark = pytest.mark.slow

TOOLS = {"remember", "recall", "context", "threads", "memories", "forget"}

# Just before 20 November begins in Shanghai, and just after it begins in Shanghai, Berlin and New York.
TIMES = ("2024-11-19T15:30:00Z", "2024-11-19T16:30:00Z", "2024-11-19T23:30:00Z", "2024-11-20T05:30:00Z")


async def test_a_memory_is_recalled_and_forgotten_only_for_its_user(serve: Serve) -> None:
    async with serve() as api, mcp_of(api) as ann, mcp_of(api, "bob") as bob, api.client() as http:
        listed = (await ann.list_tools()).tools
        assert ann.server_info.version == version("turnlog")
        assert {tool.name for tool in listed} == TOOLS
        assert not {"tenant", "user"} & {name for tool in listed for name in tool.input_schema["properties"]}
        memory = await call(ann, "remember", text="Ann likes tea.")
        assert (await call(ann, "remember", text="Ann likes tea."))["memory_id"] == memory["memory_id"]
        assert [memory["content"] for memory in (await call(ann, "recall", query="tea"))["memories"]] == [
            "Ann likes tea."
        ]
        assert (await call(bob, "recall", query="tea"))["memories"] == []
        vague = await call(ann, "recall", query="a hot drink")
        assert vague["memories"] or vague["note"].startswith("words, entities and dates only")
        assert len((await call(ann, "memories"))["memories"]) == 1
        for wanted in (False, True):
            await http.patch("/api/preferences", json={"set": {"enable_memory": wanted}})
            assert bool((await call(ann, "recall", query="tea"))["memories"]) is wanted, "the client is a model"
        refused = await bob.call_tool("forget", {"memory_id": memory["memory_id"]})
        assert refused.is_error and "not-found" in refused.content[0].text
        await call(ann, "forget", memory_id=memory["memory_id"])
        assert (await call(ann, "recall", query="tea"))["memories"] == []
        await http.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "My corgi is Sesame."}]})
        sure, unsure = [await call(ann, "recall", query=query) for query in ("My corgi", "Which university?")]
        assert (sure["note"], sure["confidence"] > 0.5) == (None, True)
        assert unsure["note"] and unsure["confidence"] < 0.5
        assert [thread["thread_id"] for thread in (await call(ann, "threads"))["threads"]] == ["t"]
        assert (await call(ann, "threads", query="nothing"))["threads"] == []
        seen = (await call(ann, "context", thread_id="t"))["messages"]
        assert "My corgi is Sesame." in [turn["content"] for turn in seen]
        assert (await bob.call_tool("context", {"thread_id": "t"})).is_error


async def test_pages_of_memories_leave_nothing_out_while_others_are_forgotten(serve: Serve) -> None:
    async with serve() as api, mcp_of(api) as ann:
        said = [f"Ann has read book {n}." for n in range(MOST_MEMORIES + 2)]
        ids = {text: (await call(ann, "remember", text=text))["memory_id"] for text in said}
        first = await call(ann, "memories")
        assert {memory["content"] for memory in first["memories"]} == set(said[2:])
        await call(ann, "forget", memory_id=ids[said[-1]])
        second = await call(ann, "memories", cursor=first["next"])
        assert {memory["content"] for memory in second["memories"]} == set(said[:2])
        assert second["next"] is None


async def test_scopes_tokens_and_arguments_are_checked(serve: Serve) -> None:
    async with serve() as api, mcp_of(api, scopes=["read"]) as reader:
        assert "forbidden" in (await reader.call_tool("remember", {"text": "x"})).content[0].text
        assert (await reader.call_tool("recall", {"query": "x", "k": 0})).is_error
        async with httpx2.AsyncClient(timeout=60) as http:
            refused = await http.post(f"{api.url}/mcp", json={})
            assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")


async def test_empty_arguments_are_accepted_and_refusals_are_written_for_a_model(serve: Serve) -> None:
    async with serve() as api, mcp_of(api, path="/mcp/") as ann, api.client() as http:
        await http.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "My corgi is Sesame."}]})
        for empty in ("", " ", None):
            recalled = await call(
                ann, "recall", query="corgi", thread_id=empty, before=empty, after="2020-01-31", k=empty
            )
            assert [turn["text"] for turn in recalled["turns"]] == ["My corgi is Sesame."]
        assert (await call(ann, "recall", query="corgi", before="2020-01-31"))["turns"] == []
        assert (await call(ann, "recall", query="corgi", before="2020-01-31T10:00"))["turns"] == []
        assert (await call(ann, "memories", as_of="2020-01-31", type="", cursor=""))["memories"] == []
        for tool, arguments, words in (
            ("recall", {"query": "corgi", "user": "bob"}, "there is no argument 'user'. It takes query, k (optional)"),
            ("recall", {"query": "corgi", "k": 0}, "k: Input should be greater than or equal to 1"),
            ("recall", {"query": "corgi", "after": "yesterday"}, "after: Input should be a valid datetime"),
            ("recall", {}, "query: Field required"),
            ("forget", {"memory_id": "it"}, "memory_id: Input should be a valid UUID"),
        ):
            refused = await ann.call_tool(tool, arguments)
            said = refused.content[0].text
            assert refused.is_error and said.startswith(f"{tool} was not run: ") and words in said
            assert "pydantic" not in said and "http" not in said


async def test_a_date_without_a_time_begins_on_the_persons_clock(serve: Serve) -> None:
    async with serve(timezone="America/New_York") as api, api.client() as http:
        said = [{"role": "user", "content": f"A corgi at {at}.", "time": at} for at in TIMES]
        await http.post("/api/threads/t/turns", json={"turns": said})

        async def after_midnight(zone: str = "") -> set[str]:
            async with mcp_of(api, zone=zone) as ann:
                turns = (await call(ann, "recall", query="corgi", after="2024-11-20", k=10))["turns"]
            return {turn["text"].removeprefix("A corgi at ").removesuffix(".") for turn in turns}

        assert await after_midnight() == set(TIMES[3:])
        await http.patch("/api/preferences", json={"set": {"timezone": "Asia/Shanghai"}})
        assert await after_midnight() == set(TIMES[1:])
        assert await after_midnight(zone="Europe/Berlin") == set(TIMES[2:])
        assert await after_midnight(zone="UTC") == set(TIMES[1:]), "UTC does not tell the person's clock"
        async with mcp_of(api) as ann:
            profile = await ann.read_resource("turnlog://profile/2024-11-20")
            assert "2024-11-20T00:00:00+08:00" in profile.contents[0].text


@pytest.mark.timeout(120)
async def test_a_client_on_stdio_has_the_same_tools_and_ends_the_server_by_a_signal(
    nats_url: str, database_url: str, tmp_path: Path
) -> None:
    servers = {"NATS_URL": nats_url, "DATABASE_URL": database_url}
    # The client writes only complete characters, so sed puts a lone surrogate on the wire.
    program = f"sed --unbuffered 's/HALF/\\\\ud83d/' | {sys.executable} -m turnlog.consumers.cli mcp stdio --user ann"
    process = StdioServerParameters(command="bash", args=["-c", program], env=environment(tmp_path, **servers))
    async with Client(process) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS
        await call(client, "remember", text="Ann likes HALF tea.")
        memories = (await call(client, "recall", query="tea"))["memories"]
        assert [memory["content"] for memory in memories] == ["Ann likes \ufffd tea."]
        (server,) = (child for child in psutil.Process().children(recursive=True) if child.cmdline()[1:2] == ["-m"])
        server.terminate()
        gone, _ = await asyncio.to_thread(psutil.wait_procs, [server], 60)
        assert gone, "the server did not end while its standard input was open"


def test_a_program_without_logging_keeps_its_root_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    before = root.level
    make_server()
    assert (root.handlers, root.level) == ([], before)
