"""Records metrics and spans of model and tool calls, by OpenTelemetry's conventions for generative AI (v0.1.0, in
development).

Content, such as messages, arguments and results, is never part of a span. Names of attributes are defined only here.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, ParamSpec, TypeVar

from turnlog.agent import metrics, recent_traces
from turnlog.agent.models.protocol import Completion, ModelIdentity
from turnlog.events import tracing

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
AGENT_NAME = "gen_ai.agent.name"
WORKFLOW_NAME = "gen_ai.workflow.name"
CONVERSATION = "gen_ai.conversation.id"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
TOOL_NAME = "gen_ai.tool.name"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOOL_TYPE = "gen_ai.tool.type"
CHAT, EMBEDDINGS, EXECUTE_TOOL = "chat", "embeddings", "execute_tool"
INVOKE_AGENT, INVOKE_WORKFLOW = "invoke_agent", "invoke_workflow"
FAILED = "tool_error"  # the error type of a tool whose result does not name one

P = ParamSpec("P")
R = TypeVar("R")


@contextlib.contextmanager
def answer(
    agent: str,
    tenant: str,
    thread: str | None,
    traceparent: str | None,
    is_final: Callable[[BaseException], bool] = lambda _: True,
    team: str | None = None,
) -> Iterator[Callable[[str], None]]:
    """Observes one attempt at an answer, as part of the trace of its request. thread: None if nothing is stored.

    is_final: returns whether an error ends the answer, so that no other attempt follows. team: name of the team whose
    agents answer, each in a separate span (`agent_at_work`). Yields a function that the block calls with the name of
    the agent that answered, if it is not `agent`.
    """
    operation, named = (INVOKE_AGENT, agent) if team is None else (INVOKE_WORKFLOW, team)
    about = {OPERATION: operation, AGENT_NAME if team is None else WORKFLOW_NAME: named}
    if thread is not None:
        about[CONVERSATION] = thread
    name = f"{operation} {named}"
    with (
        metrics.answering(agent, is_final) as answered_by,
        recent_traces.traced_request(tenant, name, traceparent, about),
        tracing.span(name, about, traceparent),
    ):
        yield answered_by


@contextlib.contextmanager
def agent_at_work(agent: str, thread: str) -> Iterator[Callable[[Completion], None]]:
    """Observes one agent's part of a team's run. Yields a function that the block calls with each completion of the
    model."""
    about = {OPERATION: INVOKE_AGENT, AGENT_NAME: agent, CONVERSATION: thread}
    name, spent = f"{INVOKE_AGENT} {agent}", {INPUT_TOKENS: 0, OUTPUT_TOKENS: 0}
    with recent_traces.traced(name, about) as tags, tracing.span(name, about) as span:

        def made(completion: Completion) -> None:
            spent[INPUT_TOKENS] += completion.tokens_in
            spent[OUTPUT_TOKENS] += completion.tokens_out
            tags.update(spent)
            if span is not None:
                span.set_attributes(spent)

        yield made


@contextlib.contextmanager
def chat(identity: ModelIdentity, asked_for: str | None) -> Iterator[Callable[[Completion], None]]:
    """Observes one call of a chat model with all its retries. Yields a function that the block calls with the
    completion. asked_for: the model that the request names.

    Callers may name any model, so all names other than the configured one share a metric label.
    """
    model = asked_for or identity.model
    about = {OPERATION: CHAT, PROVIDER: identity.provider, REQUEST_MODEL: model}
    name = f"{CHAT} {model}"
    with recent_traces.traced(name, about) as tags, tracing.span(name, about, None, False, is_client=True) as span:

        def done(made: Completion) -> None:
            label = model if model == identity.model else metrics.OTHER
            metrics.completed(label, made.latency_ms / 1_000, made.tokens_in, made.tokens_out)
            tags.update({INPUT_TOKENS: made.tokens_in, OUTPUT_TOKENS: made.tokens_out})
            if span is not None:
                span.set_attributes({RESPONSE_MODEL: made.model, FINISH_REASONS: [made.finish_reason or ""]})
                span.set_attributes({INPUT_TOKENS: made.tokens_in, OUTPUT_TOKENS: made.tokens_out})

        yield done


def embedding(call: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Decorates a method of an embedder: each call is timed and recorded as a span."""

    @functools.wraps(call)
    async def observed(*args: P.args, **kwargs: P.kwargs) -> R:
        identity: Any = args[0]
        about = {OPERATION: EMBEDDINGS, PROVIDER: identity.provider, REQUEST_MODEL: identity.model}
        name = f"{EMBEDDINGS} {identity.model}"
        with metrics.EMBEDDING_SECONDS.time(), tracing.span(name, about, is_client=True):
            return await call(*args, **kwargs)

    return observed


@contextlib.contextmanager
def tool(name: str, call_id: str, known: bool) -> Iterator[Callable[[str], None]]:
    """Observes one call of a tool. Yields a function that the block calls with the kind of a failure. known: False for
    a name that the model invented; such names share a label."""
    label = name if known else metrics.OTHER
    about = {OPERATION: EXECUTE_TOOL, TOOL_NAME: label, TOOL_CALL_ID: call_id, TOOL_TYPE: "function"}
    started = time.perf_counter()
    named = f"{EXECUTE_TOOL} {label}"
    with recent_traces.traced(named, about) as tags, tracing.span(named, about) as span:

        def failed(kind: str) -> None:
            tags["error.type"] = kind
            if span is not None:
                tracing.failed(span, kind)

        yield failed
    metrics.TOOL_LATENCY.labels(label).observe(time.perf_counter() - started)
