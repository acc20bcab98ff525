"""Records a run on the log: each step is an event before the next begins, so that an interrupted run continues after
its last step.
"""

import json
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from uuid import UUID

from turnlog.agent.answering.pieces import (
    AgentSwitched,
    PhaseChanged,
    Piece,
    Planned,
    Round,
    Solved,
    ToolReturned,
    ToolUsed,
)
from turnlog.agent.answering.record import Author
from turnlog.agent.answering.request import answer_id
from turnlog.agent.answering.single_agent import DEFAULT_AGENT
from turnlog.agent.models.protocol import Completion
from turnlog.agent.runtime import Runtime
from turnlog.agent.team.configured import RoutedBy
from turnlog.agent.team.plans import Result
from turnlog.events.contracts import (
    Event,
    EventData,
    PlannedCall,
    RunDelegated,
    RunPlanned,
    RunSolved,
    RunToolAnswered,
    RunToolCalled,
    ToolCall,
)
from turnlog.events.log import Log
from turnlog.events.texts import storable
from turnlog.projectors.models.conversation.speech import RECALL_TOOL

STEPS = ("run_planned", "run_tool_called", "run_tool_answered", "run_delegated")
MAX_RESULT_CHARS = 200_000
AGENT_TYPE = re.compile(r"[a-z][a-z0-9_-]{0,63}")


@dataclass(slots=True)
class Journal:
    """The events of a run on the log: plans by depth, in order, and results by depth and call. called: calls whose
    start is recorded, by depth and id. entry: the agent that had the question first. seen: ids of the events read,
    because an event may be stored twice."""

    provider: str
    entry: str | None = None
    plans: dict[int, list[RunPlanned]] = field(default_factory=dict)
    results: dict[tuple[int, str], RunToolAnswered] = field(default_factory=dict)
    called: set[tuple[int, str]] = field(default_factory=set)
    seen: set[UUID] = field(default_factory=set)

    def add(self, event: Event) -> None:
        if event.id in self.seen:
            return
        self.seen.add(event.id)
        match data := event.data:
            case RunPlanned():
                self.plans.setdefault(data.depth, []).append(data)
                if data.depth == 0:
                    self.entry = data.agent
            case RunToolCalled():
                self.called.add((data.depth, data.call_id))
            case RunToolAnswered():
                self.results.setdefault((data.depth, data.call_id), data)

    def plan(self, depth: int, at: int) -> Completion | None:
        """Returns the model's recorded answer with a plan at this depth; None if there is none. at: 0 is the first plan
        at this depth."""
        if not self.has_plan(depth, at):
            return None
        planned = self.plans[depth][at]
        calls = tuple(
            ToolCall(id=call.id, name=call.name, arguments=arguments)
            for call, arguments in zip(planned.calls, planned.arguments, strict=False)
        )
        return Completion(
            text=planned.plan,
            tool_calls=calls,
            model=planned.model,
            provider=self.provider,
            tokens_in=planned.tokens_in,
            tokens_out=planned.tokens_out,
            cost_usd=planned.cost_usd,
            price_known=planned.price_known is not False,
            latency_ms=planned.latency_ms,
            finish_reason="tool_calls" if calls else "stop",
        )

    def has_plan(self, depth: int, at: int) -> bool:
        return at < len(self.plans.get(depth, ()))

    def was_called(self, depth: int, call_id: str) -> bool:
        return (depth, call_id) in self.called

    def result(self, depth: int, call_id: str) -> Result | None:
        """Returns the recorded result of a call at this depth; None if there is none. For recall_memory it is always
        None, so that recall runs again, because the receipt must name the chunks that it found."""
        answered = self.results.get((depth, call_id))
        if answered is None or answered.tool == RECALL_TOOL:
            return None
        try:
            value = json.loads(answered.result)
        except ValueError:  # the stored result was cut
            value = answered.result
        return Result(value, answered.is_error)


async def journal_of(log: Log, request: Event, seq: int, provider: str) -> Journal:
    """Returns the recorded steps of the run that answers a request. seq: the request's sequence.

    provider: the model's provider, as named in usage. Raises LogUnavailable.
    """
    journal = Journal(provider)
    if await log.thread_head(request.tenant, request.thread) == seq:
        return journal
    async for recorded in log.read_thread(request.tenant, request.thread, seq, types=STEPS):
        data = recorded.event.data
        if isinstance(data, RunPlanned | RunToolCalled | RunToolAnswered | RunDelegated) and data.run_id == request.id:
            journal.add(recorded.event)
    return journal


async def recorded_run(
    runtime: Runtime,
    author: Author,
    run_id: UUID,
    journal: Journal,
    routed_by: RoutedBy,
    pieces: AsyncGenerator[Piece],
) -> AsyncGenerator[Piece]:
    """Yields the pieces of a run, each once its event is on the log. Steps that the journal already has are not
    appended again.

    The call of a tool that reads is recorded together with its result; the call of a tool that writes is recorded
    before it starts. The end is recorded with the answer, by solved_event. Raises the errors of the pieces,
    EventTooLarge, LogFull, LogUnavailable.
    """
    depth, plans, agent, calls, returned = 0, 0, "", dict[str, ToolUsed](), list[ToolReturned]()

    async def append(*made: tuple[str, EventData]) -> None:
        events = [author.event(answer_id(run_id, part), data, run_id) for part, data in made]
        if new := [event for event in events if event.id not in journal.seen]:
            await runtime.log.append_in_order(new)

    async with aclosing(pieces):
        async for piece in pieces:
            match piece:
                case PhaseChanged():
                    agent = piece.agent
                case Planned():
                    if not journal.has_plan(depth, plans):
                        part = f"run/{depth}/plan" + (f"-{plans}" if plans else "")
                        await append((part, _planned(piece, run_id, depth, routed_by)))
                    plans += 1
                case AgentSwitched():
                    depth, plans = depth + 1, 0
                    handed = RunDelegated(
                        run_id=run_id, from_agent=piece.agent, to_agent=piece.to, depth=depth, task=piece.task
                    )
                    await append((f"run/{depth}/delegated", handed))
                case ToolUsed():
                    calls[piece.id] = piece
                    if piece.writes and (depth, piece.id) not in journal.results:
                        await append((f"run/{depth}/{piece.id}/called", _called(piece, run_id, agent, depth)))
                case ToolReturned():
                    returned.append(piece)
                    if piece.is_followed:
                        continue
                    await append(*_of_tools(returned, calls, run_id, agent, depth))
                    for earlier in returned[:-1]:
                        yield earlier
                    returned.clear()
            yield piece


def solved_event(author: Author, run_id: UUID, end: Solved, rounds: Sequence[Round], took_ms: float) -> Event:
    """Returns the event for the end of a run, to be recorded with its answer. The tokens of its plans are recorded with
    the plans.
    """
    last = rounds[-1].completion
    is_plan = "SOLVE" not in end.milliseconds
    data = RunSolved(
        run_id=run_id,
        agent=end.chain[-1],
        agents=end.chain,
        tools=tuple(storable(name[:200]) for name in end.tools),
        model=last.model,
        tokens_in=0 if is_plan else last.tokens_in,
        tokens_out=0 if is_plan else last.tokens_out,
        cost_usd=0 if is_plan else last.cost_usd,
        price_known=last.price_known,
        latency_ms=took_ms,
        routed=end.routed,
        milliseconds=dict(end.milliseconds),
        suggestions=tuple(map(storable, end.suggestions)),
    )
    return author.event(answer_id(run_id, "run/solved"), data, run_id)


def stopped_event(author: Author, run_id: UUID, agent: str, depth: int, returned: ToolReturned) -> Event:
    """Returns the event for a call that was running when its run was stopped."""
    part = f"run/{depth}/{returned.id}/answered"
    return author.event(answer_id(run_id, part), _answered(returned, run_id, agent, depth), run_id)


def failed_event(author: Author, run_id: UUID, chain: Sequence[str], code: str) -> Event:
    """Returns the event for the end of a run without an answer. code: of the error. chain: the agents that had the
    question, or the one that the request names. If that is not an agent's type, the default agent is recorded instead,
    because a failure must always be recorded."""
    agents = tuple(agent if AGENT_TYPE.fullmatch(agent) else DEFAULT_AGENT for agent in chain or (DEFAULT_AGENT,))
    data = RunSolved(run_id=run_id, agent=agents[-1], agents=agents, code=code)
    return author.event(answer_id(run_id, "run/solved"), data, run_id)


def _planned(piece: Planned, run_id: UUID, depth: int, routed_by: RoutedBy) -> RunPlanned:
    made = piece.completion
    return RunPlanned(
        run_id=run_id,
        agent=piece.agent,
        depth=depth,
        routed_by=routed_by if depth == 0 else "agent",
        plan=storable(made.text),
        calls=tuple(
            PlannedCall(id=call.id, name=call.name[:200], after=piece.after.get(call.id, ()))
            for call in made.tool_calls
        ),
        arguments=tuple(storable(call.arguments) for call in made.tool_calls),
        model=made.model,
        tokens_in=made.tokens_in,
        tokens_out=made.tokens_out,
        cost_usd=made.cost_usd,
        price_known=made.price_known,
        latency_ms=made.latency_ms,
    )


def _of_tools(
    returned: Sequence[ToolReturned], calls: Mapping[str, ToolUsed], run_id: UUID, agent: str, depth: int
) -> Iterator[tuple[str, EventData]]:
    """Yields the events of tools that returned; for a tool that writes, the call is already on the log."""
    for piece in returned:
        if not calls[piece.id].writes:
            yield f"run/{depth}/{piece.id}/called", _called(calls[piece.id], run_id, agent, depth)
        yield f"run/{depth}/{piece.id}/answered", _answered(piece, run_id, agent, depth)


def _called(used: ToolUsed, run_id: UUID, agent: str, depth: int) -> RunToolCalled:
    return RunToolCalled(
        run_id=run_id,
        agent=agent,
        depth=depth,
        call_id=used.id,
        tool=used.name[:200],
        arguments=storable(used.arguments),
    )


def _answered(returned: ToolReturned, run_id: UUID, agent: str, depth: int) -> RunToolAnswered:
    return RunToolAnswered(
        run_id=run_id,
        agent=agent,
        depth=depth,
        call_id=returned.id,
        tool=returned.name[:200],
        result=storable(returned.result[:MAX_RESULT_CHARS]),
        is_error=returned.is_error,
        latency_ms=returned.latency_ms,
    )
