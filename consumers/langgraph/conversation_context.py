"""Makes the conversation graph's parts of a context: the agent, the messages as turns of the log, and the store's
findings."""

import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import psycopg
from langgraph.store.base import BaseStore

from turnlog.agent.answering.prepare import ContextRequest, context_connection
from turnlog.agent.answering.thread_context import context_settings
from turnlog.agent.context import Context, ContextInput, build_context, counter_for
from turnlog.agent.context.cut import cut_end
from turnlog.agent.context.titles import DOCUMENTS, MEMORIES
from turnlog.agent.context.window import window_for
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.agent.team.configured import server_team, team_of_tenant
from turnlog.agent.team.teams import Agent
from turnlog.events.errors import TurnlogError
from turnlog.projectors.models.conversation.message import Message

PATIENCE_S = 10.0
# The most tokens of one item and of all items; all items get at most 1/NOTES_SHARE of the window.
ITEM_TOKENS, NOTES_TOKENS, NOTES_SHARE = 300, 4_000, 8
NO_VECTORS = "the store searched without vectors, so its findings may have nothing to do with the question"


async def agent_of_team(runtime: Runtime, agent_type: str) -> Agent | None:
    """Returns an agent of the team that TURNLOG_TEAM names; None if it is missing or switched off."""
    if (server := server_team(runtime)) is None:
        return None
    with contextlib.suppress(TimeoutError, TurnlogError, psycopg.Error, OSError):
        async with asyncio.timeout(PATIENCE_S), context_connection(runtime) as conn:
            server = await team_of_tenant(conn, server, runtime.settings.tenant)
    agent = server.team.agents.get(agent_type.lower())
    return agent if agent is not None and agent.enabled else None


async def searched(
    store: BaseStore, prefix: tuple[str, ...], query: str, limit: int
) -> tuple[list[dict[str, Any]], str]:
    """Returns items of the store, best first, and a problem ('' if there is none): why there are no items, or that they
    were ranked without vectors.

    An item is {"namespace", "key", "text", "score"}.
    """
    if not query.strip():
        return [], ""
    try:
        async with asyncio.timeout(PATIENCE_S):
            items = await store.asearch(prefix, query=query, limit=limit)
    except (TimeoutError, TurnlogError, psycopg.Error, OSError) as error:
        return [], str(error).strip() or f"no answer within {PATIENCE_S:g} s"
    results = [
        {"namespace": list(item.namespace), "key": item.key, "text": item_text(item.value), "score": item.score}
        for item in items
    ]
    return results, NO_VECTORS if any(item.score is None for item in items) else ""


def item_text(value: Mapping[str, Any]) -> str:
    """Returns an item's `text`, `content` or `data` if that is a string, else the whole item as JSON."""
    text = next((value[name] for name in ("text", "content", "data") if isinstance(value.get(name), str)), None)
    return text.strip() if text is not None else json.dumps(value, ensure_ascii=False, default=str)


def noted(
    memories: str | None, documents: Sequence[Mapping[str, Any]] | None, window: int, model: str
) -> tuple[str, ...]:
    """Returns the store's findings as up to two texts, a list of memories and a list of documents, as far as they fit.

    The model gets them in the user's role, right before the question, because texts of users and documents must not
    have the system's authority. memories: one per line. window: the model's window in tokens; 0 infers it.
    """
    counter, left = counter_for(model), min(NOTES_TOKENS, (window or window_for(model)) // NOTES_SHARE)
    lists = []
    for title, lines in (
        (MEMORIES, (memories or "").splitlines()),
        (DOCUMENTS, [" ".join(document["text"].split()) for document in documents or ()]),
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
    """Returns the request with turns of the log instead of the state's messages, if the log has all of them in
    order.
    """
    turns = on_the_log(request.turns or (), rows)
    seqs = [turn.seq for turn in turns]
    asked = next((turn for turn in reversed(turns) if turn.role == "user"), None)
    if asked is None or len(turns) != len(request.turns or ()) or seqs != sorted(set(seqs)):
        return request
    places = {turn.seq: index for index, turn in enumerate(rows)}
    return replace(request, turns=turns, places=places, turn_id=asked.event_id, asked_seq=asked.seq)


def on_the_log(messages: Sequence[Message], rows: Sequence[Message]) -> list[Message]:
    """Returns the turn with the same content for each message that has one. If several turns match, takes the newest
    that keeps the order."""

    def words(turn: Message) -> str:
        return json.dumps([turn.role, turn.content, turn.name, turn.tool_calls, turn.tool_call_id], sort_keys=True)

    alike, turns, later = defaultdict[str, list[Message]](list), list[Message](), 2**62
    for row in rows:
        alike[words(row)].append(row)
    for message in reversed(messages):
        if same := alike.get(words(message)):
            turn = next((row for row in reversed(same) if row.seq < later), same[-1])
            turns, later = [turn, *turns], turn.seq
    return turns


def without_postgres(request: ContextRequest, settings: Settings) -> Context:
    """Returns a context of the request's turns and notes alone."""
    notes = [{"role": "user", "content": note} for note in request.notes]
    parts = ContextInput(
        request.turns or (), request.model, request.system_prompt, window=settings.context_window, notes=notes
    )
    return build_context(replace(parts, settings=context_settings(settings)))
