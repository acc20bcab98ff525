"""Imports from files and APIs of mem0, Zep and Letta; their own programs wrote the files."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.json_server import answering

from turnlog.agent.operations.importers import (
    Defaults,
    Format,
    ImportedMemory,
    ImportedTurn,
    ImportFailed,
    Item,
    Rejected,
    Skipped,
    detect_format,
    read,
)
from turnlog.agent.operations.importers.remote import download
from turnlog.events.contracts import TextBlock, ThinkingBlock

# A result of Memory.get_all of mem0ai 2.2.1.
MEM0 = {
    **{"id": "71da4b33-9614-4a35-8667-1fd9ae15b1b3", "memory": "Lives in Porto and works as a potter"},
    **{"hash": "b5190c148ca07a5d506916c36c95fab6", "metadata": {"category": "home"}, "user_id": "ann", "role": "user"},
    **{"created_at": "2026-11-27T07:38:57.537064+00:00", "updated_at": "2026-11-27T07:38:57.537064+00:00"},
}
MESSAGE = {
    "uuid": "m1",
    "role": "user",
    "name": "Ann",
    "content": "I moved to Porto.",
    "created_at": "2026-03-01T09:00:00Z",
}
EDGE = {
    **{"uuid": "e1", "name": "LIVES_IN", "fact": "Ann lives in Lisbon", "created_at": "2026-01-02T00:00:00Z"},
    **{"valid_at": "2025-01-01T00:00:00Z", "invalid_at": "2026-03-01T00:00:00Z", "source_node_uuid": "n1"},
}
ZEP = {"user_id": "ann", "threads": [{"thread_id": "t1", "messages": [MESSAGE]}], "facts": [EDGE]}


def called(name: str, arguments: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    said = [{"type": "text", "text": "She greets me."}]
    return {
        "role": "assistant",
        "id": "message-2",
        "content": said,
        "tool_calls": [call],
        "created_at": "2026-01-22T02:06:34Z",
    }


def agent_file(*messages: Any) -> dict[str, Any]:
    blocks = [{"label": "human", "value": "First name: Chad"}, {"label": "persona", "value": "I am Sam."}]
    return {
        "agents": [{"name": "Sam", "messages": messages, "embedding_config": {}}],
        "blocks": blocks,
        "mcp_servers": [],
    }


def items(tmp_path: Path, format: Format, value: Any, **layout: Any) -> list[Item]:
    path = tmp_path / "export.json"
    path.write_text(json.dumps(value, **layout))
    assert detect_format(path) == format
    return list(read(path, defaults=Defaults(user="ann")))


@pytest.mark.parametrize("value", [{"results": [MEM0]}, [MEM0], {"count": 1, "next": None, "results": [MEM0]}])
def test_a_memory_of_mem0_keeps_its_person_time_and_metadata(tmp_path: Path, value: Any) -> None:
    [memory] = items(tmp_path, "mem0", value)
    assert isinstance(memory, ImportedMemory)
    assert (memory.user, memory.id, memory.content) == ("ann", MEM0["id"], MEM0["memory"])
    assert (memory.since, memory.until, memory.metadata) == (
        MEM0["created_at"],
        None,
        {"metadata": {"category": "home"}},
    )


def test_a_memory_that_mem0_replaced_is_left_out_and_one_without_words_rejected(tmp_path: Path) -> None:
    replaced, empty = {**MEM0, "replaced_by": "x"}, {"id": "1", "user_id": "ann"}
    _, left_out, rejected = items(tmp_path, "mem0", {"results": [MEM0, replaced, empty]})
    assert left_out == Skipped("line 1, memory 2", "no longer in use in mem0")
    assert isinstance(rejected, Rejected)


@pytest.mark.parametrize("indent", [None, 2])
def test_a_dump_of_zep_has_messages_and_facts_with_their_times(tmp_path: Path, indent: int | None) -> None:
    turn, fact = items(tmp_path, "zep", ZEP, indent=indent)
    assert isinstance(turn, ImportedTurn)
    assert (turn.thread, turn.user, turn.data.name, turn.data.content) == ("t1", "ann", "Ann", "I moved to Porto.")
    assert isinstance(fact, ImportedMemory)
    assert (fact.content, fact.since, fact.until) == (EDGE["fact"], EDGE["valid_at"], EDGE["invalid_at"])


def test_a_session_of_an_older_zep_names_the_speaker_by_role_and_the_role_by_role_type(tmp_path: Path) -> None:
    [turn] = items(
        tmp_path,
        "zep",
        {"session_id": "s", "messages": [{**MESSAGE, "name": None, "role": "Ann", "role_type": "user"}]},
    )
    assert isinstance(turn, ImportedTurn)
    assert (turn.thread, turn.data.role, turn.data.name) == ("s", "user", "Ann")


def test_an_agent_file_of_letta_has_what_was_said_and_what_is_known_of_the_person(tmp_path: Path) -> None:
    hello = json.dumps({"type": "user_message", "message": "Hi!", "time": "2026-01-22 02:06:30 AM UTC+0000"})
    beat = json.dumps({"type": "heartbeat", "reason": "…", "time": "2026-01-22 02:06:30 AM UTC+0000"})
    messages = [
        {"role": "system", "id": "message-0", "content": [{"type": "text", "text": "You are Sam."}]},
        {
            "role": "user",
            "id": "message-1",
            "content": [{"type": "text", "text": hello}],
            "created_at": "2026-01-22T02:06:30Z",
        },
        called("send_message", {"message": "Hello, Chad."}),
        {
            "role": "tool",
            "id": "message-3",
            "tool_call_id": "c1",
            "content": [{"type": "text", "text": '{"status": "OK"}'}],
        },
        {"role": "user", "id": "message-4", "content": [{"type": "text", "text": beat}]},
    ]
    read_items = items(tmp_path, "letta", agent_file(*messages), indent=2)
    asked, answer = [item for item in read_items if isinstance(item, ImportedTurn)]
    assert (asked.thread, asked.data.role, asked.data.content) == ("Sam", "user", "Hi!")
    assert answer.data.content == (ThinkingBlock(thinking="She greets me."), TextBlock(text="Hello, Chad."))
    assert [item.content for item in read_items if isinstance(item, ImportedMemory)] == ["First name: Chad"]
    assert sum(isinstance(item, Skipped) for item in read_items) == 4


def test_messages_of_lettas_api_are_one_conversation(tmp_path: Path) -> None:
    about = {"id": "message-1", "date": "2026-01-22T02:06:34+00:00"}
    call = {"name": "search", "arguments": "{}", "tool_call_id": "c1"}
    read_items = items(
        tmp_path,
        "letta",
        [
            {**about, "message_type": "user_message", "content": "Where is it?"},
            {**about, "message_type": "reasoning_message", "reasoning": "I search."},
            {**about, "message_type": "tool_call_message", "tool_call": call},
            {**about, "message_type": "tool_return_message", "tool_return": "here", "tool_call_id": "c1"},
            {**about, "message_type": "assistant_message", "content": "Here."},
        ],
    )
    turns = [item for item in read_items if isinstance(item, ImportedTurn)]
    assert [turn.data.role for turn in turns] == ["user", "assistant", "assistant", "tool", "assistant"]
    assert [tool_call.name for tool_call in turns[2].data.tool_calls] == ["search"]
    assert {turn.thread for turn in turns} == {"export"}
    assert len({turn.id for turn in turns}) == 5


def test_mem0s_platform_is_read_page_by_page(tmp_path: Path) -> None:
    def answer(path: str, query: dict[str, list[str]], sent: Any) -> Any:
        assert sent["filters"] == {"user_id": "ann"}
        page = query.get("page", ["1"])[0]
        return {"next": None if page == "2" else "/v3/memories/?page=2", "results": [{**MEM0, "id": page}]}

    with answering(answer) as (url, queries):
        path, format = download(f"{url}v3/memories/", "mem0", "key", "ann", tmp_path)
    assert [item.id for item in read(path, format) if isinstance(item, ImportedMemory)] == ["1", "2"]
    assert len(queries) == 2


def test_a_next_page_on_another_host_gets_no_key(tmp_path: Path) -> None:
    with (
        answering({"next": "http://localhost:1/v3/", "results": [MEM0]}) as (url, _),
        pytest.raises(ImportFailed, match="another host"),
    ):
        download(f"{url}v3/memories/", "mem0", "key", None, tmp_path)


def test_zep_is_read_user_by_user(tmp_path: Path) -> None:
    answers = {
        "/api/v2/users-ordered": {"users": [{"user_id": "a/b"}], "total_count": 1},
        "/api/v2/users/a%2Fb/threads": [{"thread_id": "t1", "user_id": "a/b"}],
        "/api/v2/threads/t1/messages": {"messages": [MESSAGE], "total_count": 1},
        "/api/v2/graph/edge/user/a%2Fb": [EDGE],
    }
    with answering(lambda path, query, sent: answers[path]) as (url, _):
        path, format = download(f"{url}api/v2", "zep", "key", None, tmp_path)
    turn, fact = read(path, format)
    assert isinstance(turn, ImportedTurn) and isinstance(fact, ImportedMemory)
    assert (turn.thread, turn.user, fact.user) == ("t1", "a/b", "a/b")


def test_an_api_that_refuses_or_answers_something_else_is_named_without_its_key(tmp_path: Path) -> None:
    for body, status, said in (({"detail": "no"}, 401, "401"), ({"detail": "no"}, 200, "does not answer as")):
        with answering(body, status) as (url, _), pytest.raises(ImportFailed, match=said) as failed:
            download(f"{url.replace('//', '//ann:secret@')}v3/memories/", "mem0", "key", None, tmp_path)
        assert "secret" not in str(failed.value)
    with pytest.raises(ImportFailed, match="--format mem0"):
        download("http://127.0.0.1:1/", None, None, None, tmp_path)
