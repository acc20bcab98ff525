"""Writes test data with the code of an earlier commit: the log and keys as `turnlog log backup` writes them, the
database as SQL, and the results of that commit's reads.

    python tests/helpers/release_data.py COMMIT

writes the commit's data to tests/golden/release.tar.xz. Recreate the data only for a change that must rebuild rows.
Until then tests/integration/test_previous_release.py proves that the current code can open the data unchanged.
"""

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from langgraph.graph import START, MessagesState, StateGraph

import turnlog
from turnlog.consumers.langgraph.checkpoint.saver import TurnlogSaver
from turnlog.consumers.langgraph.store.store import TurnlogStore

RELEASE = Path(__file__).parents[1] / "golden" / "release.tar.xz"
SECRETS = {
    "kek": "dHVybmxvZyB0dXJubG9nIHR1cm5sb2cgdHVybmxvZyE=",
    "api_secret": "the secret of the release's tokens and signed events",
}
STREAMS = {"log": "TURNLOG", "keys": "TURNLOG_KEYS"}
ERASED = "bob"
MEMORIES = "[LONG-TERM MEMORIES]"
GRAPH_THREAD = {"configurable": {"thread_id": "graph", "user_id": "dan"}}
QUIET_S = 8.0  # longer than every pause of the background roles


async def write(memory: turnlog.Memory) -> None:
    """Stores conversations, answers, memories, a graph's checkpoints and an item of a store; erases a user."""
    trip = memory.thread("trip", user="ann")
    for text in ("My corgi is called Sesame. I live in Lisbon.", "We fly to Kyoto on 3 May 2025.", "I love green tea."):
        async for _ in trip.ask(text):
            pass
    await trip.add("user", "I moved to Porto last week.")
    await trip.add("assistant", "Noted.", model="gpt-4o", tokens_in=120, tokens_out=2)
    await trip.rename("Kyoto in spring")
    await memory.remember("ann", "Ann plays the cello.")
    await memory.remember("ann", "Ann collects stamps.")
    await memory.forget("ann", "Ann collects stamps.")
    context = await memory.thread("work", user="ann").context("Who leads the project?", tokens=2_000)
    await memory.thread("work", user="ann").add("user", "Who leads the project Halibut?")
    await memory.thread("work", user="ann").add("assistant", "Mia leads it.", receipt=context.receipt)
    await memory.thread("deleted", user="ann").add("user", "This conversation is deleted.")
    await memory.thread("deleted", user="ann").delete()
    long = memory.thread("long", user="cem")
    talk = [
        ("user" if n % 2 else "assistant", f"Chapter {n}: the lighthouse keeper counts ships.") for n in range(1, 41)
    ]
    await long.extend([{"role": role, "content": text} for role, text in talk])
    await memory.thread("茶", user="李雷").add("user", "我喜欢绿茶，我住在上海。")
    await memory.thread("secret", user=ERASED).add("user", "My password hint is the name of my aunt, Walburga.")
    await memory.remember(ERASED, "Bob keeps bees.")
    await quiet(memory)
    await memory.erase(ERASED)
    async with TurnlogSaver.open(memory.runtime.settings, project=False) as saver:
        for text in ("My graph begins.", "My graph goes on."):
            await graph(saver).ainvoke({"messages": [("user", text)]}, GRAPH_THREAD)
    async with TurnlogStore.open(memory.runtime.settings, project=False) as store:
        await store.aput(("recipes", "dan"), "soup", {"text": "Leek and potato."})
    await quiet(memory)


def graph(saver: TurnlogSaver) -> Any:
    """Returns a graph that answers without a model."""

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", f"That is message {len(state['messages'])}.")]}

    return StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile(checkpointer=saver)


async def quiet(memory: turnlog.Memory) -> None:
    """Waits until the background roles have appended nothing for QUIET_S seconds."""
    log, head = memory.runtime.log, -1
    while head != (head := (await log.state()).head):
        await asyncio.sleep(QUIET_S)
    await memory.runtime.wait_until_projected()


async def reads(memory: turnlog.Memory) -> dict[str, Any]:
    """Returns the results of every kind of read without values that depend on the time of the call, such as
    importance."""
    people = ("ann", "cem", "李雷", ERASED)
    threads = {user: await memory.threads(user) for user in people}
    talks = {(user, thread.thread): memory.thread(thread.thread, user) for user in people for thread in threads[user]}
    said = {f"{user}/{thread}": await talk.messages() for (user, thread), talk in talks.items()}
    trip, long = memory.thread("trip", user="ann"), memory.thread("long", user="cem")
    async with TurnlogSaver.open(memory.runtime.settings, project=False) as saver:
        state = await graph(saver).aget_state(GRAPH_THREAD)
        past = [snapshot async for snapshot in graph(saver).aget_state_history(GRAPH_THREAD)]
    async with TurnlogStore.open(memory.runtime.settings, project=False) as store:
        item = await store.aget(("recipes", "dan"), "soup")
    recalled = await memory.recall("What is my dog called?", user="ann", k=3)
    context = (await trip.context("What is my dog called?", tokens=4_000)).messages
    about_ann = [message for message in context if MEMORIES in str(message["content"])]
    answer = {
        "threads": {user: [dataclasses.asdict(thread) for thread in some] for user, some in threads.items()},
        "messages": {name: [dataclasses.asdict(turn) for turn in turns] for name, turns in said.items()},
        "context": [message for message in context if message not in about_ann],
        "context knows the dog": ["corgi is called Sesame" in message["content"] for message in about_ann],
        "short context": (await long.context(tokens=400)).messages,
        "memories": {user: sorted(remembered.content for remembered in await memory.memories(user)) for user in people},
        "best turn": (recalled.turns[0].thread, recalled.turns[0].text),
        "best memory": recalled.memories[0].memory.content,
        "recall without vectors": recalled.degraded,
        "graph": [message.text for message in state.values["messages"]],
        "checkpoints": len(past),
        "item": item.value if item is not None else None,
    }
    return dict(json.loads(json.dumps(answer, default=_text)))


def _text(value: Any) -> str:
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else str(value)


def pack(folder: Path, packed: Path) -> None:
    with tarfile.open(packed, "w:xz", preset=9) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.add(path, str(path.relative_to(folder)), filter=_nobody)


def _nobody(about: tarfile.TarInfo) -> tarfile.TarInfo:
    about.uid = about.gid = about.mtime = 0
    about.uname = about.gname = ""
    return about


def unpack(packed: Path, folder: Path) -> None:
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")


async def make(folder: Path) -> None:
    """Writes the data on separate servers below `folder`, and the files to pack into folder/release."""
    from turnlog.consumers.servers.binaries import postgres_binaries
    from turnlog.events import backup

    out = folder / "release"
    out.mkdir()
    async with turnlog.open(folder / "home", **SECRETS) as memory:
        await write(memory)
        (out / "reads.json").write_text(json.dumps(await reads(memory), ensure_ascii=False, indent=1), "utf-8")
    async with turnlog.open(folder / "home", roles=(), **SECRETS) as memory:
        for name, stream in STREAMS.items():
            (out / name).mkdir()
            await backup.back_up(memory.runtime.log.nc, stream, out / name)
        dump = [postgres_binaries() / "pg_dump", "--no-owner", "--inserts", "--rows-per-insert=50"]
        made = subprocess.run(  # noqa: ASYNC221 - nothing else runs
            [*dump, memory.runtime.database_url], check=True, capture_output=True, text=True
        )
        (out / "database.sql").write_text(made.stdout, "utf-8")


def main(arguments: Sequence[str]) -> None:
    from helpers.repository_copy import copy_commit, environment_of_copy, importable

    with tempfile.TemporaryDirectory(prefix="turnlog-release-") as name:
        folder = Path(name)
        copy = copy_commit(arguments[0], folder / "commit")
        importable(copy)
        environment = environment_of_copy(copy) | {"TURNLOG_MODEL": ""}
        subprocess.run([sys.executable, __file__, "--make", folder], check=True, env=environment, cwd=folder)
        pack(folder / "release", RELEASE)
    print(f"{RELEASE}: {RELEASE.stat().st_size:,} bytes")


if __name__ == "__main__":
    sys.path.insert(0, os.fspath(Path(__file__).parents[1]))
    if sys.argv[1:2] == ["--make"]:
        asyncio.run(make(Path(sys.argv[2])))
    else:
        main(sys.argv[1:])
