"""Commands show the owner of a conversation, and a copy keeps whose words its turns contain."""

import json
from pathlib import Path

from helpers.cli import Cli as Cli
from helpers.cli import turnlog as turnlog

from turnlog.events.contracts import TurnRecorded
from turnlog.events.log import Log


async def test_an_import_reports_turns_without_a_user_and_can_set_an_owner(
    log: Log, turnlog: Cli, tmp_path: Path
) -> None:
    file = tmp_path / "talk.jsonl"
    file.write_text('{"text": "I live in Oslo."}\n{"role": "assistant", "text": "Noted."}\n')
    lost = await turnlog("import", str(file), "--no-embed")
    assert "1 turn of nobody" in lost.err and "--user NAME" in lost.err
    assert (await turnlog("threads", "delete", "talk", "--yes")).code == 0
    mended = await turnlog("import", str(file), "--no-embed", "--user", "ann", "--thread", "again")
    assert "nobody" not in mended.err
    messages = (await turnlog("messages", "again")).out
    assert "undated" in messages and "2000" not in messages
    [thread] = (await turnlog("threads", "--json")).document
    assert (thread["thread_id"], thread["user_id"], thread["message_count"]) == ("again", "ann", 2)


async def test_opening_a_conversation_names_its_owner_and_does_not_change_it(log: Log, turnlog: Cli) -> None:
    assert "t is open and belongs to nobody" in (await turnlog("threads", "open", "t")).out
    assert "t is open and belongs to ann" in (await turnlog("threads", "open", "t", "--user", "ann")).out
    head = await log.head()
    refused = await turnlog("threads", "open", "t", "--user", "bob", "--json")
    assert refused.error == "bad-option" and "t belongs to ann" in refused.out
    assert await log.head() == head


async def test_a_copy_by_export_and_import_has_equal_turns(log: Log, turnlog: Cli, tmp_path: Path) -> None:
    file, exported = tmp_path / "talk.jsonl", tmp_path / "exported.jsonl"
    quoted = {"user": "ann", "text": "I live in Oslo.", "origin": "quoted"}
    answered = {"role": "assistant", "text": "Noted.", "tokens_in": 7, "tokens_out": 2, "latency_ms": 12.5}
    file.write_text("\n".join(map(json.dumps, (quoted, answered))))
    await turnlog("import", str(file), "--no-embed")
    await turnlog("export", "talk", "--raw", "--output", str(exported))
    await turnlog("import", str(exported), "--no-embed", "--thread", "copy")
    talk, copied = [[event.event.data async for event in log.read_thread("default", t)] for t in ("talk", "copy")]
    assert talk == copied
    assert [data.origin for data in talk if isinstance(data, TurnRecorded)] == ["quoted", "program"]
