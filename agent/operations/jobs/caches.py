"""Implements the caches job, which deletes cached vectors and model answers that no row needs, admitted requests that
the throttle no longer counts, and expired answers of repeatable writes.

A rebuild takes vectors from the cache, so vectors of texts in the read models stay, and so do vectors younger than a
day, whose row may not be written yet. Cached answers are needed until their event is stored. If the compaction refused
an answer, the cached refusal stays, because otherwise the next run would ask the model again.
"""

import hashlib
from datetime import datetime, timedelta

from turnlog.agent.access import idempotency
from turnlog.agent.access.throttle.guards import EXPIRED
from turnlog.agent.operations.jobs.job import Done
from turnlog.agent.recall.embedding.cache import PROBE_TEXT
from turnlog.agent.runtime import Runtime
from turnlog.events.progress import OnProgress

KEPT = timedelta(hours=24)
READS = ("vectors", "memories", "store_items", "messages")
PATIENCE_S = 10.0

# Works in two steps: only the few vectors that no text needs are compared with those of the store, which have no
# hashes.
_VECTORS = """
WITH needed AS (
  SELECT embedding_model AS model, sha256(convert_to(index_text, 'UTF8')) AS text_hash FROM memory_vectors
  UNION ALL SELECT embedding_model, sha256(convert_to(content, 'UTF8')) FROM memories),
textless AS MATERIALIZED (
  SELECT c.model, c.text_hash, halfvec_send(c.embedding) AS vector FROM embedding_cache c
  WHERE c.created_at < %(before)s AND c.text_hash <> %(probe)s AND NOT EXISTS (
    SELECT FROM needed n WHERE n.text_hash = c.text_hash AND coalesce(n.model, c.model) = c.model))
DELETE FROM embedding_cache c USING textless t WHERE c.model = t.model AND c.text_hash = t.text_hash
AND NOT EXISTS (SELECT FROM store_vectors s WHERE s.model = t.model AND halfvec_send(s.embedding) = t.vector)"""
# Recognises a refusal of the compaction by the text, because Postgres cannot read values of a document with an escaped
# NUL.
_ANSWERS = """
DELETE FROM model_cache c
WHERE (created_at < %(before)s AND NOT starts_with(response::text, '{"text": "", "refused": "'))
OR (thread_id IS NOT NULL
  AND NOT EXISTS (SELECT FROM messages m WHERE m.tenant = c.tenant AND m.thread_id = c.thread_id)
  AND NOT EXISTS (SELECT FROM memories m WHERE m.tenant = c.tenant AND m.thread_id = c.thread_id))"""


async def clean_caches(
    runtime: Runtime, due_at: datetime, on_progress: OnProgress, patience_s: float = PATIENCE_S
) -> Done:
    """Cleans the caches of every tenant. patience_s: how long to wait for the projectors.

    Raises NotProjectedInTime while projectors are behind, and then deletes no vectors or answers, because later rows
    may need them."""
    values = {"before": due_at - KEPT, "probe": hashlib.sha256(PROBE_TEXT.encode()).digest()}
    async with runtime.pool.connection() as conn:
        await conn.execute(EXPIRED.encode(), {"now": due_at})
        on_progress(1, 4)
        await conn.execute(idempotency.EXPIRED, {"before": due_at - idempotency.KEPT})
        on_progress(2, 4)
    async with runtime.reading(*READS, timeout_s=patience_s) as conn:
        vectors = (await conn.execute(_VECTORS, values)).rowcount
        on_progress(3, 4)
        answers = (await conn.execute(_ANSWERS, values)).rowcount
        on_progress(4, 4)
    return Done({"answers": answers, "vectors": vectors})
