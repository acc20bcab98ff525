"""`turnlog redact` redacts a word of a turn and shows the result of the search."""

from helpers.cli import Cli as Cli
from helpers.cli import turnlog as turnlog
from helpers.sample_events import turn

from turnlog.events.log import Log


async def test_a_word_is_shown_struck_and_no_longer_found(log: Log, turnlog: Cli) -> None:
    seq = str((await log.append(turn("My locker opens with Zebrafish-77.", user="ann"))).seq)
    await log.append(turn("Zebrafish-77, noted.", "assistant", user="ann"))
    planned = await turnlog("redact", "t", seq, "--words", "zebrafish-77", "--dry-run", "--json")
    assert planned.document["events"] == {"turn_recorded": 2}
    done = await turnlog("redact", "t", seq, "--words", "zebrafish-77", "--by", "ann", "--yes")
    assert done.code == 0 and "2 events replaced" in done.out and "none of them was found" in done.out, done
    shown = (await turnlog("messages", "t", "--json")).out
    assert "My locker opens with [redacted]." in shown and "Zebrafish" not in shown
    assert (await turnlog("redact", "t", seq, "--yes", "--json")).error == "bad-option"
    [verified] = (await turnlog("verify", "messages", "--json")).document
    assert (verified["rows"], verified["differences"]) == (2, [])
