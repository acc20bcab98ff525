"""A conversation as a graph: route → recall → (retrieve) → generate → persist.

Its turns are the messages that its checkpointer stores. generate prepares and runs an answer as turnlog's own agent
does, with what the graph's store has found; persist records what the answer was made from.
"""

import asyncio
import contextlib
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Required, TypedDict
from uuid import NAMESPACE_OID, UUID, uuid4, uuid5

import psycopg
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime as Run
from langgraph.store.base import BaseStore
from pydantic import TypeAdapter

from turnlog.agent.answering.pieces import Restarted, Round, Text
from turnlog.agent.answering.prepare import READS, AnswerBasis, ContextRequest, prepare, reading
from turnlog.agent.answering.record import Answer, Author, record
from turnlog.agent.answering.run import run
from turnlog.agent.answering.thread_context import context_settings
from turnlog.agent.context import Context, ContextInput, WindowTooSmall, build_context, counter_for
from turnlog.agent.context.cut import cut_end
from turnlog.agent.context.titles import DOCUMENTS, MEMORIES
from turnlog.agent.context.window import window_for
from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.models.protocol import ChatRequest
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings, application_settings
from turnlog.consumers.langgraph.checkpoint.messages import to_messages, turn_of
from turnlog.consumers.langgraph.checkpoint.saver import TurnlogSaver
from turnlog.consumers.langgraph.store.store import TurnlogStore
from turnlog.consumers.runtime import in_own_thread, opened, projecting
from turnlog.events.contracts import TurnRecorded, UsageMetered
from turnlog.events.errors import NotFound, TurnlogError
from turnlog.events.local_time import now_there
from turnlog.projectors.models.conversation.message import Message, thread_messages
from turnlog.projectors.models.store.lookup import MEMORIES as MEMORIES_LABEL
from turnlog.projectors.models.store.lookup import memories_of

SOURCE, GENERAL = "turnlog/graph", "general"
THRESHOLD, PATTERN_SCORE, KEYWORD_SCORE, MANY_KEYWORDS, MANY_SCORE = 0.7, 0.5, 0.15, 3, 0.2
PATIENCE_S = 10.0
MEMORIES_AT_MOST = 5
ITEM_TOKENS, NOTES_TOKENS, NOTES_SHARE = 300, 4_000, 8  # of an item, and of all of them: a share of the window
NO_STORE = "the graph has no store"
NO_VECTORS = "the store searched without vectors: what it found may have nothing to do with the question"
NOT_ON_LOG = "a message that the model was given is not a turn on the log; is the checkpointer a TurnlogSaver?"
STARTS_AGAIN = "\n[the answer starts again]\n"
_BASIS = TypeAdapter(AnswerBasis)
Update = dict[str, Any]
# What the stream `custom` shows of a piece of the answer.
SHOWN: dict[type[Any], Callable[[Any], dict[str, str]]] = {
    Text: lambda piece: {"kind": "text", "text": piece.text},
    Restarted: lambda _: {"kind": "restart"},
}


class ConversationState(TypedDict, total=False):
    """Plain JSON but for the messages, so that any checkpointer can keep it.

    conversation_id: the checkpointer's thread_id. agent_type: who answers, `general` where no route matched.
    memory_context: what the store knows of the user, one memory a line. retrieval_results: {"namespace", "key", "text",
    "score"}, best first. answer: of the last message, until it is recorded: its id, its usage and what it was made
    from, None where that cannot be said. debug: node → why a part is missing, or what it chose.
    """

    messages: Required[Annotated[list[AnyMessage], add_messages]]
    user_id: Required[str]
    conversation_id: Required[str]
    session_id: str
    kb_prefix: str | None
    agent_type: str
    use_retrieval: bool
    memory_context: str | None
    retrieval_results: list[dict[str, Any]] | None
    answer: dict[str, Any] | None
    debug: dict[str, str]


Graph = CompiledStateGraph[ConversationState, None, ConversationState, ConversationState]


class InvalidRoute(TurnlogError, ValueError):
    """A route cannot be used as it is."""

    code = "invalid-route"


@dataclass(frozen=True, slots=True)
class Route:
    """Who answers, and from which documents. patterns: regular expressions, case does not matter; keywords: words, in
    any language. kb_prefix: the store's namespace of its documents; empty or `general`: none. Raises InvalidRoute."""

    name: str
    keywords: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    kb_prefix: str = ""
    agent_type: str = GENERAL

    def __post_init__(self) -> None:
        if "." in self.kb_prefix or self.kb_prefix == MEMORIES_LABEL:
            raise InvalidRoute(
                f"route {self.name!r} looks up documents in {self.kb_prefix!r}; name one label of the store, without "
                f"dots and other than {MEMORIES_LABEL!r}, which holds what belongs to single users"
            )
        for pattern in self.patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                problem = f"route {self.name!r} has a pattern {pattern!r} that is not a regular expression: {error}"
                raise InvalidRoute(problem) from error

    def score(self, text: str) -> float:
        """0 to 1: a pattern that matches counts 0.5, each keyword 0.15, three or more keywords 0.2 more. Latin keywords
        are found whole ("ps" is not in "tips"), also right beside Chinese."""
        words = (
            rf"(?<![a-z0-9]){re.escape(one)}(?![a-z0-9])" if one.isascii() else re.escape(one) for one in self.keywords
        )
        found = sum(bool(re.search(word, text, re.IGNORECASE | re.ASCII)) for word in words)
        matches = any(re.search(pattern, text, re.IGNORECASE) for pattern in self.patterns)
        total = PATTERN_SCORE * matches + KEYWORD_SCORE * found + MANY_SCORE * (found >= MANY_KEYWORDS)
        return min(1.0, total)


def conversation_graph(
    runtime: Runtime,
    routes: Sequence[Route] = (),
    *,
    checkpointer: BaseCheckpointSaver[str] | None = None,
    store: BaseStore | None = None,
) -> Graph:
    """Invoke it with thread_id = the state's conversation_id, or through `converse`. routes: the first one of the
    highest score of at least THRESHOLD answers; without routes no documents are looked up."""
    nodes, graph = Nodes(runtime, routes), StateGraph(ConversationState)
    for name in ("route", "recall", "retrieve", "generate", "persist"):
        graph.add_node(name, getattr(nodes, name))
    for first, then in ((START, "route"), ("route", "recall"), ("retrieve", "generate"), ("generate", "persist")):
        graph.add_edge(first, then)
    graph.add_conditional_edges("recall", _after_recall)
    return graph.compile(checkpointer=checkpointer, store=store, name="conversation")


def _after_recall(state: ConversationState) -> Literal["retrieve", "generate"]:
    return "retrieve" if state.get("use_retrieval") else "generate"


@dataclass(frozen=True, slots=True)
class Nodes:
    """Each takes the state and returns the parts that change."""

    runtime: Runtime
    routes: Sequence[Route] = ()

    async def route(self, state: ConversationState) -> Update:
        """Decides for every message; what the turn before looked up is cleared."""
        text = question(state)
        best = max(self.routes, key=lambda one: one.score(text), default=None)
        chosen = best if best is not None and best.score(text) >= THRESHOLD else Route(GENERAL)
        prefix = chosen.kb_prefix or GENERAL
        found = {"kb_prefix": prefix, "agent_type": chosen.agent_type, "use_retrieval": prefix != GENERAL}
        return {**found, "retrieval_results": None, "answer": None, "debug": {"route": chosen.name}}

    async def recall(self, state: ConversationState, *, runtime: Run[None]) -> Update:
        """Memories that somebody put into the store; what turnlog itself knows comes with the context."""
        user, lines, why = state["user_id"], list[str](), ""
        if runtime.store is not None and user:
            found, why = await _searched(runtime.store, memories_of(user), question(state), MEMORIES_AT_MOST)
            lines = [text for one in found if (text := " ".join(one["text"].split()))]
        return {"memory_context": "\n".join(lines) or None, "debug": _told(state, "recall memories", why)}

    async def retrieve(self, state: ConversationState, *, runtime: Run[None]) -> Update:
        """Documents under kb_prefix. Those that no vector ranked are left out: they are merely the newest."""
        found, why = list[dict[str, Any]](), NO_STORE
        if runtime.store is not None:
            prefix = (state.get("kb_prefix") or "",)
            top_k = self.runtime.settings.recall_top_k
            found, why = await _searched(runtime.store, prefix, question(state), top_k)
        near = [one for one in found if one["score"] is not None]
        return {"retrieval_results": near, "debug": _told(state, "retrieve", why)}

    async def generate(self, state: ConversationState, *, runtime: Run[None]) -> Update:
        """Streams each piece as SHOWN says. Raises ModelError and WindowTooSmall; the state keeps the question then,
        and the run can be resumed."""
        context, basis, why = await self._prepared(state)
        made: Round | None = None
        async with contextlib.aclosing(
            run(self.runtime.models.chat, ChatRequest(context.messages, restart=True))
        ) as pieces:
            async for piece in pieces:
                if (show := SHOWN.get(type(piece))) is not None:
                    runtime.stream_writer(show(piece))
                made = piece if isinstance(piece, Round) else made
        assert made is not None, "an answer ends with a round"
        said, agent = made.completion, state.get("agent_type", GENERAL)
        total = said.tokens_in + said.tokens_out
        message = AIMessage(
            said.text,
            id=str(uuid4()),
            usage_metadata={"input_tokens": said.tokens_in, "output_tokens": said.tokens_out, "total_tokens": total},
            response_metadata={
                "model_name": said.model,
                "model_provider": said.provider,
                "finish_reason": said.finish_reason,
                "agent": agent,
                "context_hash": context.receipt.context_hash,
            },
        )
        answer = {
            "id": message.id,
            "usage": said.metered(agent).model_dump(mode="json"),
            "basis": None if basis is None else _BASIS.dump_python(basis, mode="json"),
        }
        return {"messages": [message], "answer": answer, "debug": _told(state, "generate", why)}

    async def persist(self, state: ConversationState) -> Update:
        """Records the receipt, the usage and which memories were read, once however often it runs. Raises
        LogUnavailable, LogFull; the answer stays in the state and the run can be resumed."""
        made, said = state.get("answer"), next(iter(state["messages"][-1:]), None)
        if not made or not isinstance(said, AIMessage) or said.id != made["id"]:
            return {}
        log, place = self.runtime.log, (self.runtime.settings.tenant, state["conversation_id"])
        author, user = Author(SOURCE, *place, state["user_id"] or None), state["user_id"]
        usage_id, receipt_id = (
            uuid5(NAMESPACE_OID, "/".join((part, *place, said.id or ""))) for part in ("usage", "receipt")
        )
        usage = author.event(usage_id, UsageMetered.model_validate(made["usage"]))
        why = state.get("debug", {}).get("generate", "")
        if made["basis"] is not None:
            basis, turn = _BASIS.validate_python(made["basis"]), turn_of(said)
            later = [one.event async for one in log.read_thread(*place, basis.context.as_of_seq)]
            ids = [one.id for one in later if isinstance(one.data, TurnRecorded) and _says(one.data, turn)]
            if basis.context.memories and user:
                read = list(map(UUID, basis.context.memories))
                await Memories(log, self.runtime.pool).accessed(place[0], user, read, cause=usage_id)
            if receipt_id in {one.id for one in later}:
                return {}
            try:
                await record(self.runtime, Answer(author, basis, receipt_id, (), [usage], tuple(ids[-1:])))
                return {}
            except NotFound as error:
                why = str(error)
        await log.append(usage)
        return {"debug": _told(state, "persist receipt", why)}

    async def _prepared(self, state: ConversationState) -> tuple[Context, AnswerBasis | None, str]:
        """The context, what its answer's receipt is made of, and why something is missing, '' where nothing is. Without
        Postgres the context is made of the state alone, and has no receipt."""
        runtime, settings, model = self.runtime, self.runtime.settings, self.runtime.models.chat.model
        place = (settings.tenant, state["conversation_id"])
        given, notes = to_messages(state["messages"], place[1]), noted(state, settings, model)
        request = ContextRequest(
            *place,
            user=state["user_id"] or None,
            question=question(state),
            now=now_there(),
            model=model,
            system_prompt=settings.system_prompt,
            relevant=settings.hybrid_episodes,
            turns=given,
            notes=notes,
        )
        try:
            async with asyncio.timeout(PATIENCE_S):
                await runtime.settle_thread(*place, READS)
                async with reading(runtime) as conn:
                    request = by_turns(request, await thread_messages(conn, *place))
                    prepared = await prepare(runtime, conn, request)
            if request.places is None:
                return prepared.context, None, NOT_ON_LOG
            return prepared.context, prepared.receipt, prepared.degraded or ""
        except WindowTooSmall:
            raise
        except (TimeoutError, TurnlogError, psycopg.Error, OSError) as error:
            why = str(error).strip() or f"no context within {PATIENCE_S:g} s"
        wires = [{"role": "user", "content": note} for note in notes]
        alone = ContextInput(given, model, settings.system_prompt, window=settings.context_window, notes=wires)
        return build_context(replace(alone, settings=context_settings(settings))), None, why


def question(state: ConversationState) -> str:
    """The words of the user's latest message, '' when there is none."""
    return next((str(one.text) for one in reversed(state["messages"]) if one.type == "human"), "")


def noted(state: ConversationState, settings: Settings, model: str) -> tuple[str, ...]:
    """What the store has found, as lists: memories, then documents, as far as they fit. The model gets them as words of
    a user, right before the question: what users and documents say must not have the system's authority."""
    counter, left = counter_for(model), min(NOTES_TOKENS, (settings.context_window or window_for(model)) // NOTES_SHARE)
    lists = []
    for title, lines in (
        (MEMORIES, (state.get("memory_context") or "").splitlines()),
        (DOCUMENTS, [" ".join(found["text"].split()) for found in state.get("retrieval_results") or ()]),
    ):
        fitting = [title]
        for line in lines:
            item = cut_end(f"- {line}", ITEM_TOKENS, counter)
            cost = counter.text(f"{item}\n") + (counter.text(f"{title}\n\n") if len(fitting) == 1 else 0)
            if cost <= left:
                left -= cost
                fitting.append(item)
        lists += ["\n".join(fitting)] if len(fitting) > 1 else []
    return tuple(lists)


def by_turns(request: ContextRequest, rows: Sequence[Message]) -> ContextRequest:
    """The request with turns of the log in place of the state's messages, if it has all of them in this order."""
    found = on_the_log(request.turns or (), rows)
    seqs = [turn.seq for turn in found]
    asked = next((turn for turn in reversed(found) if turn.role == "user"), None)
    if asked is None or len(found) != len(request.turns or ()) or seqs != sorted(set(seqs)):
        return request
    places = {turn.seq: place for place, turn in enumerate(rows)}
    return replace(request, turns=found, places=places, turn_id=asked.event_id, asked_seq=asked.seq)


def on_the_log(messages: Sequence[Message], rows: Sequence[Message]) -> list[Message]:
    """The turns with the messages' content; of several the newest that keeps the order, if one does."""

    def words(turn: Message) -> str:
        return json.dumps([turn.role, turn.content, turn.name, turn.tool_calls, turn.tool_call_id], sort_keys=True)

    alike, found, later = defaultdict[str, list[Message]](list), list[Message](), 2**62
    for row in rows:
        alike[words(row)].append(row)
    for message in reversed(messages):
        if same := alike.get(words(message)):
            turn = next((one for one in reversed(same) if one.seq < later), same[-1])
            found, later = [turn, *found], turn.seq
    return found


def _says(data: TurnRecorded, turn: TurnRecorded | None) -> bool:
    return turn is not None and (data.role, data.content) == (turn.role, turn.content)


def item_text(value: Mapping[str, Any]) -> str:
    """Its `text`, `content` or `data` where that is a string, else all of it as JSON."""
    text = next((value[name] for name in ("text", "content", "data") if isinstance(value.get(name), str)), None)
    return text.strip() if text is not None else json.dumps(value, ensure_ascii=False, default=str)


def _told(state: ConversationState, part: str, why: str) -> dict[str, str]:
    return state.get("debug", {}) | ({part: why} if why else {})


async def _searched(
    store: BaseStore, prefix: tuple[str, ...], query: str, limit: int
) -> tuple[list[dict[str, Any]], str]:
    """Items, best first, and why there are none, or why no vector ranked them; '' where nothing is wrong."""
    if not query.strip():
        return [], ""
    try:
        async with asyncio.timeout(PATIENCE_S):
            items = await store.asearch(prefix, query=query, limit=limit)
    except (TimeoutError, TurnlogError, psycopg.Error, OSError) as error:
        return [], str(error).strip() or f"no answer within {PATIENCE_S:g} s"
    found = [
        {"namespace": list(one.namespace), "key": one.key, "text": item_text(one.value), "score": one.score}
        for one in items
    ]
    return found, NO_VECTORS if any(one.score is None for one in items) else ""


@contextlib.asynccontextmanager
async def opened_graph(routes: Sequence[Route] = (), settings: Settings | None = None) -> AsyncIterator[Graph]:
    """Servers, models, TurnlogSaver and TurnlogStore (`graph.store`) while the block runs. Raises TurnlogErrors."""
    chosen = settings or application_settings()
    async with opened(chosen, "turnlog-graph") as runtime, in_own_thread(runtime, projecting):
        store = TurnlogStore(runtime.log, runtime.pool, chosen.tenant, settings=chosen)
        async with contextlib.aclosing(store):
            saver = TurnlogSaver(runtime.log, runtime.pool, chosen.tenant)
            yield conversation_graph(runtime, routes, checkpointer=saver, store=store)


async def converse(graph: Graph, conversation_id: str, user_id: str, text: str | None) -> AsyncIterator[str]:
    """The pieces of the answer to show; the answer of record is the last message of the graph's state.

    text None: goes on where the last run failed, as when the model was away. Raises ModelError and what the
    checkpointer raises; the message stays in the conversation then.
    """
    given: ConversationState | None = None
    if text is not None:
        asked = HumanMessage(text, id=str(uuid4()))
        given = {"messages": [asked], "user_id": user_id, "conversation_id": conversation_id}
    config = thread_config(conversation_id, user_id)
    # "sync": each node begins when what came before is on the log: the context is made of it, and a kill before persist
    # costs no second answer.
    async for piece in graph.astream(given, config, stream_mode="custom", durability="sync"):
        yield piece.get("text", STARTS_AGAIN)


def thread_config(conversation_id: str, user_id: str | None = None) -> RunnableConfig:
    """user_id: whose data the checkpointer's events are."""
    return {"configurable": {"thread_id": conversation_id} | ({"user_id": user_id} if user_id else {})}
