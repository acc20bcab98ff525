"""Metrics and spans of model and tool calls, by OpenTelemetry's conventions for generative AI (v0.1.0, in development).

Content, such as messages, arguments and results, is never part of a span. Names of attributes are only here.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, ParamSpec, Protocol, TypeVar

from turnlog.agent import metrics, recent_traces
from turnlog.agent.models.protocol import Completion
from turnlog.events import tracing

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
AGENT_NAME = "gen_ai.agent.name"
CONVERSATION = "gen_ai.conversation.id"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
TOOL_NAME = "gen_ai.tool.name"
TOOL_CALL_ID = "gen_ai.tool.call.id"
CHAT, EMBEDDINGS, INVOKE_AGENT, EXECUTE_TOOL = "chat", "embeddings", "invoke_agent", "execute_tool"

P = ParamSpec("P")
R = TypeVar("R")


class Named(Protocol):
    @property
    def model(self) -> str: ...

    @property
    def provider(self) -> str: ...


@contextlib.contextmanager
def answer(
    agent: str,
    tenant: str,
    thread: str | None,
    traceparent: str | None,
    is_final: Callable[[BaseException], bool] = lambda _: True,
) -> Iterator[None]:
    """One try of an agent's answer; part of the trace of the request for it. thread: None where nothing is stored.

    is_final: whether an error ends the answer, so that no other try follows.
    """
    about = {OPERATION: INVOKE_AGENT, AGENT_NAME: agent}
    if thread is not None:
        about[CONVERSATION] = thread
    name = f"{INVOKE_AGENT} {agent}"
    with (
        metrics.answering(agent, is_final),
        recent_traces.traced_request(tenant, name, traceparent, about),
        tracing.span(name, about, traceparent),
    ):
        yield


@contextlib.contextmanager
def chat(named: Named, asked_for: str | None) -> Iterator[Callable[[Completion], None]]:
    """One call with all its retries; the block passes on the completion that it gets. asked_for: the request's model.

    The caller of an API may ask for any model, so that other names than the configured one share a label.
    """
    model = asked_for or named.model
    about = {OPERATION: CHAT, PROVIDER: named.provider, REQUEST_MODEL: model}
    name = f"{CHAT} {model}"
    with recent_traces.traced(name, about) as tags, tracing.span(name, about, current=False) as span:

        def done(made: Completion) -> None:
            label = model if model == named.model else metrics.OTHER
            metrics.completed(label, made.latency_ms / 1_000, made.tokens_in, made.tokens_out)
            tags.update({INPUT_TOKENS: made.tokens_in, OUTPUT_TOKENS: made.tokens_out})
            if span is not None:
                span.set_attributes({RESPONSE_MODEL: made.model, FINISH_REASONS: [made.finish_reason or ""]})
                span.set_attributes({INPUT_TOKENS: made.tokens_in, OUTPUT_TOKENS: made.tokens_out})

        yield done


def embedding(call: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """A decorator of an embedder's methods."""

    @functools.wraps(call)
    async def observed(*args: P.args, **given: P.kwargs) -> R:
        named: Any = args[0]
        about = {OPERATION: EMBEDDINGS, PROVIDER: named.provider, REQUEST_MODEL: named.model}
        with metrics.EMBEDDING_SECONDS.time(), tracing.span(f"{EMBEDDINGS} {named.model}", about):
            return await call(*args, **given)

    return observed


@contextlib.contextmanager
def tool(name: str, call_id: str, known: bool) -> Iterator[None]:
    """known: models invent names too, which share a label."""
    label = name if known else metrics.OTHER
    about = {OPERATION: EXECUTE_TOOL, TOOL_NAME: label, TOOL_CALL_ID: call_id}
    started = time.perf_counter()
    with recent_traces.traced(f"{EXECUTE_TOOL} {label}", about), tracing.span(f"{EXECUTE_TOOL} {label}", about):
        yield
    metrics.TOOL_LATENCY.labels(label).observe(time.perf_counter() - started)
