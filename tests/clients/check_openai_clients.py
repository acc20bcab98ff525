"""Runs third-party clients of OpenAI's API with turnlog's base URL and key (`make clients`)."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.api import Api, Serve
from helpers.openai_bodies import Step
from helpers.openai_server import Kind
from helpers.openai_validation import validate_openai_messages
from helpers.servers import eventually
from helpers.stage import MemoryServer
from installed import PYTHON, node, with_packages

from turnlog.agent.context.plain_text import content_text

PROGRAMS = Path(__file__).parent / "programs"
CLIENTS = ["use_langchain.py", "use_agents.py", "use_pydantic_ai.py", "use_openai.mjs", "use_ai_sdk.mjs"]
DOG, CAT = "My dog is called Sesame.", "And my cat is called Poppy."
WEATHER, QUESTION = "What is the weather in Ulm?", "What is my dog called?"


class ToolCallingServer(MemoryServer):
    """Calls the tool `weather` if the client sent it and the last message is the user's; otherwise echoes."""

    def next_step(self, kind: Kind, body: dict[str, Any]) -> Step:
        if kind == "chat" and body.get("tools") and body["messages"][-1]["role"] == "user":
            return Step(tool_calls=[("weather", {"city": "Ulm"})])
        return super().next_step(kind, body)


@pytest.fixture
def model() -> Iterator[ToolCallingServer]:
    with ToolCallingServer() as server:
        yield server


class Program:
    """Runs one of the programs in `programs` for Ann. wire: the API to use, "chat" or "responses"."""

    def __init__(self, api: Api, folder: Path, name: str, wire: str) -> None:
        path = shutil.copy(PROGRAMS / name, with_packages(folder))
        self._command = [str(PYTHON if name.endswith(".py") else node()), path, wire]
        self._environment = {"TURNLOG_URL": f"{api.url}/v1", "TURNLOG_KEY": api.token("ann"), "HOME": str(folder)}
        self._api = api

    async def talk(self) -> dict[str, Any]:
        """Talks and waits until the memory exists. Returns {heard, pieces, called, after_tool, tokens}."""
        report = await self._run("talk")
        async with self._api.client("ann") as ann:

            async def remembered() -> bool:
                return "Sesame" in (await ann.get("/api/memories")).text

            await eventually(remembered)
        return report

    async def recall(self) -> str:
        """Returns the answer to QUESTION in a new conversation."""
        return str((await self._run("recall"))["recalled"])

    async def _run(self, part: str) -> dict[str, Any]:
        done = await asyncio.to_thread(
            subprocess.run, [*self._command, part], env=self._environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report


async def conversations(api: Api) -> dict[str, list[tuple[str, str]]]:
    """Returns (role, text) of each turn of Ann's conversations, keyed by a conversation's first text."""
    async with api.client("ann") as ann:
        threads = [thread["thread"] for thread in (await ann.get("/api/threads")).json()["items"]]
        pages = [(await ann.get(f"/api/threads/{thread}/turns")).json()["items"] for thread in threads]
    texts = [[(turn["role"], content_text(turn["content"])) for turn in turns] for turns in pages]
    assert len(texts) == len({turns[0] for turns in texts}), "a conversation was split in two"
    return {turns[0][1]: turns for turns in texts}


@pytest.mark.parametrize("wire", ["chat", "responses"])
@pytest.mark.parametrize("name", CLIENTS)
async def test_a_client_talks_to_the_model_through_turnlog(
    serve: Serve, model: ToolCallingServer, name: str, wire: str, tmp_path: Path
) -> None:
    async with serve("reactors", api_base_url=model.url, model="m") as api:
        program = Program(api, tmp_path, name, wire)
        report = await program.talk()
        assert (report["heard"], report["tokens"]) == (f"echo: {DOG}", 6)
        assert "".join(report["pieces"]) == f"echo: {CAT}" and len(report["pieces"]) > 1
        assert (report["called"], report["after_tool"]) == (["Ulm"], f"echo: {WEATHER}")
        kept = await conversations(api)
        assert [text for _, text in kept[DOG]] == [DOG, f"echo: {DOG}", CAT, f"echo: {CAT}"]
        assert [role for role, _ in kept[WEATHER]] == ["user", "assistant", "tool", "assistant"]
        assert kept[WEATHER][2][1] == "rain"
        assert await program.recall() == f"echo: {QUESTION}"
        asked = [body["messages"] for body in model.asked("answer")]
        assert not [problem for messages in asked for problem in validate_openai_messages(messages)]
        assert "Sesame" in str(asked[-1])


@pytest.mark.parametrize("wire", ["chat", "responses"])
@pytest.mark.parametrize("name", CLIENTS)
async def test_a_client_is_answered_without_a_model(serve: Serve, name: str, wire: str, tmp_path: Path) -> None:
    async with serve("reactors") as api:
        program = Program(api, tmp_path, name, wire)
        report = await program.talk()
        assert report["called"] == [] and report["heard"] and report["pieces"]
        assert "Sesame" in await program.recall()
        kept = await conversations(api)
        assert kept[DOG][:3] == [("user", DOG), ("assistant", report["heard"]), ("user", CAT)]
        assert {question: len(turns) for question, turns in kept.items()} == {DOG: 4, WEATHER: 2, QUESTION: 2}
