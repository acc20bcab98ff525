"""Commands for long-term memory: memories, remember, edit, rate, revert, forget, conflicts, answer."""

import json
import shlex
from typing import Any

import pytest
from helpers.cli import Cli as Cli
from helpers.cli import ManyCommands
from helpers.cli import turnlog as turnlog
from helpers.cli import turnlog_in_one_process as turnlog_in_one_process
from helpers.dated_claims import claim, day
from helpers.sample_events import event

from turnlog.agent.memory.deciding.conflicts import decide
from turnlog.agent.memory.deciding.memory_state import MemoryState
from turnlog.agent.memory.deciding.writing import Place
from turnlog.events.contracts import EntitiesFound, Entity, EventData, Memory
from turnlog.events.log import Log
from turnlog.events.subjects import memory_thread

pytestmark = pytest.mark.slow


async def tell(log: Log, *memories: Memory, user: str = "ann") -> None:
    """Appends memories like those of a conversation."""
    known, events = MemoryState(Place("default", user), [], day(99)), list[EventData]()
    for memory in memories:
        decided = decide(memory, known.matching(memory))
        known.apply(decided)
        events += decided
    await log.append_many([event(data, thread=memory_thread(user), user=user) for data in events])


def gpa(value: str, on: float, **fields: Any) -> Memory:
    return claim(f"GPA is {value}", on, value=value, dedupe_key="gpa", **fields)


async def test_memories_are_listed_with_score_validity_and_quote(log: Log, turnlog: Cli) -> None:
    await tell(log, gpa("3.8", 0), claim("我喜欢喝茶", 1, kind="PREFERENCE"), claim("I have two cats", 2))
    text = (await turnlog("memories", "--user", "ann")).out
    assert "我喜欢喝茶" in text
    assert "“GPA is 3.8”  chat #1, 2026-01-01 12:00" in text
    rows = (await turnlog("memories", "--user", "ann", "--json")).document
    assert [row["score"]["total"] for row in rows] == sorted((row["score"]["total"] for row in rows), reverse=True)
    assert {row["content"]: row["sources"][0]["quote"] for row in rows} == {
        words: words for words in ("GPA is 3.8", "我喜欢喝茶", "I have two cats")
    }
    [only] = (await turnlog("memories", "--user", "ann", "--kind", "preference", "--json")).document
    assert only["content"] == "我喜欢喝茶"


async def test_words_of_several_memories_forget_none_and_list_them(log: Log, turnlog: Cli) -> None:
    await tell(log, claim("I like tea", 1, kind="PREFERENCE"), claim("I sell tea", 2))
    refused = await turnlog("forget", "tea", "--user", "ann", "--yes", "--json")
    assert (refused.code, refused.error) == (1, "ambiguous-memory")
    listed = json.loads(refused.out)["error"]["candidates"]
    assert sorted(memory["content"] for memory in listed) == ["I like tea", "I sell tea"]
    assert len((await turnlog("memories", "--user", "ann", "--json")).document) == 2


async def test_memories_valid_at_a_time_are_shown_and_their_later_fate_with_all(log: Log, turnlog: Cli) -> None:
    await tell(log, gpa("3.8", 0), gpa("3.9", 9))

    async def contents(*words: str) -> list[str]:
        rows = (await turnlog("memories", "-u", "ann", "--json", *words)).document
        return sorted(row["content"] for row in rows)

    assert await contents("--as-of", "2026-01-04") == ["GPA is 3.8"]
    assert await contents("--as-of", "2026-01-10T11:59:00Z") == ["GPA is 3.8"]
    assert await contents("--as-of", "2026-01-10") == ["GPA is 3.9"], "a date is its end"
    assert await contents("--all") == ["GPA is 3.8", "GPA is 3.9"]
    assert (await turnlog("memories", "-u", "ann", "--as-of", "some day", "--json")).error == "invalid-time"


async def test_a_history_shows_every_version_and_its_source(log: Log, turnlog: Cli) -> None:
    old, new = gpa("3.8", 0), gpa("3.9", 9)
    await tell(log, old, new)
    shown = (await turnlog("memories", "show", str(new.id))).out
    assert shown.splitlines() == [
        "  FACT        GPA is 3.8",
        f"    {old.id}  superseded, 2026-01-01 12:00 until 2026-01-10 12:00",
        f"    replaced by {new.id}",
        "    “GPA is 3.8”  chat #1, 2026-01-01 12:00",
        "→ FACT        GPA is 3.9",
        f"    {new.id}  valid since 2026-01-10 12:00",
        "    “GPA is 3.9”  chat #1, 2026-01-10 12:00",
    ]
    document = (await turnlog("memories", "show", "gpa", "--user", "ann", "--json")).document
    assert [version["status"] for version in document["history"]] == ["closed", "valid"]
    assert document["memory"] == str(new.id)


async def test_the_rules_parse_manual_memories_and_detect_contradictions(log: Log, turnlog: Cli) -> None:
    first = (await turnlog("remember", "--user", "ann", "我的GPA是3.8", "--json")).document
    again = (await turnlog("remember", "--user", "ann", "我的GPA是3.8", "--json")).document
    assert (first["what"], again["what"], again["memory_id"]) == ("recorded", "known", first["memory_id"])
    await turnlog("remember", "--user", "ann", "我的GPA是3.9")
    [row] = (await turnlog("memories", "--user", "ann", "--json")).document
    assert (row["content"], row["origin"], row["value"]) == ("我的GPA是3.9", "user", "3.90")
    more = (await turnlog("remember", "--user", "ann", "我的GPA是3.9，备用钥匙在花盆下", "--json")).document
    assert (more["what"], len((await turnlog("memories", "--user", "ann", "--json")).document)) == ("recorded", 2)
    text = (await turnlog("remember", "--user", "ann", "The spare key is under the blue pot")).out
    assert text.startswith("remembered  ")
    assert (await turnlog("remember", "--user", "ann", "x", "--kind", "WISH")).code == 2


async def test_memories_cannot_send_control_sequences_to_the_terminal(log: Log, turnlog: Cli) -> None:
    await turnlog("remember", "--user", "ann", "the \x1b[31mred\x07 door\r")
    assert "the \ufffd[31mred door" in (await turnlog("memories", "--user", "ann")).out


async def test_a_revert_undoes_an_edit(log: Log, turnlog: Cli) -> None:
    await tell(log, claim("I have two cats", 0))
    edited = (await turnlog("edit", "cats", "I have three cats", "--user", "ann", "--json")).document
    [row] = (await turnlog("memories", "--user", "ann", "--json")).document
    assert (row["id"], row["content"]) == (edited["memory"], "I have three cats")
    no = await turnlog("revert", "two cats", "--user", "ann", typed="n\n")
    assert (no.code, no.out) == (1, "")
    assert no.err.endswith("error: the answer was no, so nothing was changed [not-confirmed]\n")
    yes = await turnlog("revert", "two cats", "--user", "ann", typed="y\n")
    assert yes.code == 0, yes.err
    assert yes.err == "Let “I have two cats” be valid again, and end what replaced it? [y/N]: "
    assert yes.out == "“I have two cats” holds again\n"
    [row] = (await turnlog("memories", "--user", "ann", "--json")).document
    assert (row["id"], row["content"]) == (edited["replaced"], "I have two cats")
    assert (await turnlog("revert", "two cats", "--user", "ann", "--yes", "--json")).error == "nothing-to-revert"


async def test_a_rating_changes_the_importance(log: Log, turnlog: Cli) -> None:
    await tell(log, claim("I have two cats", 0))
    await turnlog("rate", "cats", "0.3", "--user", "ann")
    [row] = (await turnlog("memories", "--user", "ann", "--json")).document
    assert row["importance"] == 0.3
    assert (await turnlog("rate", "cats", "3", "--user", "ann", "--json")).error == "invalid-memory"


async def test_a_memory_is_archived_by_hand_with_its_reason(log: Log, turnlog: Cli) -> None:
    await tell(log, claim("I have two cats", 0))
    made = await turnlog("memories", "archive", "cats", "--user", "ann", "--reason", "they live with Mia now")
    assert made.out == "“I have two cats” is archived: they live with Mia now\n"
    assert (await turnlog("memories", "--user", "ann", "--json")).document == []
    assert "archived (they live with Mia now) since" in (await turnlog("memories", "-u", "ann", "--all")).out
    assert (
        await turnlog("memories", "archive", "cats", "-u", "ann", "--reason", " ", "--json")
    ).error == "invalid-memory"


async def test_a_forgotten_memory_leaves_no_words(log: Log, turnlog: Cli) -> None:
    await tell(log, claim("I have two cats", 0), claim("I like tea", 1))
    assert (await turnlog("forget", "cats", "--user", "ann", typed="\x04")).code == 1, "no answer is a no"
    assert (await turnlog("forget", "cats", "--user", "ann", "--yes")).out.splitlines() == [
        "forgot 1 memory",
        "what was said stays, and reaches the model with the history, recall and exports: chat #1",
        "`turnlog redact chat 1 --words …` strikes its words, `turnlog threads delete chat` removes the conversation, "
        "`turnlog erase --user ann` the person",
    ]
    rows = (await turnlog("memories", "--user", "ann", "--all", "--json")).document
    assert sorted(row["content"] for row in rows) == ["", "I like tea"]
    assert (await turnlog("forget", "cats", "--user", "ann", "--yes", "--json")).error == "not-found"


async def test_a_memory_is_forgotten_with_the_version_before_it(log: Log, turnlog: Cli) -> None:
    await tell(log, claim("I have two cats", 0))
    assert (await turnlog("edit", "cats", "I have three cats", "--user", "ann")).code == 0
    done = await turnlog("forget", "three", "--user", "ann", "--yes")
    assert done.out == "forgot 1 memory and 1 version or copy of it\n"


async def test_forgetting_an_earlier_version_names_the_newer_one_and_the_command_that_forgets_it(
    log: Log, turnlog: Cli
) -> None:
    old = (await turnlog("remember", "I live in Hanoi", "--user", "ann lee", "--json")).document["memory_id"]
    new = (await turnlog("remember", "I live in Ghent", "--user", "ann lee", "--json")).document["memory_id"]
    command = f"turnlog forget {new} --user 'ann lee'"
    done = await turnlog("forget", old, "--user", "ann lee", "--yes")
    assert done.out == f"forgot 1 memory\na newer version stays: “I live in Ghent”; `{command}` forgets it too\n"
    last = await turnlog(*shlex.split(command)[1:], "--yes", "--json")
    assert last.document == {"forgotten": [new], "newer": None}


async def test_entities_do_not_mention_forgotten_memories(log: Log, turnlog: Cli) -> None:
    nuts, tea = claim("My sister Mia is allergic to nuts", 0), claim("我和米娅喜欢喝茶", 1)
    mia = Entity(type="PERSON", name="Mia", description="allergic to nuts", sources=nuts.sources)
    zh = Entity(type="PERSON", name="米娅", description="喜欢喝茶", sources=tea.sources)
    await tell(log, nuts, tea)
    named = EntitiesFound(entities=(mia, zh, mia.model_copy(update={"type": "TOPIC", "sources": tea.sources})))
    await log.append(event(named, thread=memory_thread("ann"), user="ann"))
    assert (await turnlog("forget", "nuts", "--user", "ann", "--yes")).out.startswith("forgot 1 memory\n")
    rows = (await turnlog("entities", "--user", "ann", "--json")).document
    assert [(row["type"], row["name"], [source["quote"] for source in row["sources"]]) for row in rows] == [
        ("PERSON", "米娅", ["我和米娅喜欢喝茶"]),
        ("TOPIC", "Mia", ["我和米娅喜欢喝茶"]),
    ]
    assert (await turnlog("forget", "喝茶", "--user", "ann", "--yes")).code == 0
    assert (await turnlog("entities", "--user", "ann", "--json")).document == []


async def test_a_question_is_listed_and_answered(log: Log, turnlog: Cli) -> None:
    ask = {"strategy": "ASK_USER"}
    await tell(log, gpa("3.8", 0, **ask), gpa("3.9", 9, **ask))
    [open_] = (await turnlog("conflicts", "--user", "ann", "--json")).document
    assert open_["question"] == "Remembered so far: “GPA is 3.8”. New: “GPA is 3.9”. Which one is right?"
    assert "`turnlog answer new --user ann`, or old, or both" in (await turnlog("conflicts", "--user", "ann")).out
    assert (await turnlog("answer", "perhaps", "--user", "ann")).code == 2
    text = (await turnlog("answer", "new", "--user", "ann")).out
    assert text.splitlines()[-1] == "answered: new"
    [row] = (await turnlog("memories", "--user", "ann", "--json")).document
    assert row["content"] == "GPA is 3.9"
    assert (await turnlog("answer", "old", open_["conflict_id"], "--user", "ann", "--json")).error == "question-settled"


async def test_forget_refuses_a_beginning_that_several_memories_share(log: Log, turnlog: Cli) -> None:
    await tell(log, claim("I like tea", 0), claim("I like cake", 1))
    refused = await turnlog("forget", "I like", "--user", "ann", "--yes")
    assert refused.code == 1
    assert "I like tea" in refused.err and "I like cake" in refused.err and "[ambiguous-memory]" in refused.err


async def test_empty_words_do_not_select_the_only_memory(log: Log, turnlog: Cli) -> None:
    await tell(log, claim("I like tea", 0))
    for words in ("", "  "):
        assert (await turnlog("forget", words, "--user", "ann", "--yes", "--json")).error == "ambiguous-memory"
    [row] = (await turnlog("memories", "--user", "ann", "--json")).document
    assert row["content"] == "I like tea"


async def test_memories_without_a_user_are_a_usage_error(turnlog: Cli) -> None:
    assert (await turnlog("memories")).code == 2


async def test_the_named_data_of_a_person_is_cleared_after_confirmation(log: Log, turnlog: Cli) -> None:
    await turnlog("remember", "I like tea", "--user", "ann")
    await turnlog("entities", "add", "Mia", "--type", "person", "--user", "ann")
    assert (await turnlog("clear", "--user", "ann", "--yes", "--json")).error == "nothing-named"
    both = ("clear", "--user", "ann", "--memories", "--entities")
    assert (await turnlog(*both, "--dry-run")).out == "user ann has 1 memory, 1 entity\n"
    head = await log.head()
    assert "not-confirmed" in (await turnlog(*both, typed="n\n")).err
    assert await log.head() == head
    done = await turnlog(*both, typed="y\n")
    assert "user ann has 1 memory, 1 entity" in done.err
    assert done.out == (
        "user ann is cleared of 1 memory, 1 entity\n"
        "the log keeps the events; `turnlog erase --user ann` makes them unreadable\n"
    )
    again = (await turnlog(*both, "--yes", "--json")).document
    assert (again["memories"], again["entities"], again["conversations"]) == (0, 0, [])


async def test_statistics_of_decay_are_shown_as_text_and_json(turnlog: Cli) -> None:
    await turnlog("remember", "I like tea", "--user", "ann")
    first, *tiers, last = (await turnlog("memories", "stats")).out.splitlines()
    assert first.startswith("1 memory, 0 archived; importance 0.")
    assert [line.split() for line in tiers] == [["1", "WORKING"], ["0", "SHORT"], ["0", "LONG"], ["0", "ARCHIVE"]]
    assert last.endswith("UTC archives 0, deletes 0, ends 0 that expire")
    statistics = (await turnlog("memories", "stats", "--user", "bob", "--json")).document
    assert (statistics["total_memories"], statistics["by_tier"]["WORKING"], statistics["scheduled_for_delete"]) == (
        0,
        0,
        0,
    )


async def test_preferences_and_limits_are_tables(turnlog_in_one_process: ManyCommands) -> None:
    setting = ("preferences", "--user", "ann", "--set", "language=中文", "--set", "retention_days=30")
    preferences, limits, retention = await turnlog_in_one_process([setting, ("limits",), ("retention",)])
    head, *lines = preferences.out.splitlines()
    assert head.split() == ["PREFERENCE", "VALUE"]
    assert {line.index(line.split()[1]) for line in lines} == {head.index("VALUE")}
    assert {("language", "中文"), ("retention_days", "30")} <= {tuple(line.split()) for line in lines}
    assert retention.out.startswith("no turns are past their retention period (TURNLOG_RETENTION_DAYS is not set; ")
    head, *lines = limits.out.splitlines()
    assert head.split() == ["LIMIT", "USER", "VIP"] and ["user_per_minute", "30", "120"] in map(str.split, lines)
