"""Makes an answer by a team of agents: routes, plans, runs and solves, and records every step on the log."""

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field, replace
from uuid import uuid5

from turnlog.agent.access.throttle.admission import note_handed_on
from turnlog.agent.answering.cancelling import said_so_far
from turnlog.agent.answering.pieces import (
    PhaseChanged,
    Planned,
    Progress,
    Round,
    Solved,
    ToolReturned,
    ToolUsed,
)
from turnlog.agent.answering.prepare import Prepared
from turnlog.agent.answering.recall_tool import ToolResult
from turnlog.agent.answering.record import Author
from turnlog.agent.answering.request import answer_id
from turnlog.agent.answering.run import check_not_empty, run
from turnlog.agent.context.titles import TASK
from turnlog.agent.models import observed
from turnlog.agent.models.protocol import ChatModel, ChatRequest, asker_of
from turnlog.agent.runtime import Runtime
from turnlog.agent.team.configured import Chosen, ServerTeam
from turnlog.agent.team.offline import FixedAnswer, OfflinePlanner
from turnlog.agent.team.plans import Delegation, Step
from turnlog.agent.team.recording import failed_event, journal_of, recorded_run, solved_event, stopped_event
from turnlog.agent.team.records import StoredRecords
from turnlog.agent.team.rewoo import NOT_CALLED, STOPPED, Rewoo
from turnlog.agent.team.suggestions import suggestions_of
from turnlog.agent.team.teams import Agent
from turnlog.agent.team.tools import Use
from turnlog.events.contracts import AnswerRequested, Event, RunToolAnswered, ToolCall, UsageMetered

Prepare = Callable[[Agent, Sequence[str]], Awaitable[Prepared]]
PATIENCE = 29 / 30  # share of the model's time limit, so that a failure reaches the asker before the limit ends


@dataclass(slots=True)
class TeamRun:
    """The run of a team of agents that answers one request.

    seq: the sequence of the request in the log. ends_at: the deadline, in the event loop's time. prepare: builds an
    agent's context, with notes for the agent. recall: runs the tool recall_memory. locale: the language of the
    suggested questions; None suggests no questions.

    These change while it runs: prepared: the context of the current agent. rounds, extra: the rounds and events to
    record after `make` has ended. chain: the agents that have handled the question, in order. recalled: results of
    recall_memory by call id. writing: calls of writing tools that have not returned, by call id. wrote: the names of
    the writing tools that were called. policy: the policy of the run; None before the run begins.
    """

    runtime: Runtime
    server: ServerTeam
    request: Event
    seq: int
    author: Author
    progress: Progress
    ends_at: float
    prepare: Prepare
    recall: Callable[[Prepared, ToolCall], Awaitable[ToolResult]]
    locale: str | None = None
    prepared: Prepared | None = None
    rounds: list[Round] = field(default_factory=list)
    extra: list[Event] = field(default_factory=list)
    chain: list[str] = field(default_factory=list)
    recalled: dict[str, ToolResult] = field(default_factory=dict)
    writing: dict[str, ToolUsed] = field(default_factory=dict)
    wrote: list[str] = field(default_factory=list)
    policy: Rewoo | None = None

    async def make(self, chosen: Chosen) -> None:
        """Makes the answer without repeating steps that are already on the log.

        Raises ModelError, EmptyAnswer, LogUnavailable.
        """
        began, model = time.perf_counter(), self._model(chosen)
        if chosen.answer is None:
            await self.server.tools.ready()
        journal = await journal_of(self.runtime.log, self.request, self.seq, model.provider)
        entry = journal.entry if journal.entry in self.server.team.agents else None
        self.policy = policy = Rewoo(
            self.server.team,
            self.server.tools,
            [entry or chosen.agent.type],
            self._request_for,
            self._use_for,
            journal,
            self.runtime.settings.model_timeout_s * PATIENCE,
            model.model,
            self.runtime.settings.context_window,
        )
        pieces = run(model, policy)
        recorded = recorded_run(self.runtime, self.author, self.request.id, journal, chosen.by, pieces)
        with ExitStack() as at_work:
            async with aclosing(recorded) as steps:
                async for piece in steps:
                    if isinstance(piece, PhaseChanged) and piece.agent not in self.chain[-1:]:
                        at_work.close()
                        made_for = at_work.enter_context(observed.agent_at_work(piece.agent, self.request.thread))
                        await self._begins(piece.agent)
                    elif isinstance(piece, ToolUsed) and piece.writes:
                        self.writing[piece.id] = piece
                    elif isinstance(piece, ToolReturned) and (written := self.writing.pop(piece.id, None)):
                        self.wrote.append(written.name)
                    elif isinstance(piece, Round):
                        made_for(piece.completion)
                        if not piece.results:
                            check_not_empty(piece.completion)
                        self.rounds.append(self._with_recalled(piece))
                    elif isinstance(piece, Solved):
                        suggested = self._suggestions(self.server.team.agents[piece.chain[-1]])
                        piece = replace(piece, routed=chosen.by == "router", suggestions=suggested)
                        took_ms = (time.perf_counter() - began) * 1000
                        self.extra.append(solved_event(self.author, self.request.id, piece, self.rounds, took_ms))
                    if chosen.answer is None or not isinstance(piece, PhaseChanged | Planned):
                        await self.progress.show(piece)

    async def _begins(self, agent: str) -> None:
        """Records that an agent handles the question. If another agent or the router handed the question to it, the
        throttle counts this."""
        self.chain.append(agent)
        named = isinstance(self.request.data, AnswerRequested) and self.request.data.agent
        was_handed_on = len(self.chain) > 1 or agent != (named or self.server.team.entry)
        if was_handed_on and self.request.user:
            id_ = answer_id(self.request.id, f"run/{len(self.chain) - 1}/handed-on")
            await note_handed_on(self.runtime, self.request.tenant, self.request.user, agent, id_)

    async def stop_writing(self) -> None:
        """Reports and records, for each running call of a writing tool, that its effect is unknown or that it was not
        called."""
        for used in self.writing.values():
            was_begun = self.policy is not None and used.id in self.policy.written
            result = json.dumps((STOPPED if was_begun else NOT_CALLED).value)
            returned = ToolReturned(used.id, used.name, result, 0, is_error=True)
            depth = len(self.chain) - 1
            self.extra.append(stopped_event(self.author, self.request.id, self.chain[-1], depth, returned))
            self.wrote += [used.name] if was_begun else []
            await self.progress.show(returned)

    def cut_short(self, code: str) -> bool:
        """Ends the run with the text so far; returns False if there is no text. code: the code of the error that ends
        the run."""
        if not self.chain:
            return False
        agent = self.server.team.agents[self.chain[-1]]
        completion = said_so_far(self.runtime, self.prepared, self.progress, agent.model)
        if completion is None:
            return False
        self.rounds.append(Round(completion, agent=agent.type))
        self.extra.append(failed_event(self.author, self.request.id, self.chain, code))
        return True

    def ended_by(self, code: str) -> list[Event]:
        """Returns the events that end a run without an answer, with its usage so far. code: the code of the error."""
        used = list[Event]()
        for number, made in enumerate(self.rounds):
            usage = made.completion.metered(made.agent or self.chain[-1])
            used.append(self.author.event(answer_id(self.request.id, f"usage-{number}"), usage, self.request.id))
        tools = [event for event in self.extra if isinstance(event.data, UsageMetered | RunToolAnswered)]
        return [*used, *tools, failed_event(self.author, self.request.id, self.chain, code)]

    def _model(self, chosen: Chosen) -> ChatModel:
        if chosen.answer is not None:
            return FixedAnswer(chosen.answer)
        return OfflinePlanner(self.server.team) if self.runtime.settings.offline else self.runtime.models.chat

    def _suggestions(self, agent: Agent) -> tuple[str, ...]:
        return () if self.locale is None else suggestions_of(agent, self.rounds, self.locale)

    async def _request_for(self, agent: Agent, delegation: Delegation | None) -> ChatRequest:
        """Returns the request to the model for an agent. The task of a delegation becomes a note before the
        question."""
        notes = [] if delegation is None else [_handed_over(delegation)]
        self.prepared = await self.prepare(agent, notes)
        await self.progress.show(self.prepared.seen)
        return ChatRequest(
            self.prepared.context.messages,
            (),
            agent.model,
            agent.temperature,
            agent.max_tokens,
            restart=True,
            ends_at=self.ends_at,
            asker=asker_of(self.request.tenant, self._user),
        )

    def _use_for(self, agent: Agent, depth: int, step: Step) -> Use:
        effect = answer_id(self.request.id, f"run/{depth}/step-{step.number}/effect")
        records = StoredRecords(self.runtime, self.request.tenant, self._user, self.server.team.name)
        offline = self.runtime.settings.offline
        write = None if offline else lambda instruction, text: self._write(agent, step, instruction, text)
        asker = asker_of(self.request.tenant, self._user)
        return Use(
            self._user,
            self.request.time,
            effect,
            records,
            self.server.web,
            write,
            asker,
            lambda arguments: self._recall(step, arguments),
            self.request.tenant,
        )

    async def _recall(self, step: Step, arguments: str) -> ToolResult:
        assert self.prepared is not None, "a tool runs after its plan"
        call = ToolCall(id=step.call_id, name=step.tool, arguments=arguments)
        self.recalled[step.call_id] = result = await self.recall(self.prepared, call)
        return result

    def _with_recalled(self, made: Round) -> Round:
        """Returns the round with the full results of recall_memory, whose memories the receipt lists."""
        results = tuple((call, self.recalled.get(call.id, result)) for call, result in made.results)
        return replace(made, results=results)

    async def _write(self, agent: Agent, step: Step, instruction: str, text: str) -> str:
        """Lets the model write a text for a tool and returns it; the usage is recorded with the answer."""
        messages = [{"role": "system", "content": instruction}, {"role": "user", "content": text}]
        asker = asker_of(self.request.tenant, self._user)
        made = await self.runtime.models.chat.complete(
            ChatRequest(messages, (), agent.model, max_tokens=agent.max_tokens, ends_at=self.ends_at, asker=asker)
        )
        used = uuid5(self.request.id, f"tool-usage/{step.call_id}/{len(self.extra)}")
        self.extra.append(self.author.event(used, made.metered(agent.type), self.request.id))
        return made.text

    @property
    def _user(self) -> str:
        return self.request.user or self.request.thread


def _handed_over(delegation: Delegation) -> str:
    about = "".join(f"\n{name}: {value}" for name, value in delegation.context.items())
    return f"{TASK}\n{delegation.task}{about}\n[END OF TASK]"
