"""`turnlog chat` at a terminal and in a pipe."""

import asyncio
import fcntl
import json
import os
import pty
import select
import subprocess
import termios
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from helpers.cli import Cli as Cli
from helpers.cli import turnlog as turnlog
from helpers.cli_process import COMMAND, environment
from helpers.memory_events import event, memory, memory_id, recorded
from helpers.preloaded_cli import run_command

from turnlog.agent.answering.asking import Answered
from turnlog.agent.settings import Settings
from turnlog.consumers.cli.chatting import answered_elsewhere
from turnlog.events.contracts import MemoryConflictRaised
from turnlog.events.log import Log
from turnlog.projectors.models.conversation.speech import OFFLINE_MODEL

pytestmark = pytest.mark.slow

# Like a shell, it waits for the command and then reads further input.
SHELL = 'trap : INT; "$@"; echo "ended with $?"; read line; echo "then $line"'
PATIENCE_S = 180.0


def test_an_answer_by_a_process_without_the_language_model_is_reported() -> None:
    quoted, whole = (Answered("t", UUID(int=1), UUID(int=2), 2, model, "x") for model in (OFFLINE_MODEL, "gpt-4o"))
    ours = Settings(api_key="any")
    assert "restart `turnlog up`" in (answered_elsewhere(ours, quoted) or "")
    assert (answered_elsewhere(ours, whole), answered_elsewhere(Settings(api_key=None, api_base_url=None), quoted)) == (
        None,
        None,
    )


def own_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A process at a separate terminal, and its output."""

    def __init__(self, *command: str, env: dict[str, str]) -> None:
        self.keyboard, screen = pty.openpty()
        self.shown = b""
        self.process = subprocess.Popen(
            command,
            stdin=screen,
            stdout=screen,
            stderr=screen,
            env=env,
            start_new_session=True,
            preexec_fn=own_terminal,
        )
        os.close(screen)

    def until(self, text: str) -> None:
        while text.encode() not in self.shown:
            ready, _, _ = select.select([self.keyboard], [], [], PATIENCE_S)
            assert ready, f"{text!r} is not in {self.shown!r}"
            self.shown += os.read(self.keyboard, 1 << 16)

    def type(self, text: str) -> None:
        os.write(self.keyboard, text.encode())

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.keyboard)


def test_ctrl_c_at_the_prompt_ends_the_chat_and_leaves_the_next_line_to_the_shell(
    nats_url: str, database_url: str, tmp_path: Path
) -> None:
    env = environment(tmp_path, NATS_URL=nats_url, DATABASE_URL=database_url)
    terminal = Terminal("sh", "-c", SHELL, "sh", *COMMAND, "chat", "t", env=env)
    try:
        terminal.until("> ")
        terminal.type("\x03next\n")
        terminal.until("ended with 130")
        terminal.until("then next")
    finally:
        terminal.end()


async def test_a_chat_that_has_to_wait_says_for_what(nats_url: str, database_url: str, tmp_path: Path) -> None:
    env = environment(tmp_path, NATS_URL=nats_url, DATABASE_URL=database_url)
    async with await psycopg.AsyncConnection.connect(database_url) as conn:
        await conn.execute("LOCK TABLE turnlog.messages")
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "chat", "-m", "hello", env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            assert process.stderr is not None
            said = ""
            while "waiting for the answer …" not in said:
                line = await asyncio.wait_for(process.stderr.readline(), PATIENCE_S)
                assert line, "the chat ended"
                said += line.decode()
            await conn.rollback()
            out, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert out.decode().startswith("[offline")


async def test_every_line_of_a_file_or_a_terminal_is_a_message(
    turnlog: Cli, nats_url: str, database_url: str, tmp_path: Path
) -> None:
    typed = await turnlog("chat", "typed", "--json", typed="one\n\ntwo\n\x04")
    assert [line["thread"] for line in map(json.loads, typed.out.splitlines())] == ["typed", "typed"]
    file = tmp_path / "lines"
    file.write_text("one\n\n\u4e8c")
    env = environment(tmp_path, NATS_URL=nats_url, DATABASE_URL=database_url)
    read = run_command("chat", "read", "--json", environment=env, stdin=str(file))
    assert [line["thread"] for line in map(json.loads, read.out.splitlines())] == ["read", "read"]
    exported = (await turnlog("export", "read", "--json")).document
    assert [turn["content"] for turn in exported if turn["role"] == "user"] == ["one", "\u4e8c"]


async def test_a_chat_labels_its_conversation_once_and_keeps_a_persons_label(turnlog: Cli) -> None:
    await turnlog("chat", "dogs", "--user", "ann", "-m", "Which dog food is best?")
    await turnlog("chat", "named", "--user", "ann", "-m", "下周去北京")
    await turnlog("threads", "rename", "named", "北京")
    for thread in ("dogs", "named"):
        await turnlog("chat", thread, "--user", "ann", "-m", "And cats?")
    listed = (await turnlog("threads", "--json")).document
    assert {row["thread_id"]: row["label"] for row in listed} == {"dogs": "Which dog food is best?", "named": "北京"}
    assert {line["label"] for line in (await turnlog("export", "named", "--json")).document} == {"北京"}


async def test_a_conversation_that_no_chat_began_is_labelled_by_command(turnlog: Cli, tmp_path: Path) -> None:
    file = tmp_path / "turns.jsonl"
    file.write_text(json.dumps({"thread": "t", "role": "user", "text": "Which dog food is best?"}) + "\n")
    await turnlog("import", str(file), "--no-embed")
    assert (await turnlog("threads", "label", "t")).out == "t is named Which dog food is best?\n"
    assert (await turnlog("threads", "label", "t", "--json")).document["label"] == "Which dog food is best?"
    assert (await turnlog("threads", "label", "nope", "--json")).error == "not-found"


@pytest.mark.parametrize(
    ("question", "said", "holds"),
    [
        ("Remembered so far: “I live in Berlin”. New: “I live in Rome”. Which one is right?", "The new one.", "new"),
        ("之前记录的是“我住在柏林”，现在又说“我住在罗马”。以哪个为准？", "旧的", "old"),
    ],
)
async def test_a_contradiction_is_put_to_the_user_once_and_their_next_line_decides_it(
    turnlog: Cli, log: Log, question: str, said: str, holds: str
) -> None:
    raised = MemoryConflictRaised(
        conflict_id=UUID(int=5),
        memory=memory("I live in Rome", strategy="ASK_USER"),
        against=(memory_id("I live in Berlin"),),
        question=question,
    )
    await log.append_many([recorded("I live in Berlin"), event(raised)])
    chat = await turnlog("chat", "t", "--user", "ann", typed=f"Hello\n{said}\nHow are you?\n\x04")
    assert "".join(chat.err.split()).count("".join(question.split())) == 1
    [conflict] = (await turnlog("conflicts", "--user", "ann", "--all", "--json")).document
    assert conflict["answer"] == holds
    exported = (await turnlog("export", "t", "--json")).document
    assert [turn["content"] for turn in exported if turn["role"] == "user"] == ["Hello", "How are you?"]


async def test_a_line_that_decides_nothing_goes_to_the_model(turnlog: Cli) -> None:
    await turnlog("chat", "t", "--user", "ann", typed="old\n\x04")
    exported = (await turnlog("export", "t", "--json")).document
    assert [turn["content"] for turn in exported if turn["role"] == "user"] == ["old"]
