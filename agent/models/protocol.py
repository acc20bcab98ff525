"""Defines the interfaces of models, as values and Protocols; the other modules here implement them."""

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
    """The tokens, cost and duration of one or more calls of a model. cost_usd is 0.0 if price_known is False."""

    provider: str
    model: str
    calls: int = 1
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float = 0.0
    price_known: bool = True
    latency_ms: float = 0.0

    def metered(self, purpose: Purpose, agent: str | None = None) -> UsageMetered:
        """Returns the usage as the data of a UsageMetered event."""
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
        """Returns the sum of both usages; `more` must be usage of the same model."""
        return replace(
            self,
            calls=self.calls + more.calls,
            tokens_in=self.tokens_in + more.tokens_in,
            tokens_out=self.tokens_out + more.tokens_out,
            cost_usd=self.cost_usd + more.cost_usd,
            latency_ms=self.latency_ms + more.latency_ms,
        )


Meter = Callable[[Usage], None]


class ModelIdentity(Protocol):
    """The name of a model and of the provider that serves it."""

    @property
    def model(self) -> str: ...

    @property
    def provider(self) -> str: ...


def failed_usage(model: ModelIdentity, purpose: Purpose, agent: str | None, error: TurnlogError) -> UsageMetered:
    """Returns the usage of a failed call of the model, without tokens."""
    why = f"{error.code}: {error}"[:500]
    return UsageMetered(purpose=purpose, agent=agent, provider=model.provider, model=model.model, error=why)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request to a chat model. messages, tools: in the OpenAI wire format. model: overrides the model of the client.

    restart: a stream that breaks after its first token may be restarted once; the caller then gets a Delta with
    `restarted` and must drop the text so far. Otherwise a broken stream ends with the text received, with the
    finish_reason BROKE_OFF or TIME_UP. ends_at: the time by which the answer must end, by the clock of the event loop;
    None means the client's own limit. text_by: the time by which the first text must arrive, by the same clock; None
    means the client's own limit. asker: who the call is for; failures of one asker alone do not block the server for
    others. options: further fields of the OpenAI wire format. json_model: the Pydantic model of the JSON object that
    the answer must be; a server without structured output may answer in another form.
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
# Finish reasons of answers that turnlog ended: time limit, broken stream, repetition, cancelled by the user.
ENDED_HERE = TIME_UP, BROKE_OFF, REPETITION, CANCELLED = "timeout", "broken", "repetition", "cancelled"


@dataclass(frozen=True, slots=True)
class Completion:
    """A complete answer. tool_calls: the tools that the model wants to run before it continues.

    finish_reason: the server's reason, CUT_OFF at the token limit, or a reason of ENDED_HERE. suggestions: questions
    that the user may ask next, if an agent answered.
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
        """True if turnlog ended the answer, so its last part may be missing."""
        return self.finish_reason in ENDED_HERE

    def metered(self, agent: str) -> UsageMetered:
        """Returns the usage of the answer; if the answer ended early, its error is the finish reason."""
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
    """A piece of a streamed tool call. index: the position of the call in the answer. id, name: only in the call's
    first piece."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Delta:
    """One step of a stream: a piece of text, pieces of tool calls, or the end. final: the complete answer, in the last
    step only."""

    text: str = ""
    calls: tuple[CallPiece, ...] = ()
    final: Completion | None = None
    restarted: bool = False


class ChatModel(Protocol):
    """A chat model. Its methods raise ModelUnavailable, ModelTimedOut or ModelRefused (errors.py)."""

    @property
    def model(self) -> str: ...

    @property
    def provider(self) -> str: ...

    def stream(self, request: ChatRequest) -> AsyncIterator[Delta]: ...

    async def complete(self, request: ChatRequest) -> Completion: ...


class Embedder(Protocol):
    """Converts texts to unit vectors. `model` is part of the cache key: the same model and passage must lead to the
    same vector.

    dimensions is 0 until a remote model has answered once. embed_passages and embed_documents return float32
    (len(texts), dimensions), embed_query float32 (dimensions,). embed_passages may read only the beginning of each
    text; embed_documents reads the complete texts of a client and raises TextTooLong. meter: called once with the usage
    of the call. asker: as in a ChatRequest. Raises the errors of ChatModel.
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
        """Determines which model makes the vectors if that is not known yet; raises no errors. Call it before comparing
        `model` with stored vectors."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Written:
    """A text made by TextTasks, with the values that the `derivation` of an event needs.

    extracted: the text is an offline extract because the model's text was refused; usage is that of the model.
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
    """Writes summaries and topics of conversations. messages: one string per turn, `speaker: text`, in order.

    language: the name of the language to write in ("English", "Chinese"); None means the conversation's language.
    """

    async def summarise(
        self, messages: Sequence[str], previous_summary: str, max_tokens: int, language: str | None = None
    ) -> Written: ...

    async def compress(self, summary: str, target_tokens: int, language: str | None = None) -> Written: ...

    async def topics(self, texts: Sequence[str], limit: int) -> Topics: ...
