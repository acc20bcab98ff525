"""ReWOO: an agent plans all its tool calls at once, they run by what depends on what, and one more call answers.

PLAN, EXECUTE and SOLVE are steps of one answer; a plan may hand the question to another agent instead, which then plans
itself. An agent with the policy "loop" plans again after each EXECUTE, until its plan is the answer. Nothing is
recorded here: the pieces have all that a recorder needs.
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
    Planned,
    Restarted,
    Round,
    Solved,
    TeamPiece,
    Text,
    ToolReturned,
    ToolUsed,
)
from turnlog.agent.answering.recall_tool import ToolResult
from turnlog.agent.answering.run import check_not_empty, run
from turnlog.agent.context.titles import TOOL_RESULTS
from turnlog.agent.models import observed
from turnlog.agent.models.errors import ModelUnavailable
from turnlog.agent.models.protocol import CallPiece, ChatModel, ChatRequest, Completion
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
from turnlog.agent.team.tools import MAY_BE_DONE, Registry, Use
from turnlog.events.contracts import ToolCall

SOLVE_S = 8.0  # kept of an answer's time for the call that solves
TOGETHER_S = 0.003  # tools that answer within it are recorded together
NO_TIME = Result({"error": "there was no time left for it"}, is_error=True)
UNFINISHED = Result({"error": f"there was no time left for its answer, {MAY_BE_DONE}"}, is_error=True)
INTERRUPTED = Result({"error": f"the process ended before it answered, {MAY_BE_DONE}"}, is_error=True)
RESULTS = f"{TOOL_RESULTS}\n{{}}\n[END OF TOOL RESULTS]\nAnswer the question from these results."

Made = tuple[ToolCall, ToolResult]
Finished = tuple[Step, Result, int]
RequestFor = Callable[[Agent, Delegation | None], Awaitable[ChatRequest]]
UseFor = Callable[[Agent, int, Step], Use]


class Known(Protocol):
    """What an earlier attempt at the same run has made."""

    def plan(self, depth: int, at: int) -> Completion | None:
        """Returns a plan of the agent at this depth. at: 0 is its first."""
        ...

    def result(self, depth: int, call_id: str) -> Result | None: ...

    def was_called(self, depth: int, call_id: str) -> bool: ...


async def run_team(
    model: ChatModel,
    team: Team,
    tools: Registry,
    entry: str,
    request_for: RequestFor,
    use_for: UseFor,
    known: Known | None = None,
    patience_s: float = math.inf,
) -> AsyncGenerator[TeamPiece]:
    """Yields the pieces of an answer by the agent `entry` of a team, and by those it hands the question to.

    request_for: what the model is asked for an agent, without tools; the delegation is what brought the question to it.
    use_for: who uses a tool, by agent, how often the question was handed on, and step. known: plans and results of an
    earlier attempt, which are not made again. patience_s: how long the model may take, all its calls together, until
    text comes. A tool that fails ends nothing, the model is told. The calls and results of a Round fit each other, so
    that it can be recorded as turns. Raises ModelError, EmptyAnswer.
    """
    course = _Course(model, team, tools, use_for, known, [entry], patience_s)
    request = await request_for(course.agent, None)
    while course.answer is None:
        async with aclosing(course.plan(request)) as pieces:
            async for piece in pieces:
                yield piece
        if course.handed is not None:
            request = await request_for(course.agent, course.handed)
        elif course.answer is None:
            async with aclosing(course.execute(request.ends_at)) as pieces:
                async for piece in pieces:
                    yield piece
            if not course.plans_again(request.ends_at):
                async with aclosing(course.solve(request)) as pieces:
                    async for piece in pieces:
                        yield piece
    yield course.solved()


@dataclass(slots=True)
class _Course:
    """How a run goes. chain: the agents that had the question, the present one last. plans, values, told: of the
    present agent: how many plans it made, results by step, and the messages of both for the model. made: the completion
    that planned; results: of its steps by number. handed: set where the plan handed the question on; answer: at the
    end. used: tools that ran. written: calls of tools that write and were begun. slowest_s: of the calls of the
    model."""

    model: ChatModel
    team: Team
    tools: Registry
    use_for: UseFor
    known: Known | None
    chain: list[str]
    patience_s: float
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
    answer: str | None = None
    spent: dict[Phase, float] = field(default_factory=dict)
    slowest_s: float = 0.0
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def agent(self) -> Agent:
        return self.team.agents[self.chain[-1]]

    def solved(self) -> Solved:
        assert self.answer is not None, "a run that ends has an answer"
        milliseconds: dict[Phase, int] = {phase: round(seconds * 1000) for phase, seconds in self.spent.items()}
        return Solved(self.answer, tuple(self.chain), tuple(self.used), milliseconds)

    def plans_again(self, ends_at: float | None) -> bool:
        """Whether the agent may call more tools after these results: in a loop, while rounds and time are left."""
        if self.agent.policy != "loop" or not self.results or self.plans >= self.agent.rounds - 1:
            return False
        return ends_at is None or asyncio.get_running_loop().time() < ends_at - SOLVE_S

    @property
    def depth(self) -> int:
        return len(self.chain) - 1

    async def plan(self, request: ChatRequest) -> AsyncGenerator[TeamPiece]:
        """Asks for a plan. Its text is shown once it is known to be the answer; in a loop at once."""
        agent, started, shown = self.agent, time.perf_counter(), ""
        is_loop = agent.policy == "loop"
        yield PhaseChanged(agent.type, "PLAN")
        made = self.known.plan(self.depth, self.plans) if self.known else None
        if made is None:
            messages, has_calls = [*request.messages, *fitted(self.told)], False
            tools, silence_s = self.tools.schemas(agent), self._silence_s()
            planning = replace(request, messages=messages, tools=tools, silence_s=silence_s)
            async with aclosing(run(self.model, planning)) as pieces:
                async for piece in pieces:
                    has_calls = has_calls or isinstance(piece, CallPiece)
                    if isinstance(piece, Round):
                        made = piece.completion
                    elif is_loop and isinstance(piece, Text | Restarted):
                        shown = shown + piece.text if isinstance(piece, Text) else ""
                        yield piece
            if made is not None and made.ended_early and has_calls:
                raise ModelUnavailable("The plan broke off among its calls of tools.")
        assert made is not None, "a run ends with its round"
        _check_not_withheld(made)
        made = replace(made, tool_calls=with_own_ids(made.tool_calls, self.call_ids))
        self.call_ids |= {call.id for call in made.tool_calls}
        self.made, self.handed, self.results = made, None, {}
        self.plans += 1
        first = max(self.values, default=0) + 1
        plan = read_plan(made.text, made.tool_calls, () if is_loop else agent.all_tools, first)
        self._spend("PLAN", started)
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
        elif plan.delegation is not None:
            call = _delegating(plan.delegation)
            to = handed_on(self.team, self.chain, plan.delegation)
            if isinstance(to, Agent):
                if shown:
                    yield Restarted()
                yield self._round(plan, [(call, ToolResult(f"handed over to {to.type}"))])
                yield AgentSwitched(agent.type, to.type, plan.delegation.task)
                self.chain.append(to.type)
                self.handed, self.plans, self.told = plan.delegation, 0, []
                self.values.clear()
                self.call_ids.clear()
                self.written.clear()
            else:
                self.planned = Plan(plan.thought, (Step(first, call.name, json.loads(call.arguments), call.id, to),))
        else:
            self.planned = plan

    async def execute(self, ends_at: float | None) -> AsyncGenerator[TeamPiece]:
        """Runs the plan's steps, those at once that do not depend on each other. ends_at: as of a ChatRequest."""
        started = time.perf_counter()
        if not self.planned.steps:
            return
        yield PhaseChanged(self.agent.type, "EXECUTE")
        for group in levels(self.planned.steps, self.values.keys()):
            ready = [filled(step, self.values) for step in group]
            for step in ready:
                writes = step.tool in self.tools.names and self.tools[step.tool].writes
                yield ToolUsed(step.call_id, step.tool, _json(step.arguments), writes)
            async with aclosing(self._at_once(ready, ends_at)) as groups:
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
        self._spend("EXECUTE", started)
        yield self._round(self.planned, [self.results[step.number] for step in self.planned.steps])

    async def solve(self, request: ChatRequest) -> AsyncGenerator[TeamPiece]:
        """Asks for the answer, without tools. A stream without text is asked for once more, not as a stream."""
        started, text = time.perf_counter(), ""
        yield PhaseChanged(self.agent.type, "SOLVE")
        solving = replace(
            request, messages=[*request.messages, *fitted(self.told)], tools=(), silence_s=self._silence_s()
        )
        made: Completion | None = None
        async with aclosing(run(self.model, solving)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Round):
                    made = piece.completion
                elif isinstance(piece, Text | Restarted):
                    text = text + piece.text if isinstance(piece, Text) else ""
                    yield piece
        assert made is not None, "a run ends with its round"
        _check_not_withheld(made)
        if self.made is not None and not self.results:  # the plan was empty, and no round of its own
            made = _with_usage_of(made, self.made)
        if not text.strip():
            self._spend("SOLVE", started)
            started = time.perf_counter()
            whole = await self.model.complete(replace(solving, silence_s=self._silence_s()))
            made = _with_usage_of(whole, made)
            check_not_empty(replace(made, tool_calls=()))
            text = made.text
            yield Restarted()
            yield Text(text)
        self.answer = text
        self._spend("SOLVE", started)
        yield Round(replace(made, text=text, tool_calls=()), agent=self.agent.type)

    async def _at_once(self, steps: Sequence[Step], ends_at: float | None) -> AsyncGenerator[list[Finished]]:
        """Yields the steps with their results and milliseconds, as they finish, those together that finish at about
        the same time. Where time runs out the rest has failed."""
        tasks = {asyncio.create_task(self._call(step)): step for step in steps}
        pending = set(tasks)
        try:
            while pending:
                left = None if ends_at is None else max(0.0, ends_at - SOLVE_S - asyncio.get_running_loop().time())
                done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if done and pending:
                    also, pending = await asyncio.wait(pending, timeout=TOGETHER_S)
                    done |= also
                if done:
                    in_order = sorted(done, key=lambda task: tasks[task].number)
                    yield [(tasks[task], *task.result()) for task in in_order]
                else:
                    waited_ms = round((left or 0.0) * 1000)
                    late = sorted((tasks[task] for task in pending), key=lambda step: step.number)
                    yield [(step, UNFINISHED if step.call_id in self.written else NO_TIME, waited_ms) for step in late]
                    return
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _call(self, step: Step) -> tuple[Result, int]:
        """Tools that write run one after the other, in the order of the plan."""
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
        """The plan and its results for the model, in the form in which it planned: as calls of tools or as text."""
        made = [self.results[step.number] for step in self.planned.steps]
        if not made or self.made is None:
            return []
        if not self.made.tool_calls:
            texts = fitted([{"role": "tool", "content": result.text} for _, result in made])
            lines = [
                f"#E{step.number} {step.tool}: {text['content']}"
                for step, text in zip(self.planned.steps, texts, strict=True)
            ]
            told = {"role": "user", "content": RESULTS.format("\n".join(lines))}
            return [{"role": "assistant", "content": self.made.text}, told]
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call, _ in made
        ]
        said = {"role": "assistant", "content": self.planned.thought or None, "tool_calls": calls}
        return [said, *({"role": "tool", "tool_call_id": call.id, "content": result.text} for call, result in made)]

    def _round(self, plan: Plan, results: Sequence[Made]) -> Round:
        """The call that planned, with the calls that were made of its plan."""
        assert self.made is not None
        calls = tuple(call for call, _ in results)
        return Round(replace(self.made, text=plan.thought, tool_calls=calls), tuple(results), self.agent.type)

    def _spend(self, phase: Phase, since: float) -> None:
        took_s = time.perf_counter() - since
        self.spent[phase] = self.spent.get(phase, 0.0) + took_s
        if phase != "EXECUTE":
            self.slowest_s = max(self.slowest_s, took_s)

    def _silence_s(self) -> float:
        """How long the next call may be silent: what is left of the patience, so that whoever waits is told of a server
        that hangs in the middle of a run as soon as of one that hangs at its beginning. A server that is slow as a
        rule may be so again, and has SOLVE_S in any case."""
        spent_s = self.spent.get("PLAN", 0.0) + self.spent.get("SOLVE", 0.0)
        return max(min(SOLVE_S, self.patience_s), self.slowest_s, self.patience_s - spent_s)


def _check_not_withheld(completion: Completion) -> None:
    """Raises ModelModerated: the model would not say more if it was asked again."""
    if completion.finish_reason == "content_filter":
        check_not_empty(completion)


def _delegating(delegation: Delegation) -> ToolCall:
    arguments = {"agent_type": delegation.agent, "task_description": delegation.task, "context": delegation.context}
    return ToolCall(id=delegation.call_id, name=DELEGATE_TOOL, arguments=_json(arguments))


def _with_usage_of(completion: Completion, before: Completion) -> Completion:
    """The completion with what an earlier call for the same answer has cost."""
    return replace(
        completion,
        tokens_in=completion.tokens_in + before.tokens_in,
        tokens_out=completion.tokens_out + before.tokens_out,
        cost_usd=completion.cost_usd + before.cost_usd,
        latency_ms=completion.latency_ms + before.latency_ms,
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
