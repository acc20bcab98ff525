"""Defines the pieces of an answer in progress; each interface converts them to its own events.

A process that asks but does not answer receives them as core NATS messages; each message is a ProgressStep as JSON.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from nats.aio.client import Client
from pydantic import BaseModel, Field

from turnlog.agent.answering.recall_tool import ToolResult
from turnlog.agent.models.protocol import CallPiece, Completion
from turnlog.events.contracts import (
    EventData,
    RunDelegated,
    RunPlanned,
    RunSolved,
    RunToolAnswered,
    RunToolCalled,
    ToolCall,
)


@dataclass(frozen=True, slots=True)
class Seen:
    """The context that the model gets with the question. tiers: a dict {"tier", "tokens", "limit", "turns"} for each
    tier. memories: ids of long-term memories. dropped: number of turns that are left out. degraded: why the context may
    be incomplete; None if nothing is missing."""

    tiers: list[dict[str, Any]]
    memories: list[str]
    dropped: int
    degraded: str | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolUsed:
    """The agent runs a tool. arguments: JSON, as the model wrote them. writes: True if the tool changes stored data."""

    id: str
    name: str
    arguments: str
    writes: bool = False


@dataclass(frozen=True, slots=True)
class ToolReturned:
    """A tool has returned. result: as the model gets it; is_error: the result describes an error of the call.
    is_followed: the next piece is another tool's result, which is recorded together with this one."""

    id: str
    name: str
    result: str
    latency_ms: int
    is_error: bool
    is_followed: bool = False


@dataclass(frozen=True, slots=True)
class Restarted:
    """The answer restarts: the text so far is void."""


@dataclass(frozen=True, slots=True)
class Round:
    """One call of the model and the results of the tools that it requested; the last round has no results. agent: the
    team's agent; None if one agent makes the whole answer."""

    completion: Completion
    results: tuple[tuple[ToolCall, ToolResult], ...] = ()
    agent: str | None = None


Phase = Literal["PLAN", "EXECUTE", "SOLVE"]


@dataclass(frozen=True, slots=True)
class PhaseChanged:
    """An agent of a team begins a phase."""

    agent: str
    phase: Phase


@dataclass(frozen=True, slots=True)
class Planned:
    """An agent has made a plan. thought: the model's text beside its calls. after: {call id: ids of the calls that it
    waits for}. If the plan is already the answer, its text follows."""

    agent: str
    thought: str
    completion: Completion
    after: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class PlanShown:
    """A plan in the form shown to people."""

    agent: str
    thought: str


@dataclass(frozen=True, slots=True)
class AgentSwitched:
    """Another agent takes over the question. task: its instructions."""

    agent: str
    to: str
    task: str


@dataclass(frozen=True, slots=True)
class Solved:
    """A run of a team has ended. chain: the agents that handled the question. tools: the tools that were called, in the
    order of the plans. milliseconds: time per phase, over all agents. routed: the first agent was chosen without a
    model. suggestions: next questions."""

    message: str
    chain: tuple[str, ...]
    tools: tuple[str, ...]
    milliseconds: Mapping[Phase, int]
    routed: bool = False
    suggestions: tuple[str, ...] = ()


Piece = Text | CallPiece | ToolUsed | ToolReturned | Restarted | Round | PhaseChanged | Planned | AgentSwitched | Solved


Kind = Literal[
    "start", "context", "text", "tool", "result", "restart", "phase", "plan", "switch", "run", "end", "error"
]


class ProgressStep(BaseModel):
    """A step of a running answer. Never stored: the final answer is the event in the log."""

    kind: Kind
    text: str = ""
    attempt: int = Field(1, description="Higher after a restart, which discards what was shown before")
    final: bool = Field(False, description="No further attempt follows an error")
    code: str | None = Field(None, description="Of an error")
    retry_after_s: float | None = Field(None, description="Of an error: after how long to ask again")
    finish_reason: str | None = Field(None, description="Of the end: why the model ended")
    context: Seen | None = None
    id: str | None = Field(None, description="Of a tool's call, with name and arguments, and of its result")
    name: str | None = None
    arguments: str | None = Field(None, description="JSON, as the model wrote them")
    latency_ms: int | None = Field(None, description="Of a tool's call")
    is_error: bool = Field(False, description="Whether a tool's result describes an error of the call")
    agent: str | None = Field(None, description="Of a phase, a plan and a switch: its agent")
    phase: Phase | None = Field(None, description="PLAN, EXECUTE or SOLVE")
    to: str | None = Field(None, description="Of a switch: the agent that takes over")
    chain: list[str] | None = Field(None, description="Of a run that ended: the agents that had the question")
    tools: list[str] | None = Field(None, description="Of a run that ended: the tools that were called")
    milliseconds: dict[Phase, int] | None = Field(None, description="Of a run that ended: milliseconds in each phase")
    routed: bool = Field(False, description="Of a run that ended: whether rules, not a model, chose its agent")
    suggestions: list[str] = Field([], description="Of a run that ended: what the person may ask next")


@dataclass(frozen=True, slots=True)
class Progress:
    """Publishes the steps of one answer for subscribers. A lost step does no harm, because the answer is on the log.

    Steps are core NATS messages and never stored. At a start or restart, a subscriber drops the text so far, which
    comes from a failed attempt. Further fields by kind: context: "context"; tool: "id", "name", "arguments"; result:
    "id", "name", "latency_ms", "is_error", and the tool's result as "text"; error: "code", "retry_after_s"; end:
    "finish_reason"; for phase, plan, switch and run see ProgressStep.

    said: the text of the current round; if the answer is cancelled, it is recorded as the last turn.
    """

    nc: Client
    subject: str
    attempt: int
    said: list[str] = field(default_factory=list)

    async def tell(self, kind: Kind, text: str = "", final: bool = False, **more: Any) -> None:
        step = {"kind": kind, "text": text, "attempt": self.attempt, "final": final, **more}
        body = json.dumps(step, ensure_ascii=False)
        await self.nc.publish(self.subject, body.encode(errors="replace"))

    async def show(self, piece: Piece | Seen) -> None:
        """Publishes a piece of the answer as a step; `piece_of` turns it back into the piece."""
        match piece:
            case Seen():
                await self.tell("context", context=asdict(piece))
            case Text(text):
                self.said.append(text)
                await self.tell("text", text)
            case ToolUsed(id_, name, arguments):
                await self.tell("tool", f"{name} {arguments}", id=id_, name=name, arguments=arguments)
            case ToolReturned(id_, name, result, took, is_error):
                await self.tell("result", result, id=id_, name=name, latency_ms=took, is_error=is_error)
            case Restarted():
                self.said.clear()
                await self.tell("restart")
            case PhaseChanged(agent, phase):
                await self.tell("phase", agent=agent, phase=phase)
            case Planned(agent, thought):
                await self.tell("plan", thought, agent=agent)
            case AgentSwitched(agent, to, task):
                await self.tell("switch", task, agent=agent, to=to)
            case Solved():
                ended = asdict(piece)
                await self.tell("run", ended.pop("message"), **ended)
            case Round():
                self.said.clear()
            case CallPiece():
                pass  # subscribers see only complete calls


Shown = Seen | Text | ToolUsed | ToolReturned | Restarted | PhaseChanged | PlanShown | AgentSwitched | Solved


def piece_of(step: ProgressStep) -> Shown | None:
    """Returns the piece that a step shows; None for the end, errors, and incomplete steps."""
    match step:
        case ProgressStep(kind="context", context=Seen() as seen):
            return seen
        case ProgressStep(kind="text", text=text):
            return Text(text)
        case ProgressStep(kind="tool", id=str(id_), name=str(name), arguments=str(arguments)):
            return ToolUsed(id_, name, arguments)
        case ProgressStep(kind="result", id=str(id_), name=str(name), latency_ms=int(took)):
            return ToolReturned(id_, name, step.text, took, step.is_error)
        case ProgressStep(kind="phase", agent=str(agent), phase=str(phase)):
            return PhaseChanged(agent, phase)
        case ProgressStep(kind="plan", agent=str(agent)):
            return PlanShown(agent, step.text)
        case ProgressStep(kind="switch", agent=str(agent), to=str(to)):
            return AgentSwitched(agent, to, step.text)
        case ProgressStep(kind="run", chain=list(chain), tools=list(tools)):
            spent, suggestions = step.milliseconds or {}, tuple(step.suggestions)
            return Solved(step.text, tuple(chain), tuple(tools), spent, step.routed, suggestions)
        case ProgressStep(kind="start" | "restart"):
            return Restarted()
    return None


def piece_of_event(data: EventData, answer: str) -> Shown | None:
    """Returns the piece that shows a recorded event of a run. answer: the run's answer. None for a failed run, a plan
    from rules, and other events."""
    match data:
        case RunPlanned(model="rules"):
            return None  # a fixed answer without a plan
        case RunPlanned():
            return PlanShown(data.agent, data.plan)
        case RunToolCalled():
            return ToolUsed(data.call_id, data.tool, data.arguments)
        case RunToolAnswered():
            return ToolReturned(data.call_id, data.tool, data.result, round(data.latency_ms), data.is_error)
        case RunDelegated():
            return AgentSwitched(data.from_agent, data.to_agent, data.task)
        case RunSolved(code=None):
            chain = data.agents or (data.agent,)
            return Solved(answer, chain, data.tools, data.milliseconds, data.routed, data.suggestions)
    return None
