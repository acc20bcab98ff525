"""The interfaces of models: values and Protocols; the other modules here implement them."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from turnlog.events.contracts import ToolCall, UsageMetered
from turnlog.events.errors import TurnlogError

Vectors = NDArray[np.float32]
Purpose = Literal["answer", "summary", "topics", "embedding", "compression", "extraction", "compaction"]
CountTokens = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of one piece of model work. cost_usd is 0.0 if price_known is False."""

    provider: str
    model: str
    calls: int = 1
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float = 0.0
    price_known: bool = True
    latency_ms: float = 0.0

    def metered(self, purpose: Purpose, agent: str | None = None) -> UsageMetered:
        """Returns the same as the data of its event."""
        return UsageMetered(
            purpose=purpose,
            agent=agent,
            provider=self.provider,
            model=self.model,
            calls=self.calls,
            tokens_in=self.tokens_in,
            tokens_out=self.tokens_out,
            cost_usd=self.cost_usd,
            price_known=self.price_known,
            latency_ms=self.latency_ms,
        )

    def plus(self, more: "Usage") -> "Usage":
        """Returns the sum of both usages; `more` must be of the same model."""
        return replace(
            self,
            calls=self.calls + more.calls,
            tokens_in=self.tokens_in + more.tokens_in,
            tokens_out=self.tokens_out + more.tokens_out,
            cost_usd=self.cost_usd + more.cost_usd,
            latency_ms=self.latency_ms + more.latency_ms,
        )


Meter = Callable[[Usage], None]


class Named(Protocol):
    @property
    def model(self) -> str: ...

    @property
    def provider(self) -> str: ...


def failed_usage(model: Named, purpose: Purpose, agent: str | None, error: TurnlogError) -> UsageMetered:
    """Returns the usage of a failed call of the model, without tokens."""
    why = f"{error.code}: {error}"[:500]
    return UsageMetered(purpose=purpose, agent=agent, provider=model.provider, model=model.model, error=why)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """messages and tools in the OpenAI wire format. model: overrides the client's own.

    restart: a stream that breaks after its first token may be started over once; the caller then gets a
    Delta with `restarted` and must drop the text it has. Without it, and after that, a broken stream ends with the
    text that came, its finish_reason BROKE_OFF or TIME_UP.
    ends_at: when the answer has to end, by the clock of the event loop; None is the client's own limit.
    text_by: when the first of its text must have come, by the same clock; None is the client's own limit of silence.
    asker: who the call is for. Failures of one asker alone do not close the server to others.
    options: further fields of the OpenAI wire format.
    json_model: the answer has to be a JSON object of this model. A server that knows no such formats may answer
    otherwise.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    restart: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    json_model: type[BaseModel] | None = None
    ends_at: float | None = None
    text_by: float | None = None
    asker: str | None = None


def asker_of(tenant: str, user: str) -> str:
    """Returns the `asker` of a user's requests."""
    return f"{tenant}/{user}"


LOCAL = "local"  # the provider of models that run on this machine at no cost
CUT_OFF = "length"
# Finish reasons of answers that turnlog ended: time limit, broken stream, repetition, cancelled by the person who
# asked.
ENDED_HERE = TIME_UP, BROKE_OFF, REPETITION, CANCELLED = "timeout", "broken", "repetition", "cancelled"


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. tool_calls is not empty when the model wants tools run before it goes on.

    finish_reason: as the server said; CUT_OFF at the bound of the answer, REPETITION where it repeated itself.
    suggestions: what the person may ask next, of an agent's answer.
    """

    text: str
    tool_calls: tuple[ToolCall, ...]
    tokens_in: int
    tokens_out: int
    cost_usd: float
    model: str
    provider: str
    latency_ms: float
    price_known: bool = True
    finish_reason: str | None = None
    suggestions: tuple[str, ...] = ()

    @property
    def ended_early(self) -> bool:
        """Returns whether turnlog ended the answer, so that it may lack its end."""
        return self.finish_reason in ENDED_HERE

    def metered(self, agent: str) -> UsageMetered:
        """Returns the answer's usage; its error is the finish reason where the answer ended early."""
        usage = self.usage.metered("answer", agent)
        return usage.model_copy(update={"error": self.finish_reason}) if self.ended_early else usage

    @property
    def usage(self) -> Usage:
        return Usage(
            provider=self.provider,
            model=self.model,
            tokens_in=self.tokens_in,
            tokens_out=self.tokens_out,
            cost_usd=self.cost_usd,
            price_known=self.price_known,
            latency_ms=self.latency_ms,
        )


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of the tool call with this index in the answer. id and name come with its first piece."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Delta:
    """One step of a stream: a text piece, pieces of tool calls, or the end (`final`, always the last one, with
    assembled tool calls)."""

    text: str = ""
    calls: tuple[CallPiece, ...] = ()
    final: Completion | None = None
    restarted: bool = False


class ChatModel(Protocol):
    """Raises ModelUnavailable, ModelTimedOut or ModelRefused (errors.py)."""

    @property
    def model(self) -> str: ...

    @property
    def provider(self) -> str: ...

    def stream(self, request: ChatRequest) -> AsyncIterator[Delta]: ...

    async def complete(self, request: ChatRequest) -> Completion: ...


class Embedder(Protocol):
    """Texts to unit vectors. `model` is part of the cache key: the same model and passage give the same vector.

    dimensions is 0 until a remote model has answered once. embed_passages gives float32 (len(texts), dimensions),
    embed_query float32 (dimensions,). embed_documents: texts of a client, read whole, where embed_passages may read the
    beginning of each; raises TextTooLong. meter is called once with the call's usage. asker: as of a
    ChatRequest. Raises as ChatModel does.
    """

    @property
    def model(self) -> str: ...

    @property
    def provider(self) -> str: ...

    @property
    def dimensions(self) -> int: ...

    async def embed_passages(self, texts: Sequence[str], meter: Meter | None = None) -> Vectors: ...

    async def embed_documents(
        self, texts: Sequence[str], meter: Meter | None = None, asker: str | None = None
    ) -> Vectors: ...

    async def embed_query(self, text: str, asker: str | None = None) -> Vectors: ...

    async def ready(self) -> None:
        """Finds out which model makes the vectors if that is not known yet; raises nothing. Who compares `model`
        with stored vectors calls it first."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Written:
    """A text made by TextTasks, with what an event's `derivation` needs.

    extracted: the text is an offline extract because the model's own was refused; usage is the model's.
    """

    text: str
    prompt_hash: str
    usage: Usage
    extracted: bool = False


@dataclass(frozen=True, slots=True)
class Topics:
    """Topics with their number of mentions, the most important first."""

    topics: dict[str, int]
    prompt_hash: str
    usage: Usage


class TextTasks(Protocol):
    """The text work of the reactors. messages: one string a turn, `speaker: text`, in order.

    language: the name of the language to write in ("English", "Chinese"); None: that of the conversation.
    """

    async def summarise(
        self, messages: Sequence[str], previous_summary: str, max_tokens: int, language: str | None = None
    ) -> Written: ...

    async def compress(self, summary: str, target_tokens: int, language: str | None = None) -> Written: ...

    async def topics(self, texts: Sequence[str], limit: int) -> Topics: ...
