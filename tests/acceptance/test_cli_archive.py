"""Commands archive and restore conversations and read archived ones."""

import json
from pathlib import Path

from helpers.sample_events import turn
from test_cli_memories import Cli
from test_cli_memories import turnlog as turnlog

from turnlog.events.log import Log


async def test_cold_conversations_are_archived_marked_and_come_back_when_they_are_read(
    log: Log, turnlog: Cli, tmp_path: Path
) -> None:
    await log.append_many([turn("我喝茶", thread=thread, user="ann") for thread in ("茶 1", "t")])
    shown = (await turnlog("archive", "--older-than", "30", "--dry-run")).out
    assert "茶 1" in shown and shown.endswith("2 would be archived\n")
    assert not (tmp_path / "archive").exists()
    done = (await turnlog("archive", "--older-than", "30", "--json")).document
    assert done == {"archived": 2, "left_out": 0, "errors": 0, "folder": str(tmp_path / "archive")}
    assert {row["thread_id"]: row["archived"] for row in (await turnlog("threads", "--json")).document} == {
        "茶 1": True,
        "t": True,
    }
    assert [row["content"] for row in (await turnlog("messages", "茶 1", "--json")).document] == ["我喝茶"]
    assert json.loads((await turnlog("export", "t", "--raw")).out)["content"] == "我喝茶"
    assert "archived" not in (await turnlog("threads")).out
    assert (await turnlog("restore", "t")).out == "t is not in the archive\n"


async def test_a_conversation_is_brought_back_by_hand_and_bad_input_says_what_is_wrong(log: Log, turnlog: Cli) -> None:
    await log.append(turn("hello", thread="t", user="ann"))
    assert (await turnlog("archive", "--json")).error == "no-age"
    assert (await turnlog("restore", "nobody", "--json")).error == "not-found"
    assert (await turnlog("archive", "--older-than", "1")).out.startswith("archived 1 to ")
    assert (await turnlog("restore", "t", "--json")).document == {"thread": "t", "restored": True}
    context = (await turnlog("context", "t", "--query", "hi", "--json")).document
    assert "hello" in json.dumps(context)
