"""A team of agents records each step on the log, and a killed run continues after its last step."""

import json
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from helpers.openai_server import OpenAIServer
from helpers.questions import Place, pieces_of
from helpers.servers import eventually
from helpers.stage import Play, Stage, player

from turnlog.agent.answering.asking import (
    AgentSwitched,
    Answered,
    AnswerPiece,
    NoAnswer,
    PhaseChanged,
    QuestionStored,
    Solved,
    ToolReturned,
    ToolUsed,
    ask,
)
from turnlog.agent.answering.cancelling import cancel_answer
from turnlog.agent.answering.request import Question, question_events
from turnlog.agent.answering.request import ask as append_question
from turnlog.agent.team.agents import change_agent, switch_agent
from turnlog.agent.team.records import StoredRecords
from turnlog.agent.team.runs import list_runs, show_run
from turnlog.events.contracts import Event, UsageMetered
from turnlog.events.errors import LogUnavailable
from turnlog.events.log import Log

pytestmark = pytest.mark.slow

PLACE = Place(user="ann")
ROLES = ("projectors", "agent")
PROFILE = ("update_profile", {"fields": {"gpa": 3.8}})
DELEGATE = ("delegate_to_agent", {"agent_type": "profile", "task_description": "Set the GPA to 3.8"})


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture
async def play(nats_url: str, database_url: str, model: OpenAIServer) -> Play:
    settings = {"api_base_url": model.url, "api_key": model.key, "model": "test-model", "team": "advising"}
    return player(nats_url, database_url, ROLES, **settings)


async def kinds(stage: Stage) -> list[str]:
    return [event.type for event in await stage.events()]


async def test_a_run_with_tools_and_a_delegation_is_events_and_rows(play: Play, model: OpenAIServer) -> None:
    model.reply("The profile agent knows.", tool_calls=[DELEGATE])
    model.reply("I note it.", tool_calls=[PROFILE, ("get_profile", {})])
    model.reply("Your GPA is 3.8 now.")
    async with play() as stage:
        pieces = await pieces_of(stage.runtime, PLACE, "Hello, please note something")
        run, types = (await list_runs(stage.runtime, "default", "ann"))[0], await kinds(stage)
        shown = await show_run(stage.runtime, "default", run.run_id)
    answer = pieces[-1]
    assert isinstance(answer, Answered) and answer.answer == "Your GPA is 3.8 now."
    assert [piece.phase for piece in pieces if isinstance(piece, PhaseChanged)] == ["PLAN", "PLAN", "EXECUTE", "SOLVE"]
    [switch] = [piece for piece in pieces if isinstance(piece, AgentSwitched)]
    assert (switch.agent, switch.to) == ("orchestrator", "profile")
    [solved] = [piece for piece in pieces if isinstance(piece, Solved)]
    assert (solved.chain, solved.tools) == (("orchestrator", "profile"), ("update_profile", "get_profile"))
    steps = [(step.kind, step.agent, step.name, step.is_error) for step in shown.steps]
    assert steps[:3] == [
        ("plan", "orchestrator", None, False),
        ("delegation", "orchestrator", "profile", False),
        ("plan", "profile", None, False),
    ]
    assert sorted(steps[3:-1]) == sorted(
        (kind, "profile", name, False) for kind in ("call", "result") for name in ("update_profile", "get_profile")
    )
    assert steps[-1] == ("end", "profile", None, False)
    assert (run.agent, run.status, run.user) == ("profile", "solved", "ann") and run.tokens_in > 0
    assert types.count("usage_metered") == 3 and types.count("answer_receipt") == 1


async def test_a_rule_that_is_sure_chooses_the_agent_without_a_model(play: Play, model: OpenAIServer) -> None:
    model.reply("First an outline.")
    async with play() as stage:
        pieces = await pieces_of(stage.runtime, PLACE, "帮我润色这篇文书,再看看个人陈述的大纲")
    [solved] = [piece for piece in pieces if isinstance(piece, Solved)]
    assert (solved.chain, solved.routed) == (("essay",), True)
    [body] = model.bodies("chat")
    assert any(tool["function"]["name"] == "delegate_to_agent" for tool in body["tools"])


@pytest.mark.parametrize(
    ("asked_for", "set_", "used"),
    [
        (None, None, "test-model"),
        ("request-model", None, "request-model"),
        ("request-model", "set-model", "set-model"),
    ],
)
async def test_an_agent_uses_its_own_model_or_the_requests_or_the_servers(
    play: Play, model: OpenAIServer, asked_for: str | None, set_: str | None, used: str
) -> None:
    model.reply("You are Ann.")
    asked = question_events(Question("default", "t", "Who am I?", "ann", asked_for, "profile"))
    async with play() as stage:
        if set_ is not None:
            await change_agent(stage.runtime, "default", "profile", {"model": set_})
        await append_question(stage.runtime.log, asked)
        [receipt] = await stage.until("answer_receipt", 1)
    assert {body["model"] for body in model.bodies("chat")} == {receipt.model} == {used}


async def test_a_killed_run_goes_on_after_its_last_step(play: Play, model: OpenAIServer) -> None:
    """The process ends while the model solves; the plan and the tool calls are not repeated."""
    model.reply("I note it.", tool_calls=[PROFILE])
    model.hang()
    asked = question_events(Question("default", "t", "Set my GPA", "ann", agent="profile"))
    async with play() as stage:
        await append_question(stage.runtime.log, asked)
        await eventually(lambda: _has(stage, "run_tool_answered"))
        await eventually(lambda: _asked(model, 2))
    model.stop()
    model.start()
    model.reply("Your GPA is 3.8 now.")
    async with play() as stage:
        await eventually(lambda: _has(stage, "answer_receipt"), 60)
        types = await kinds(stage)
        puts = await _puts(stage.runtime.log)
    assert types.count("run_planned") == types.count("run_tool_answered") == types.count("run_solved") == 1
    assert len(puts) == 1
    solving = model.bodies("chat")[-1]
    assert [message["role"] for message in solving["messages"]][-2:] == ["assistant", "tool"]


BELL = """
import asyncio
import turnlog

RUNG = []

@turnlog.tool(writes=True)
async def ring(times: int) -> None:
    '''Rings the bell, and cannot tell a repeated call from a new one.'''
    RUNG.append(times)
    await asyncio.Event().wait()
"""


async def test_a_killed_loop_continues_after_its_last_round_without_repeating_unrepeatable_calls(
    nats_url: str, database_url: str, model: OpenAIServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends in the second round while a tool works; the calls of both rounds have the same id."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "bell_of_a_test.py").write_text(BELL)
    tools = 'tools_from = ["helpers.support_desk", "bell_of_a_test"]\n'
    (tmp_path / "team.toml").write_text(f'name = "loops"\nentry = "one"\n{tools}')
    agent = 'name = "One"\nprompt = "p"\npolicy = "loop"\ntools = ["refund_order", "ring"]\n'
    (tmp_path / "one.toml").write_text(agent)
    settings = {"api_base_url": model.url, "api_key": model.key, "model": "test-model", "team": str(tmp_path)}
    play = player(nats_url, database_url, ROLES, **settings)
    model.reply(tool_calls=[("refund_order", {"number": "A101", "usd": 5})])
    model.reply(tool_calls=[("ring", {"times": 3})])
    model.reply("I refunded 5 USD; it may have rung.")
    async with play() as stage:
        await append_question(stage.runtime.log, question_events(Question("default", "t", "Refund 5 and ring", "ann")))
        await stage.until("run_tool_called", 2)
    async with play() as stage:
        await eventually(lambda: _has(stage, "answer_receipt"), 60)
        types = await kinds(stage)
        [run] = await list_runs(stage.runtime, "default", "ann")
        steps = (await show_run(stage.runtime, "default", run.run_id)).steps
        puts = await _puts(stage.runtime.log, "store/loops.ann.refunds")
    assert types.count("run_planned") == 3 and types.count("run_tool_answered") == 2 and len(puts) == 1
    assert [step.kind for step in steps] == ["plan", "call", "result", "plan", "call", "result", "plan", "end"]
    assert import_module("bell_of_a_test").RUNG == [3]
    assert steps[-3].is_error and "it may have been done" in steps[-3].text
    ending = model.bodies("chat")[-1]
    assert len(model.bodies("chat")) == 3, "no plan is made again"
    assert [message["role"] for message in ending["messages"]][-4:] == ["assistant", "tool"] * 2
    assert "it may have been done" in ending["messages"][-1]["content"]
    assert (run.status, run.tokens_in) == ("solved", sum(step.tokens_in for step in steps[:-1])), "counted once"


SAFE = """
import asyncio
import turnlog
from turnlog.agent.team.tools import Use

@turnlog.tool(writes=True)
async def store(use: Use, word: str) -> None:
    '''Stores a word, and says so late.'''
    await use.records.put("words", word, {}, use.effect)
    await asyncio.Event().wait()
"""


async def test_a_tools_write_stays_after_a_cancellation_and_is_reported(
    nats_url: str, database_url: str, model: OpenAIServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "safe_of_a_test.py").write_text(SAFE)
    (tmp_path / "team.toml").write_text('name = "safes"\nentry = "one"\ntools_from = ["safe_of_a_test"]\n')
    (tmp_path / "one.toml").write_text('name = "One"\nprompt = "p"\ntools = ["store"]\n')
    settings = {"api_base_url": model.url, "api_key": model.key, "model": "test-model", "team": str(tmp_path)}
    model.reply(tool_calls=[("store", {"word": "first"}), ("store", {"word": "second"})])
    pieces = list[AnswerPiece]()
    async with player(nats_url, database_url, ROLES, **settings)() as stage:

        async def ask_and_stop() -> None:
            async for piece in ask(stage.runtime, "default", "t", "Store both", user="ann"):
                pieces.append(piece)
                if (
                    isinstance(piece, ToolUsed)
                    and len([earlier for earlier in pieces if isinstance(earlier, ToolUsed)]) == 2
                ):
                    await stage.until("store_item_put", 1, "store/safes.ann.words")
                    [asked] = [piece for piece in pieces if isinstance(piece, QuestionStored)]
                    await cancel_answer(stage.runtime, "default", asked.thread, asked.seq)

        with pytest.raises(NoAnswer, match=r"its tools have written, which is not undone: store$"):
            await ask_and_stop()
        [run] = await list_runs(stage.runtime, "default", "ann")
        steps = (await show_run(stage.runtime, "default", run.run_id)).steps
        stored = await StoredRecords(stage.runtime, "default", "ann", "safes").all("words")
    assert (run.status, run.code, stored) == ("failed", "answer-cancelled", {"first": {}})
    told = [piece.result for piece in pieces if isinstance(piece, ToolReturned)]
    assert [step.text for step in steps if step.kind == "result"] == told
    assert "so it may have been done" in told[0] and "it was not called" in told[1]


async def test_a_run_without_an_answer_ends_with_its_reason(play: Play, model: OpenAIServer) -> None:
    model.reply("I look.", tool_calls=[("get_profile", {})])
    model.fail(400, times=9, message="no", code="bad_request")
    async with play() as stage:
        with pytest.raises(NoAnswer):
            await pieces_of(stage.runtime, PLACE, "What is my GPA, and what should I do?")
        [run] = await list_runs(stage.runtime, "default", "ann")
    assert run.status == "failed" and run.code is not None


async def test_a_run_whose_failure_could_not_be_recorded_is_answered_when_it_is_delivered_again(
    play: Play, model: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is unavailable when the failure is recorded; a recorded end of the run would block the answer."""
    append_many, refused = Log.append_many, list[Sequence[Event]]()

    async def away_at_first(self: Log, events: Sequence[Event], *rest: Any, **options: Any) -> Any:
        if not refused and any(isinstance(event.data, UsageMetered) and event.data.error for event in events):
            refused.append(events)
            raise LogUnavailable("NATS is away")
        return await append_many(self, events, *rest, **options)

    monkeypatch.setattr(Log, "append_many", away_at_first)
    model.reply("I look.", tool_calls=[("get_profile", {})])
    model.fail(400, message="no", code="bad_request")
    model.reply("You have no GPA yet.")
    asked = question_events(Question("default", "t", "What is my GPA?", "ann", agent="profile"))
    async with play() as stage:
        await append_question(stage.runtime.log, asked)
        await eventually(lambda: _has(stage, "answer_receipt"), 60)
        [run] = await list_runs(stage.runtime, "default", "ann")
        types = await kinds(stage)
    assert sorted(event.type for event in refused[0]) == ["run_solved", "usage_metered", "usage_metered"]
    assert run.status == "solved" and run.code is None and types.count("run_solved") == 1


async def test_a_request_with_an_invalid_agent_name_fails_once(play: Play) -> None:
    asked = question_events(Question("default", "t", "Hello", "ann", agent="No Such Agent!"))
    async with play() as stage:
        await append_question(stage.runtime.log, asked)
        [failed] = await stage.until("usage_metered", 1)
        [ended] = await stage.all("run_solved")
    assert failed.error.startswith("not-found") and ended.code == "not-found"


async def test_a_tool_of_another_agent_is_refused_with_an_error_for_the_model(play: Play, model: OpenAIServer) -> None:
    model.reply(tool_calls=[("polish_essay", {"essay_id": "e1"})])
    model.reply("I cannot polish it.")
    async with play() as stage:
        pieces = await pieces_of(stage.runtime, PLACE, "Hello there")
    [used] = [piece for piece in pieces if isinstance(piece, ToolUsed)]
    assert used.name == "polish_essay"
    told = json.loads(model.bodies("chat")[-1]["messages"][-1]["content"])
    assert "orchestrator has no tool 'polish_essay'" in told["error"]


async def test_a_fixed_answer_is_a_run_and_is_not_given_while_its_agent_is_off(
    nats_url: str, database_url: str, model: OpenAIServer
) -> None:
    team = str(Path(__file__).parents[1] / "teams" / "support")
    play = player(nats_url, database_url, ROLES, api_base_url=model.url, api_key=model.key, model="m", team=team)
    async with play() as stage:
        pieces = await pieces_of(stage.runtime, PLACE, "Hello!")
        [run] = await list_runs(stage.runtime, "default", "ann")
        shown = await show_run(stage.runtime, "default", run.run_id)
        await switch_agent(stage.runtime, "default", "desk", False)
        with pytest.raises(NoAnswer) as refused:
            await pieces_of(stage.runtime, PLACE, "Hello!")
    said = "Hello! Which order is it about?"
    assert isinstance(pieces[-1], Answered) and pieces[-1].answer == said and model.bodies("chat") == []
    assert (run.agent, run.status) == ("desk", "solved")
    assert [(step.kind, step.text) for step in shown.steps] == [("plan", said), ("end", "")]
    assert refused.value.cause == "agent-disabled"


async def test_without_a_language_model_rules_plan_and_say_so(nats_url: str, database_url: str) -> None:
    play = player(nats_url, database_url, ROLES, team="advising")
    async with play() as stage:
        pieces = await pieces_of(stage.runtime, PLACE, "Which deadlines does my profile have to meet?")
        [run] = await list_runs(stage.runtime, "default", "ann")
        shown = await show_run(stage.runtime, "default", run.run_id)
    [solved] = [piece for piece in pieces if isinstance(piece, Solved)]
    assert solved.chain[0] == "orchestrator" and len(solved.chain) > 1 and 1 <= len(solved.tools) <= 2
    assert solved.message.startswith("No language model is configured. By rules, these tools were asked:")
    assert run.status == "solved" and [step.kind for step in shown.steps].count("result") == len(solved.tools)


async def _has(stage: Stage, kind: str) -> bool:
    return kind in await kinds(stage)


async def _asked(model: OpenAIServer, times: int) -> bool:
    return len(model.bodies("chat")) >= times


async def _puts(log: Log, thread: str = "store/advising.ann.profile") -> list[UUID]:
    """Returns the distinct ids of the documents that tools have stored."""
    return [recorded.event.id async for recorded in log.read_thread("default", thread)]
