"""ReWOO: an agent plans all its tool calls at once, they run in the order of their dependencies, and one more model
call answers.

PLAN, EXECUTE and SOLVE are steps of one answer; a plan may instead hand the question to another agent, which then plans
itself. An agent with the policy "loop" plans again after each EXECUTE, until its plan is the answer or its rounds or
its time are used up. Nothing is recorded here: the pieces contain all that a recorder needs.
"""

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from turnlog.agent.answering.pieces import (
    AgentSwitched,
    Phase,
    PhaseChanged,
    Piece,
    Planned,
    Restarted,
    Round,
    Solved,
    Text,
    ToolReturned,
    ToolUsed,
)
from turnlog.agent.answering.recall_tool import ToolResult
from turnlog.agent.answering.run import Ask, check_not_empty, round_messages
from turnlog.agent.context import counter_for
from turnlog.agent.context.titles import TOOL_RESULTS
from turnlog.agent.context.window import results_room, window_for
from turnlog.agent.models import observed
from turnlog.agent.models.errors import ModelTimedOut, ModelUnavailable
from turnlog.agent.models.protocol import TIME_UP, CallPiece, ChatRequest, Completion
from turnlog.agent.team.plans import (
    Delegation,
    Plan,
    Result,
    Step,
    filled,
    fitted,
    handed_on,
    levels,
    read_plan,
    with_own_ids,
)
from turnlog.agent.team.teams import DELEGATE_TOOL, Agent, Team
from turnlog.agent.team.tool_registry import MAY_BE_DONE, Registry
from turnlog.agent.team.tools import Use
from turnlog.events.contracts import ToolCall

SOLVE_S, SOLVE_SHARE = 8.0, 0.25  # part of a run's time that is kept for the final call: the smaller of both
TOGETHER_S = 0.003  # tools that answer within this time are recorded together
NO_TIME = Result({"error": "there was no time left for it"}, is_error=True)
UNFINISHED = Result({"error": f"there was no time left for its answer, {MAY_BE_DONE}"}, is_error=True)
NOT_CALLED = Result({"error": "it was not called: the answer was stopped"}, is_error=True)
STOPPED = Result({"error": f"the answer was stopped before it answered, {MAY_BE_DONE}"}, is_error=True)
INTERRUPTED = Result({"error": f"the process ended before it answered, {MAY_BE_DONE}"}, is_error=True)
RESULTS = f"{TOOL_RESULTS}\n{{}}\n[END OF TOOL RESULTS]\nAnswer the question from these results."

Made = tuple[ToolCall, ToolResult]
Finished = tuple[Step, Result, int]
RequestFor = Callable[[Agent, Delegation | None], Awaitable[ChatRequest]]
UseFor = Callable[[Agent, int, Step], Use]


class Known(Protocol):
    """The results of an earlier attempt at the same run."""

    def plan(self, depth: int, at: int) -> Completion | None:
        """Returns a plan of the agent at this depth; None if there is none. at: 0 is its first plan."""
        ...

    def result(self, depth: int, call_id: str) -> Result | None: ...

    def was_called(self, depth: int, call_id: str) -> bool: ...


@dataclass(slots=True)
class Rewoo:
    """The policy of `run` for an answer by a team: by the first agent of `chain`, and by those it hands over to.

    request_for: returns the model request for an agent, without tools; its second argument is the delegation to this
    agent, or None. use_for: returns the Use of a tool for an agent, the number of hand-overs so far, and a step. known:
    plans and results of an earlier attempt, which are not repeated. within_s: the text must begin within this number of
    seconds after the first call, so plan and tools must have ended by then; text that has begun may continue. A tool
    that fails does not end the run; the model is told. The calls and results of a Round match, so that it can be
    recorded as turns. model: the model for agents that name none. window: of the model in tokens; 0 infers it. Raises
    ModelError, EmptyAnswer.

    chain: the agents that had the question, the current one last. phase: the next phase. plans, values, told: the
    number of plans of the current agent, its results by step, and the messages about both for the model. made: the
    completion with the current plan; results: the calls and results of this plan by step. handed: set if the plan
    handed the question on; answer: set at the end. used: tools that ran. written: calls of writing tools that have
    begun. asked, shown, has_calls: the current model request, the text of its answer so far, and whether the answer
    calls tools. began: start of the current phase. empty: an answer without text.
    """

    team: Team
    tools: Registry
    chain: list[str]
    request_for: RequestFor
    use_for: UseFor
    known: Known | None = None
    within_s: float = math.inf
    model: str = ""
    window: int = 0
    phase: Phase = "PLAN"
    text_by: float | None = None
    request: ChatRequest | None = None
    asked: ChatRequest | None = None
    began: float = 0.0
    shown: str = ""
    has_calls: bool = False
    planned: Plan = field(default_factory=lambda: Plan(""))
    made: Completion | None = None
    results: dict[int, Made] = field(default_factory=dict)
    plans: int = 0
    values: dict[int, Result] = field(default_factory=dict)
    told: list[dict[str, Any]] = field(default_factory=list)
    call_ids: set[str] = field(default_factory=set)
    used: list[str] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    handed: Delegation | None = None
    empty: Completion | None = None
    answer: str | None = None
    spent: dict[Phase, float] = field(default_factory=dict)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def agent(self) -> Agent:
        return self.team.agents[self.chain[-1]]

    @property
    def depth(self) -> int:
        return len(self.chain) - 1

    async def ask(self) -> Ask | None:
        """Returns the next request: for a plan, or without tools for the answer. If the answer had no text, its request
        is repeated once, without a stream."""
        if self.answer is not None:
            return None
        if self.text_by is None:
            self.text_by = asyncio.get_running_loop().time() + self.within_s
        if self.request is None:
            self.request = await self.request_for(self.agent, self.handed)
        if self.empty is None:
            messages = [*self.request.messages, *self._fitted(self.told)]
            tools = self.tools.schemas(self.agent) if self.phase == "PLAN" else ()
            self.asked = replace(self.request, messages=messages, tools=tools, text_by=self.text_by)
        assert self.asked is not None
        self.began, self.shown, self.has_calls = time.perf_counter(), "", False
        if self.phase == "SOLVE":
            phase = PhaseChanged(self.agent.type, "SOLVE") if self.empty is None else None
            return Ask(self.asked, whole=self.empty is not None, phase=phase)
        if self.agent.policy != "loop" and self.within_s < math.inf:  # the plan is not shown before it is complete
            ends_at = self.text_by if self.asked.ends_at is None else min(self.text_by, self.asked.ends_at)
            self.asked = replace(self.asked, ends_at=ends_at)
        known = self.known.plan(self.depth, self.plans) if self.known else None
        return Ask(self.asked, known, phase=PhaseChanged(self.agent.type, "PLAN"))

    def shows(self, piece: Text | CallPiece | Restarted) -> bool:
        """Returns whether the piece may be shown: always in a loop, otherwise only if it cannot be part of a plan."""
        self.has_calls = self.has_calls or isinstance(piece, CallPiece)
        if isinstance(piece, CallPiece) or (self.phase == "PLAN" and self.agent.policy != "loop"):
            return False
        self.shown = self.shown + piece.text if isinstance(piece, Text) else ""
        return True

    async def take(self, made: Completion) -> AsyncGenerator[Piece]:
        taking = self._plan(made) if self.phase == "PLAN" else self._solve(made)
        async with aclosing(taking) as pieces:
            async for piece in pieces:
                yield piece
        if self.answer is not None:
            milliseconds: dict[Phase, int] = {phase: round(seconds * 1000) for phase, seconds in self.spent.items()}
            yield Solved(self.answer, tuple(self.chain), tuple(self.used), milliseconds)

    async def _plan(self, made: Completion) -> AsyncGenerator[Piece]:
        """Reads the plan that the model made, and runs its tools or hands the question on."""
        if made.ended_early and self.has_calls:
            error = ModelTimedOut if made.finish_reason == TIME_UP else ModelUnavailable
            raise error("The plan broke off among its calls of tools.")
        _check_not_withheld(made)
        agent, shown, is_loop = self.agent, self.shown, self.agent.policy == "loop"
        made = replace(made, tool_calls=with_own_ids(made.tool_calls, self.call_ids))
        self.call_ids |= {call.id for call in made.tool_calls}
        self.made, self.handed, self.results = made, None, {}
        self.plans += 1
        first = max(self.values, default=0) + 1
        plan = read_plan(made.text, made.tool_calls, () if is_loop else agent.all_tools, first)
        self._spend("PLAN")
        ids = {step.number: step.call_id for step in plan.steps}
        after = {step.call_id: tuple(ids[number] for number in sorted(step.needs & ids.keys())) for step in plan.steps}
        yield Planned(agent.type, plan.thought, made, after)
        if plan.is_answer and plan.thought.strip():
            self.planned, self.answer = plan, plan.thought
            if shown.strip() != plan.thought.strip():
                if shown:
                    yield Restarted()
                yield Text(plan.thought)
            yield Round(replace(made, text=plan.thought), agent=agent.type)
            return
        self.planned = plan
        if plan.delegation is not None:
            call = _delegating(plan.delegation)
            to = handed_on(self.team, self.chain, plan.delegation)
            if isinstance(to, Agent):
                if shown:
                    yield Restarted()
                yield self._round(plan, [(call, ToolResult(f"handed over to {to.type}"))])
                yield AgentSwitched(agent.type, to.type, plan.delegation.task)
                self.chain.append(to.type)
                self.handed, self.request, self.plans, self.told = plan.delegation, None, 0, []
                self.values.clear()
                self.call_ids.clear()
                self.written.clear()
                return
            self.planned = Plan(plan.thought, (Step(first, call.name, json.loads(call.arguments), call.id, to),))
        async with aclosing(self._execute()) as pieces:
            async for piece in pieces:
                yield piece
        may_plan = is_loop and self.results and self.plans < agent.rounds - 1 and self._left_s() > 0
        self.phase = "PLAN" if may_plan else "SOLVE"

    async def _execute(self) -> AsyncGenerator[Piece]:
        """Runs the plan's steps; steps that do not depend on each other run concurrently."""
        self.began = time.perf_counter()
        if not self.planned.steps:
            return
        yield PhaseChanged(self.agent.type, "EXECUTE")
        for group in levels(self.planned.steps, self.values.keys()):
            ready = [filled(step, self.values) for step in group]
            for step in ready:
                writes = step.tool in self.tools.names and self.tools[step.tool].writes
                yield ToolUsed(step.call_id, step.tool, _json(step.arguments), writes)
            async with aclosing(self._at_once(ready)) as groups:
                async for finished in groups:
                    for step, result, took in finished:
                        self.values[step.number] = result
                        text = _json(result.value)
                        call = ToolCall(id=step.call_id, name=step.tool, arguments=_json(step.arguments))
                        self.results[step.number] = (call, ToolResult(text, is_error=result.is_error))
                        is_followed = step is not finished[-1][0]
                        yield ToolReturned(step.call_id, step.tool, text, took, result.is_error, is_followed)
        self.used += [step.tool for step in self.planned.steps]
        self.told += self._messages()
        self._spend("EXECUTE")
        yield self._round(self.planned, [self.results[step.number] for step in self.planned.steps])

    async def _solve(self, made: Completion) -> AsyncGenerator[Piece]:
        """Takes the answer. If there is no text, the model is asked once more."""
        self._spend("SOLVE")
        _check_not_withheld(made)
        if self.empty is not None:
            made = _with_usage_of(made, self.empty)
            check_not_empty(replace(made, tool_calls=()))
            yield Restarted()
            yield Text(made.text)
        elif self.made is not None and not self.results:  # the plan was empty, so it is not a round of its own
            made = _with_usage_of(made, self.made)
        if made.text.strip():
            self.answer = made.text
            yield Round(replace(made, tool_calls=()), agent=self.agent.type)
        else:
            self.empty = made

    async def _at_once(self, steps: Sequence[Step]) -> AsyncGenerator[list[Finished]]:
        """Runs the steps concurrently, and yields them with their results and milliseconds as they finish; those that
        finish at about the same time are yielded together. Steps that do not finish in time have failed."""
        tasks = {asyncio.create_task(self._call(step)): step for step in steps}
        pending = set(tasks)
        try:
            while pending:
                left_s = max(0.0, self._left_s())
                timeout_s = left_s if left_s < math.inf else None
                done, pending = await asyncio.wait(pending, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if done and pending:
                    also, pending = await asyncio.wait(pending, timeout=TOGETHER_S)
                    done |= also
                if done:
                    in_order = sorted(done, key=lambda task: tasks[task].number)
                    yield [(tasks[task], *task.result()) for task in in_order]
                else:
                    waited_ms = round(left_s * 1000)
                    late = sorted((tasks[task] for task in pending), key=lambda step: step.number)
                    yield [(step, UNFINISHED if step.call_id in self.written else NO_TIME, waited_ms) for step in late]
                    return
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _call(self, step: Step) -> tuple[Result, int]:
        """Calls the tool of a step. Tools that write run one after another, in the order of the plan."""
        started = time.perf_counter()
        if step.error is not None:
            return Result({"error": step.error}, is_error=True), 0
        if self.known and (made := self.known.result(self.depth, step.call_id)) is not None:
            return made, 0
        tool = self.tools[step.tool] if step.tool in self.tools.names else None
        was_called = self.known is not None and self.known.was_called(self.depth, step.call_id)
        if tool and not tool.repeatable and was_called:
            return INTERRUPTED, 0
        if tool and tool.writes and was_called:
            self.written.add(step.call_id)
        async with self.writing if tool and tool.writes else nullcontext():
            if tool and tool.writes:
                self.written.add(step.call_id)
            with observed.tool(step.tool, step.call_id, known=tool is not None) as failed:
                use = self.use_for(self.agent, self.depth, step)
                result = await self.tools.call(self.agent, step.tool, step.arguments, use)
                if result.is_error:
                    failed(result.value.get("category", observed.FAILED))
        return result, round((time.perf_counter() - started) * 1000)

    def _messages(self) -> list[dict[str, Any]]:
        """Returns the plan and its results as messages for the model, in the form of the plan: tool calls or text."""
        made = [self.results[step.number] for step in self.planned.steps]
        if not made or self.made is None:
            return []
        if not self.made.tool_calls:
            texts = self._fitted([{"role": "tool", "content": result.text} for _, result in made])
            lines = [
                f"#E{step.number} {step.tool}: {text['content']}"
                for step, text in zip(self.planned.steps, texts, strict=True)
            ]
            told = {"role": "user", "content": RESULTS.format("\n".join(lines))}
            return [{"role": "assistant", "content": self.made.text}, told]
        return round_messages(self.planned.thought, made)

    def _fitted(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the messages; results are cut so that they fit into the model's window beside the context."""
        assert self.request is not None
        model = self.request.model or self.model
        window = self.window or window_for(model)
        texts = [message["content"] for message in messages if message["role"] == "tool"]
        if len("".join(texts).encode(errors="replace")) <= window // 10:  # a token has at least one byte
            return list(messages)
        counter = counter_for(model)
        taken = counter.request(map(dict, self.request.messages), self.tools.schemas(self.agent))
        return fitted(messages, results_room(window, taken), counter.text)

    def _round(self, plan: Plan, results: Sequence[Made]) -> Round:
        """Returns the Round of the model call that made the plan, with the tool calls of the plan and their results."""
        assert self.made is not None
        calls = tuple(call for call, _ in results)
        return Round(replace(self.made, text=plan.thought, tool_calls=calls), tuple(results), self.agent.type)

    def _spend(self, phase: Phase) -> None:
        self.spent[phase] = self.spent.get(phase, 0.0) + time.perf_counter() - self.began

    def _left_s(self) -> float:
        """Returns the seconds that tools may still take; part of the run's time is kept for the final call."""
        assert self.request is not None and self.text_by is not None
        ends_at = self.text_by if self.request.ends_at is None else min(self.text_by, self.request.ends_at)
        return ends_at - min(SOLVE_S, SOLVE_SHARE * self.within_s) - asyncio.get_running_loop().time()


def _check_not_withheld(completion: Completion) -> None:
    """Raises ModelModerated if the answer was withheld, because the model would not say more if it was asked again."""
    if completion.finish_reason == "content_filter":
        check_not_empty(completion)


def _delegating(delegation: Delegation) -> ToolCall:
    arguments = {"agent_type": delegation.agent, "task_description": delegation.task, "context": delegation.context}
    return ToolCall(id=delegation.call_id, name=DELEGATE_TOOL, arguments=_json(arguments))


def _with_usage_of(completion: Completion, before: Completion) -> Completion:
    """Returns the completion with the tokens, cost and time of an earlier call for the same answer added."""
    return replace(
        completion,
        tokens_in=completion.tokens_in + before.tokens_in,
        tokens_out=completion.tokens_out + before.tokens_out,
        cost_usd=completion.cost_usd + before.cost_usd,
        latency_ms=completion.latency_ms + before.latency_ms,
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
