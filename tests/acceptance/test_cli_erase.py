"""`turnlog erase` refuses invalid input before it erases anything."""

import json
from pathlib import Path

from helpers.cli import Cli as Cli
from helpers.cli import turnlog as turnlog
from helpers.sample_events import turn

from turnlog.events.log import Log


async def test_a_malformed_file_of_strings_is_refused_before_anything_is_erased(
    log: Log, turnlog: Cli, tmp_path: Path
) -> None:
    await turnlog("remember", "I like tea", "--user", "ann")
    head = await log.head()
    binary, empty = tmp_path / "binary", tmp_path / "empty"
    binary.write_bytes(b"\x1f\x8b\x08 no text")
    empty.write_text("\n \n")
    for path, why in {
        tmp_path / "nope": "cannot be read: No such file",
        tmp_path: "cannot be read: Is a directory",
        binary: "is not text in UTF-8",
        empty: "contains no string",
    }.items():
        said = await turnlog("erase", "--user", "ann", "--strings", str(path), "--yes", "--json")
        assert said.error == "bad-option"
        assert f"--strings {path} {why}" in said.out and "nothing was erased" in said.out
    assert await log.head() == head
    assert len((await turnlog("memories", "--user", "ann", "--json")).document) == 1


async def test_erase_masks_found_words_and_reports_them_until_a_new_search(
    log: Log, turnlog: Cli, tmp_path: Path
) -> None:
    await turnlog("remember", "I like tea", "--user", "ann")
    await turnlog("remember", "Ann has tea from Assam", "--user", "bob")
    strings = tmp_path / "strings"
    strings.write_text("\ufefftea from Assam\n", "utf-8")  # after a byte order mark
    first = await turnlog("erase", "--user", "ann", "--strings", str(strings), "--yes")
    assert first.code == 1
    assert "table turnlog.memories: te…m (14 characters)" in first.out and "--strings FILE" in first.out
    second = await turnlog("erase", "--user", "ann", "--yes", "--json")
    told = json.loads(second.out)
    assert (second.code, told["hits"], told["left"]) == (1, 0, {})
    assert "table turnlog.memories" in told["found_in"] and "Assam" not in second.out
    third = await turnlog("erase", "--user", "ann", "--yes")
    assert third.code == 1 and "an earlier run FOUND words" in third.out
    assert "none of them was found" not in third.out
    await turnlog("erase", "--user", "bob", "--yes")
    fourth = await turnlog("erase", "--user", "ann", "--strings", str(strings), "--yes")
    assert (fourth.code, "none of them was found" in fourth.out) == (0, True)
    assert (await turnlog("erase", "--user", "ann", "--yes")).code == 0


async def test_the_plan_and_the_result_name_the_threads_that_go_and_those_that_are_kept(log: Log, turnlog: Cli) -> None:
    await log.append_many([turn("Hello.", thread=f"talk-{number}", user="ann") for number in range(7)])
    await log.append_many([turn(f"Hello from {user}.", thread="room", user=user) for user in ("ann", "bob", "cem")])
    own = ", ".join(f"talk-{number}" for number in range(5))
    kept = "shared with others, kept without the words of this person: room"
    plan = await turnlog("erase", "--user", "ann", "--dry-run")
    assert f"erased whole: {own} and 2 more (--dry-run --json names all)\n{kept}\n" in plan.out
    document = (await turnlog("erase", "--user", "ann", "--dry-run", "--json")).document
    assert document["threads"] == [f"talk-{number}" for number in range(7)] and document["shared_threads"] == ["room"]
    done = await turnlog("erase", "--user", "ann", typed="y\n")
    assert kept in done.err and kept in done.out
    assert (await turnlog("erase", "--user", "bob", "--yes", "--json")).document["shared_threads"] == ["room"]
