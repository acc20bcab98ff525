"""retrieve: documents of the route's knowledge base, by vector, from the store (seed D 2.3.3)."""

import json
from collections.abc import Mapping
from typing import Any

from langgraph.runtime import Runtime as Run
from langgraph.store.base import BaseStore, SearchItem

from turnlog.consumers.langgraph.graph.state import ConversationState, RunNode, Update, question, unless_away

_FIELDS = ("text", "content", "data")
NO_STORE = "the graph has no store"
NO_VECTORS = "the store searched without vectors: what it found may have nothing to do with the question"


def retrieve_node(top_k: int) -> RunNode:
    async def retrieve(state: ConversationState, *, runtime: Run[None]) -> Update:
        """Only runs when use_retrieval; the store's namespaces that begin with kb_prefix are searched.

        Results without a score, of a store without vectors or with its embedder away, are left out: they are merely
        the newest.
        """
        if runtime.store is None:
            return _update(state, [], NO_STORE)
        prefix = (state.get("kb_prefix") or "",)
        found, why = await unless_away(_search(runtime.store, prefix, question(state["messages"]), top_k), [])
        near = [result(item) for item in found if item.score is not None]
        return _update(state, near, why or (NO_VECTORS if len(near) < len(found) else ""))

    return retrieve


async def _search(store: BaseStore, prefix: tuple[str, ...], query: str, limit: int) -> list[SearchItem]:
    return await store.asearch(prefix, query=query, limit=limit)


def result(item: SearchItem) -> dict[str, Any]:
    return {"namespace": list(item.namespace), "key": item.key, "text": item_text(item.value), "score": item.score}


def item_text(value: Mapping[str, Any]) -> str:
    """Its `text`, `content` or `data` where that is a string, else all of it as JSON."""
    text = next((value[name] for name in _FIELDS if isinstance(value.get(name), str)), None)
    return text.strip() if text is not None else json.dumps(value, ensure_ascii=False, default=str)


def _update(state: ConversationState, results: list[dict[str, Any]], why: str) -> Update:
    return {
        "retrieval_results": results,
        "debug": state.get("debug", {}) | ({"retrieve": why} if why else {}),
    }
