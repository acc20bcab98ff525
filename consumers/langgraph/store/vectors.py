"""Vectors of the store's texts: embedded once, stored by content, and left out if the embedder is unavailable."""

import logging
from collections.abc import Iterable, Mapping

import numpy as np
from pgvector import HalfVector

from turnlog.agent.models.errors import ModelError
from turnlog.agent.models.protocol import Embedder, Usage, Vectors
from turnlog.agent.recall.embedding.cache import PROBE_TEXT
from turnlog.agent.runtime import Pool
from turnlog.consumers.langgraph.opening import connection
from turnlog.consumers.langgraph.store.index import InvalidIndex, TextToEmbed
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.store.lookup import Near

logger = logging.getLogger("turnlog.consumers")
PROBE = TextToEmbed("", PROBE_TEXT)
SAME_MODEL = 0.98  # minimum cosine; servers' vectors for one text vary slightly


class StoreVectors:
    """Embeds and searches the store's texts. embedder: turnlog's, or a GivenEmbedder; verify: check once whether its
    name was used for another model.

    degraded: why there were no vectors the last time; None if there were.
    """

    def __init__(self, pool: Pool, embedder: Embedder, verify: bool) -> None:
        self.embedder, self._pool, self._verify = embedder, pool, verify
        self.degraded: str | None = None

    async def remember(self, texts: Iterable[TextToEmbed], spent: list[Usage]) -> set[str]:
        """Embeds the texts that the cache lacks; returns the hashes of the texts whose vectors it now has.

        Raises InvalidIndex, DatabaseUnavailable.
        """
        texts_by_hash = {text.text_hash: text for text in texts}
        known = await self._known(texts_by_hash)
        missing = {text_hash: text.text for text_hash, text in texts_by_hash.items() if text_hash not in known}
        if not missing:
            return set(texts_by_hash)
        if self._verify:
            missing[PROBE.text_hash] = PROBE.text
        try:
            vectors = await self.embedder.embed_passages(list(missing.values()), spent.append)
        except ModelError as error:
            self._degrade(error)
            return known
        self.degraded = None
        await self._store(dict(zip(missing, vectors, strict=True)))
        return set(texts_by_hash)

    async def near(self, query: str) -> Near | None:
        """Returns the query's vector for a search; None if the embedder is unavailable. Raises InvalidIndex."""
        try:
            vector = await self.embedder.embed_query(query)
        except ModelError as error:
            self._degrade(error)
            return None
        self.degraded = None
        return Near(self.embedder.model, len(vector), HalfVector(vector).to_text())

    def _degrade(self, error: ModelError) -> None:
        """Logs a warning only the first time that the embedder fails, not at each call."""
        reason = f"the store continues without new vectors: {error}"
        if self.degraded is None:
            logger.warning("%s", reason)
        self.degraded = reason

    async def _known(self, text_hashes: Iterable[str]) -> set[str]:
        async with connection(self._pool) as conn:
            rows = await conn.execute(
                "SELECT encode(text_hash, 'hex') FROM embedding_cache WHERE model = %s AND text_hash = ANY(%s)",
                (self.embedder.model, [bytes.fromhex(text_hash) for text_hash in text_hashes]),
            )
            return {text_hash for (text_hash,) in await rows.fetchall()}

    async def _store(self, vectors: Mapping[str, Vectors]) -> None:
        model = self.embedder.model
        async with connection(self._pool) as conn:
            if self._verify:
                await self._refuse_another_model(conn, vectors[PROBE.text_hash])
                self._verify = False
            await conn.cursor().executemany(
                "INSERT INTO embedding_cache (model, text_hash, embedding) VALUES (%s, %s, %s::halfvec) "
                "ON CONFLICT DO NOTHING",
                [(model, bytes.fromhex(key), HalfVector(vector).to_text()) for key, vector in vectors.items()],
            )

    async def _refuse_another_model(self, conn: Connection, probe: Vectors) -> None:
        """Refuses a changed function under an old name, because that would mix vectors of different models."""
        rows = await conn.execute(
            "SELECT embedding::text FROM embedding_cache WHERE model = %s AND text_hash = %s",
            (self.embedder.model, bytes.fromhex(PROBE.text_hash)),
        )
        if (row := await rows.fetchone()) is None:
            return
        before = np.array(row[0].strip("[]").split(","), dtype=np.float32)
        if before.shape != probe.shape or float(before @ probe) < SAME_MODEL:
            raise InvalidIndex(
                f"{self.embedder.model} gives other vectors than it did before; a new embedding function needs a "
                "new name: set index['model']"
            )
