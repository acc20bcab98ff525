"""A conversation as a graph: route → recall → (retrieve) → generate → persist.

Its turns are the messages that its checkpointer stores. generate prepares and runs an answer as turnlog's own agent
does, with the findings of the graph's store; persist records what the answer was made from.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from uuid import NAMESPACE_OID, UUID, uuid4, uuid5

import psycopg
from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime as Run
from langgraph.store.base import BaseStore
from pydantic import TypeAdapter

from turnlog.agent.answering.pieces import Restarted, Round, Text
from turnlog.agent.answering.prepare import READS, AnswerBasis, ContextRequest, context_connection, prepare
from turnlog.agent.answering.record import Answer, Author, record
from turnlog.agent.answering.run import ToolLoop, run
from turnlog.agent.context import Context, WindowTooSmall
from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.models.protocol import ChatRequest
from turnlog.agent.runtime import Runtime
from turnlog.agent.team.teams import Agent
from turnlog.consumers.langgraph.checkpoint.messages import to_messages, turn_of
from turnlog.consumers.langgraph.conversation_context import (
    PATIENCE_S,
    agent_of_team,
    by_turns,
    noted,
    searched,
    without_postgres,
)
from turnlog.consumers.langgraph.conversation_routes import GENERAL, Route, best_route
from turnlog.consumers.langgraph.conversation_state import ConversationState, question, told
from turnlog.events.contracts import TurnRecorded, UsageMetered
from turnlog.events.errors import NotFound, TurnlogError
from turnlog.events.local_time import now_there
from turnlog.projectors.models.conversation.message import thread_messages
from turnlog.projectors.models.store.lookup import memories_of

SOURCE = "turnlog/graph"
MEMORIES_AT_MOST = 5
NO_STORE = "the graph has no store"
NOT_ON_LOG = "a message that the model was given is not a turn on the log; is the checkpointer a TurnlogSaver?"
_BASIS = TypeAdapter(AnswerBasis)
Update = dict[str, Any]
# Kind of piece → function that makes its content for the stream `custom`.
SHOWN: dict[type[Any], Callable[[Any], dict[str, str]]] = {
    Text: lambda piece: {"kind": "text", "text": piece.text},
    Restarted: lambda _: {"kind": "restart"},
}


Graph = CompiledStateGraph[ConversationState, None, ConversationState, ConversationState]


def conversation_graph(
    runtime: Runtime,
    routes: Sequence[Route] = (),
    *,
    checkpointer: BaseCheckpointSaver[str] | None = None,
    store: BaseStore | None = None,
) -> Graph:
    """Returns the graph; invoke it with thread_id = the state's conversation_id, or through chat.converse.

    routes: see best_route; without routes, no documents are looked up.
    """
    nodes, graph = Nodes(runtime, routes), StateGraph(ConversationState)
    for name in ("route", "recall", "retrieve", "generate", "persist"):
        graph.add_node(name, getattr(nodes, name))
    for first, then in ((START, "route"), ("route", "recall"), ("retrieve", "generate"), ("generate", "persist")):
        graph.add_edge(first, then)

    def after_recall(state: ConversationState) -> Literal["retrieve", "generate"]:
        return "retrieve" if state.get("use_retrieval") else "generate"

    graph.add_conditional_edges("recall", after_recall)
    return graph.compile(checkpointer=checkpointer, store=store, name="conversation")


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of the graph; each takes the state and returns the changed parts."""

    runtime: Runtime
    routes: Sequence[Route] = ()

    async def route(self, state: ConversationState) -> Update:
        """Routes every message, and clears the previous turn's findings."""
        chosen = best_route(self.routes, question(state))
        prefix = chosen.kb_prefix or GENERAL
        routed = {"kb_prefix": prefix, "agent_type": chosen.agent_type, "use_retrieval": prefix != GENERAL}
        return {**routed, "retrieval_results": None, "answer": None, "debug": {"route": chosen.name}}

    async def recall(self, state: ConversationState, *, runtime: Run[None]) -> Update:
        """Searches memories that applications put into the store; turnlog's own memories are already part of the
        context.
        """
        user, lines, why = state["user_id"], list[str](), ""
        if runtime.store is not None and user:
            items, why = await searched(runtime.store, memories_of(user), question(state), MEMORIES_AT_MOST)
            lines = [text for item in items if (text := " ".join(item["text"].split()))]
        return {"memory_context": "\n".join(lines) or None, "debug": told(state, "recall memories", why)}

    async def retrieve(self, state: ConversationState, *, runtime: Run[None]) -> Update:
        """Looks up documents under kb_prefix. Documents without a vector score are left out, because they are merely
        the newest.
        """
        items, why = list[dict[str, Any]](), NO_STORE
        if runtime.store is not None:
            prefix, top_k = (state.get("kb_prefix") or "",), self.runtime.settings.recall_top_k
            items, why = await searched(runtime.store, prefix, question(state), top_k)
        near = [item for item in items if item["score"] is not None]
        return {"retrieval_results": near, "debug": told(state, "retrieve", why)}

    async def generate(self, state: ConversationState, *, runtime: Run[None]) -> Update:
        """Makes the answer and streams each piece in the form of SHOWN. Raises ModelError and WindowTooSmall; the state
        then keeps the question, and the run can be resumed."""
        acting = await agent_of_team(self.runtime, state.get("agent_type", GENERAL))
        context, basis, why = await self._prepared(state, acting)
        made: Round | None = None
        chat = ChatRequest(context.messages, restart=True)
        if acting is not None:
            chat = replace(chat, model=acting.model, temperature=acting.temperature, max_tokens=acting.max_tokens)
        async with contextlib.aclosing(run(self.runtime.models.chat, ToolLoop(chat))) as pieces:
            async for piece in pieces:
                if (show := SHOWN.get(type(piece))) is not None:
                    runtime.stream_writer(show(piece))
                made = piece if isinstance(piece, Round) else made
        assert made is not None, "an answer ends with a round"
        said, agent = made.completion, state.get("agent_type", GENERAL)
        tokens = {"input_tokens": said.tokens_in, "output_tokens": said.tokens_out}
        message = AIMessage(
            said.text,
            id=str(uuid4()),
            usage_metadata={**tokens, "total_tokens": said.tokens_in + said.tokens_out},
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
        return {"messages": [message], "answer": answer, "debug": told(state, "generate", why)}

    async def persist(self, state: ConversationState) -> Update:
        """Records the receipt, the usage and the read memories, once even if it runs again. Raises
        LogUnavailable, LogFull; the answer stays in the state and the run can be resumed."""
        answer, said = state.get("answer"), next(iter(state["messages"][-1:]), None)
        if not answer or not isinstance(said, AIMessage) or said.id != answer["id"]:
            return {}
        log, user = self.runtime.log, state["user_id"] or None
        place = (self.runtime.settings.tenant, state["conversation_id"])
        author = Author(SOURCE, *place, user)
        usage_id, receipt_id = (
            uuid5(NAMESPACE_OID, "/".join((part, *place, said.id or ""))) for part in ("usage", "receipt")
        )
        usage = author.event(usage_id, UsageMetered.model_validate(answer["usage"]))
        why = state.get("debug", {}).get("generate", "")
        if answer["basis"] is not None:
            basis, turn = _BASIS.validate_python(answer["basis"]), turn_of(said)
            ids, is_recorded = list[UUID](), False
            async for stored in log.read_thread(*place, basis.context.as_of_seq):
                data, is_recorded = stored.event.data, is_recorded or stored.event.id == receipt_id
                if isinstance(data, TurnRecorded) and turn and (data.role, data.content) == (turn.role, turn.content):
                    ids.append(stored.event.id)
            if basis.context.memories and user:
                read = list(map(UUID, basis.context.memories))
                await Memories(log, self.runtime.pool).accessed(place[0], user, read, cause=usage_id)
            if is_recorded:
                return {}
            try:
                await record(self.runtime, Answer(author, basis, receipt_id, (), [usage], tuple(ids[-1:])))
                return {}
            except NotFound as error:
                why = str(error)
        await log.append(usage)
        return {"debug": told(state, "persist receipt", why)}

    async def _prepared(
        self, state: ConversationState, acting: Agent | None
    ) -> tuple[Context, AnswerBasis | None, str]:
        """Returns the context, the basis of its answer's receipt, and why something is missing ('' if nothing is).
        Without Postgres, the context is made of the state alone and has no receipt."""
        runtime, settings, model = self.runtime, self.runtime.settings, self.runtime.models.chat.model
        model, prompt = (model, settings.system_prompt) if acting is None else (acting.model or model, acting.prompt)
        place = (settings.tenant, state["conversation_id"])
        request = ContextRequest(
            *place,
            user=state["user_id"] or None,
            question=question(state),
            now=now_there(),
            model=model,
            system_prompt=prompt,
            relevant=settings.hybrid_episodes,
            turns=to_messages(state["messages"], place[1]),
            notes=noted(state.get("memory_context"), state.get("retrieval_results"), settings.context_window, model),
        )
        try:
            async with asyncio.timeout(PATIENCE_S):
                await runtime.wait_until_thread_projected(*place, READS)
                async with context_connection(runtime) as conn:
                    matched = by_turns(request, await thread_messages(conn, *place))
                    prepared = await prepare(runtime, conn, matched)
            if matched.places is None:
                return prepared.context, None, NOT_ON_LOG
            return prepared.context, prepared.receipt, prepared.degraded or ""
        except WindowTooSmall:
            raise
        except (TimeoutError, TurnlogError, psycopg.Error, OSError) as error:
            why = str(error).strip() or f"no context within {PATIENCE_S:g} s"
        return without_postgres(request, settings), None, why
