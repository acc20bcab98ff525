"""Opens LangGraph's store on the real servers of a test."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from helpers.openai_bodies import bag_of_words
from langchain_core.embeddings import Embeddings

from turnlog.agent.settings import Settings
from turnlog.consumers.langgraph.store.index import StoreIndexConfig
from turnlog.consumers.langgraph.store.store import TurnlogStore

DIMENSIONS = 256


class WordVectors(Embeddings):
    """LangChain Embeddings without a server; texts that share words are near each other. away: True makes every call
    fail."""

    def __init__(self, dimensions: int = DIMENSIONS) -> None:
        self.dimensions, self.away = dimensions, False
        self.texts: list[str] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        if self.away:
            raise ConnectionError("no route to the embedding server")
        self.texts += texts
        return [bag_of_words(text, self.dimensions) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


@dataclass(frozen=True, slots=True)
class Stores:
    """Opens stores on this test's servers: `async with stores.opened(index=…) as store`. Two stores act like two
    processes."""

    settings: Settings

    def opened(self, tenant: str = "default", index: Any = False) -> AbstractAsyncContextManager[TurnlogStore]:
        return TurnlogStore.open(self.settings, tenant=tenant, index=index)

    def by_words(self, *fields: str) -> AbstractAsyncContextManager[TurnlogStore]:
        return self.opened(index=index_by(WordVectors(), *fields))


def index_by(words: WordVectors, *fields: str) -> StoreIndexConfig:
    return {"dims": DIMENSIONS, "embed": words, "fields": list(fields) or None}


def keys(items: Sequence[Any]) -> list[str]:
    return [item.key for item in items]
