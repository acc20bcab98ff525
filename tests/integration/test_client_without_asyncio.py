"""Programs without asyncio call the same methods of `import turnlog`, through one bridge."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.client import given as given
from helpers.client import model as model
from helpers.client import served
from helpers.openai_server import OpenAIServer

import turnlog
from turnlog.agent.answering.asking import NoAnswer
from turnlog.consumers.sync_bridge import LoopClosed
from turnlog.events.errors import NotFound


def test_the_same_methods_work_without_asyncio(given: dict[str, Any]) -> None:
    with turnlog.open(**given) as memory:
        thread = memory.thread("t42", user="ann")
        thread.add("user", "My corgi is called Sesame.")
        context = thread.context("What is my dog called?", tokens=4_000)
        thread.add("assistant", "Sesame.", receipt=context.receipt)
        answer = thread.ask("Really?")
        assert list(answer) == ["echo: ", "Really?"] and answer.suggestions == ()
        assert [message.role for message in thread.messages()] == ["user", "user", "assistant", "user", "assistant"]
        memory.remember("ann", "Ann is allergic to nuts.")
        assert [remembered.content for remembered in memory.memories("ann")] == ["Ann is allergic to nuts."]
        assert [turn.thread for turn in memory.recall("corgi", user="ann", k=1).turns] == ["t42"]
        assert thread.id == "t42" and "t42" in repr(thread)
        with pytest.raises(NotFound):
            memory.thread("nobody").messages()
    with pytest.raises(LoopClosed):
        thread.messages()


async def test_a_server_is_used_without_asyncio_too(given: dict[str, Any], tmp_path: Path) -> None:
    async with served(given, tmp_path) as api:

        def work(token: str) -> list[str]:
            with turnlog.connect(api.url, key=token) as memory:
                thread = memory.thread("t42")
                thread.add("user", "My corgi is called Sesame.")
                context = thread.context("What is my dog called?", tokens=4_000)
                thread.add("assistant", "Sesame.", receipt=context.receipt)
                assert list(thread.ask("Really?")) == ["echo: ", "Really?"]
                return [message.role for message in thread.messages()]

        roles = await asyncio.to_thread(work, api.token("ann"))
    assert roles == ["user", "user", "assistant", "user", "assistant"]


def test_an_answer_that_is_abandoned_early_is_still_recorded(given: dict[str, Any], model: OpenAIServer) -> None:
    with turnlog.open(**given) as memory:
        thread = memory.thread("t")
        pieces = thread.ask("one two three")
        assert next(pieces) == "echo: "
        pieces.close()
        assert list(thread.ask("again"))
        assert {"echo: one two three", "echo: again"} <= {message.content for message in thread.messages()}


def test_an_exception_leaves_the_block_unchanged(given: dict[str, Any], model: OpenAIServer) -> None:
    model.fail(401)
    with pytest.raises(NoAnswer), turnlog.open(**given) as memory:
        list(memory.thread("t").ask("hello"))
    with pytest.raises(KeyboardInterrupt), turnlog.open(**given):
        raise KeyboardInterrupt


@pytest.mark.nightly
def test_ctrl_c_ends_the_call_that_waits_and_leaves_the_block(nats_url: str, database_url: str) -> None:
    """Nobody answers, because this process plays no agent. The signal does not wake the waiting thread, as if it came
    just before the wait."""
    program = f"""
import signal
import turnlog
with turnlog.open(nats_url={nats_url!r}, database_url={database_url!r}, roles=["projectors"]) as memory:
    thread = memory.thread("t")
    thread.add("user", "hello")
    signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGINT}})
    print("ready", flush=True)
    list(thread.ask("Is anybody there?"))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode and "KeyboardInterrupt" in error.splitlines()
