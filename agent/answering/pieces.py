"""The pieces of an answer while it is made: one set for every face, which maps them to events of its own."""

from dataclasses import dataclass
from typing import Any

from turnlog.agent.answering.recall_tool import ToolResult
from turnlog.agent.models.protocol import CallPiece, Completion
from turnlog.events.contracts import ToolCall


@dataclass(frozen=True, slots=True)
class Seen:
    """What the model is given with the question. tiers: {"tier", "tokens", "limit", "turns"} each; memories: ids of
    long-term memories; dropped: how many turns are left out. degraded: which rows are incomplete, while they are
    rebuilt."""

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
    """The agent runs a tool. arguments: JSON, as the model wrote them."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolReturned:
    """result: as the model gets it; is_error: it says what is wrong with the call."""

    id: str
    name: str
    result: str
    latency_ms: int
    is_error: bool


@dataclass(frozen=True, slots=True)
class Restarted:
    """The answer starts again: the text so far is void."""


@dataclass(frozen=True, slots=True)
class Round:
    """One call of the model and the results of the agent's tools that it asked for; without results it is the last."""

    completion: Completion
    results: tuple[tuple[ToolCall, ToolResult], ...] = ()


Piece = Text | CallPiece | ToolUsed | ToolReturned | Restarted | Round
