"""Conversations with a team, one for each situation in a run, with a scripted server of the OpenAI API.

tests/teams/conversations.toml contains them."""

import tomllib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers.databases import Databases
from helpers.markdown_examples import ROOT
from helpers.openai_server import OpenAIServer
from helpers.openai_validation import validate_openai_messages
from helpers.servers import empty_nats
from helpers.stage import Stage, player
from helpers.workshop import CALLED

from turnlog.agent.answering.asking import (
    AgentSwitched,
    Answered,
    AnswerPiece,
    NoAnswer,
    PhaseChanged,
    Restarted,
    Solved,
    Text,
    ToolReturned,
    ToolUsed,
    ask,
)
from turnlog.agent.team.records import StoredRecords
from turnlog.agent.team.runs import RunShown, list_runs, show_run
from turnlog.events.contracts import Event, RunToolAnswered, RunToolCalled, TurnRecorded

pytestmark = pytest.mark.slow

TEAMS = Path(__file__).parents[1] / "teams"
SCRIPT = tomllib.loads((TEAMS / "conversations.toml").read_text("utf-8"))
CONVERSATIONS: list[dict[str, Any]] = SCRIPT["conversation"]
PAGE = ROOT / "docs" / "agents.md"


@dataclass(frozen=True, slots=True)
class Workshop:
    stage: Stage
    model: OpenAIServer


@dataclass(frozen=True, slots=True)
class Said:
    """The result of a conversation. failure: the code of the error if there was no answer."""

    pieces: Sequence[AnswerPiece]
    failure: str | None
    run: RunShown | None
    events: Sequence[Event]
    asked: Sequence[dict[str, Any]]

    def of(self, kind: type) -> list[Any]:
        return [piece for piece in self.pieces if isinstance(piece, kind)]


@pytest.fixture(scope="module")
async def workshop(servers: Any, databases: Databases) -> AsyncIterator[Workshop]:
    """Yields the team on servers of this module; each conversation has a separate thread and user."""
    await empty_nats(servers.nats_url)
    with OpenAIServer() as model:
        settings = {"api_base_url": model.url, "api_key": model.key, "model": "m", "team": str(TEAMS / "workshop")}
        async with (
            databases.empty() as url,
            player(servers.nats_url, url, ("projectors", "agent"), **settings)() as stage,
        ):
            yield Workshop(stage, model)


@pytest.mark.parametrize(
    "conversation", CONVERSATIONS, ids=[conversation["name"].replace(" ", "-") for conversation in CONVERSATIONS]
)
async def test_a_conversation_takes_its_branch(workshop: Workshop, conversation: dict[str, Any]) -> None:
    said = await hold(workshop, conversation)
    check_what_was_shown(said, conversation)
    check_what_was_asked(said.asked, conversation)
    check_the_log(said, conversation)
    user = user_of(conversation)
    for tool, times in conversation.get("tries", {}).items():
        assert CALLED[user, tool] == times
    notes = await StoredRecords(workshop.stage.runtime, "default", user, "workshop").all("notes")
    assert notes == ({"note": conversation["notes"]} if "notes" in conversation else {})


def test_every_branch_has_a_conversation_and_the_page_lists_both() -> None:
    assert len(CONVERSATIONS) >= 40 and len({conversation["name"] for conversation in CONVERSATIONS}) == len(
        CONVERSATIONS
    )
    rows = [
        f"| {branch['phase']} | {branch['when']} | {branch['then']} | "
        f"{'; '.join(conversation['name'] for conversation in CONVERSATIONS if conversation['branch'] == name)} |"
        for name, branch in SCRIPT["branches"].items()
    ]
    assert not [row for row in rows if row.endswith("|  |")], "a branch without a conversation"
    assert {conversation["branch"] for conversation in CONVERSATIONS} == SCRIPT["branches"].keys()
    lines = PAGE.read_text("utf-8").splitlines()
    begin = lines.index("| Phase | When | Then | Conversations |") + 2
    assert lines[begin : begin + len(rows) + 1] == [*rows, ""]


async def hold(workshop: Workshop, conversation: dict[str, Any]) -> Said:
    for answer in conversation["model"]:
        script(workshop.model, answer)
    runtime, user, before = workshop.stage.runtime, user_of(conversation), len(workshop.model.bodies("chat"))
    pieces, failure = list[AnswerPiece](), None
    question, agent = conversation.get("question", "Where is it?"), conversation.get("agent")
    try:
        async for piece in ask(runtime, "default", "t", question, user=user, agent=agent):
            pieces.append(piece)
    except NoAnswer as error:
        failure = error.cause
    runs = await list_runs(runtime, "default", user)
    run = await show_run(runtime, "default", runs[0].run_id) if runs else None
    thread = await only_thread(workshop.stage, user)
    return Said(pieces, failure, run, await workshop.stage.events(thread), workshop.model.bodies("chat")[before:])


def script(model: OpenAIServer, answer: dict[str, Any]) -> None:
    if "fail" in answer:
        model.fail(answer["fail"], message="no")
    elif "cut" in answer:
        model.reply(answer["text"], drop_after=answer["cut"])
    else:
        calls = [(name, arguments) for name, arguments in answer.get("calls", [])]
        model.reply(answer.get("text", ""), tool_calls=calls, finish=answer.get("finish"))


def user_of(conversation: dict[str, Any]) -> str:
    return str(conversation["name"]).replace(" ", "-")


async def only_thread(stage: Stage, user: str) -> str:
    [[thread]] = await stage.rows("SELECT thread_id FROM thread_activity WHERE user_id = %s", user)
    return str(thread)


def check_what_was_shown(said: Said, conversation: dict[str, Any]) -> None:
    assert said.failure == conversation.get("failure")
    assert [piece.phase for piece in said.of(PhaseChanged)] == conversation.get("phases", "").split()
    agents = conversation.get("agents", ["front"])
    if said.failure is None:
        [answered], [solved] = said.of(Answered), said.of(Solved)
        assert answered.answer == solved.message == conversation["answer"]
        assert answered.finish_reason == conversation.get("finish", "stop")
        assert list(solved.chain) == agents and len(said.of(AgentSwitched)) == len(agents) - 1
        assert text_of(said.pieces) == conversation["answer"]
    returned = {piece.name: piece for piece in said.of(ToolReturned)}
    calls = conversation.get("calls", len(conversation.get("results", {})))
    assert len(said.of(ToolUsed)) == len(said.of(ToolReturned)) == calls
    for tool, result in conversation.get("results", {}).items():
        assert result.removeprefix("! ") in returned[tool].result, tool
        assert returned[tool].is_error == result.startswith("! "), tool


def text_of(pieces: Sequence[AnswerPiece]) -> str:
    """Returns the final text."""
    text = ""
    for piece in pieces:
        match piece:
            case Text(more):
                text += more
            case Restarted():
                text = ""
    return text


def check_what_was_asked(asked: Sequence[dict[str, Any]], conversation: dict[str, Any]) -> None:
    """Checks that every script was used, and that the model gets tools only while planning, and only valid messages."""
    assert len(asked) == len(conversation["model"])
    for body in asked:
        assert validate_openai_messages(body["messages"]) == []
    if conversation.get("phases", "").endswith("SOLVE") and "failure" not in conversation:
        assert asked[0]["tools"] and "tools" not in asked[-1]
    if "streams" in conversation:
        assert [body.get("stream", False) for body in asked] == conversation["streams"]
    if "told" in conversation:
        assert conversation["told"] in "\n".join(str(message["content"]) for message in asked[-1]["messages"])


def check_the_log(said: Said, conversation: dict[str, Any]) -> None:
    """Checks that the run and its end are recorded, each call has a result, and the turns are valid for a model."""
    types = [event.type for event in said.events]
    assert types.count("answer_receipt") == (said.failure is None)
    assert said.run is not None and said.run.run.code == said.failure
    assert said.run.run.status == ("failed" if said.failure else "solved")
    called = [event.data.call_id for event in said.events if isinstance(event.data, RunToolCalled)]
    answered = [event.data.call_id for event in said.events if isinstance(event.data, RunToolAnswered)]
    assert len(called) == len(answered) == len(said.of(ToolReturned))
    waiting = list[str]()
    for turn in (event.data for event in said.events if isinstance(event.data, TurnRecorded)):
        if turn.role == "tool":
            waiting.remove(str(turn.tool_call_id))
        else:
            assert waiting == []
            waiting = [call.id for call in turn.tool_calls or ()]
    assert waiting == []
