"""Which checkpoints leave: those of runs, and all but the newest of each namespace."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from langgraph.checkpoint.serde.types import TASKS

from turnlog.consumers.langgraph.tuples import FIRST_WITHOUT_SENDS, ROOT
from turnlog.projectors.writer import Connection

_OF_RUNS = """
SELECT thread_id, checkpoint_ns, array_agg(checkpoint_id ORDER BY checkpoint_id) FROM checkpoints
WHERE tenant = %s AND run_id = ANY(%s) GROUP BY thread_id, checkpoint_ns ORDER BY 1, 2
"""
# A DeltaChannel leaves counters in the metadata, or True in place of a value that is stored apart.
_WITH_DELTAS = """
SELECT DISTINCT c.thread_id FROM checkpoints c WHERE c.tenant = %(tenant)s AND c.thread_id = ANY(%(threads)s) AND (
    c.metadata ? 'counters_since_delta_snapshot' OR c.metadata ? 'delta_writes_versioned'
    OR EXISTS (
        SELECT 1 FROM jsonb_each(c.checkpoint -> 'channel_values') v JOIN checkpoint_blobs b
        ON b.tenant = c.tenant AND b.thread_id = c.thread_id AND b.checkpoint_ns = c.checkpoint_ns
        AND b.channel = v.key AND b.version = c.checkpoint -> 'channel_versions' ->> v.key
        WHERE v.value = 'true'::jsonb
    )
) ORDER BY 1
"""
_OF_THREAD = f"""
SELECT c.checkpoint_ns, c.checkpoint_id, c.metadata -> 'parents' ->> '',
    CASE WHEN (c.checkpoint ->> 'v')::int < {FIRST_WITHOUT_SENDS} AND EXISTS (
        SELECT 1 FROM checkpoint_writes w WHERE w.tenant = c.tenant AND w.thread_id = c.thread_id
        AND w.checkpoint_ns = c.checkpoint_ns AND w.checkpoint_id = c.parent_checkpoint_id AND w.channel = '{TASKS}'
    ) THEN c.parent_checkpoint_id END
FROM checkpoints c WHERE c.tenant = %s AND c.thread_id = %s ORDER BY c.checkpoint_ns, c.checkpoint_id
"""


@dataclass(slots=True)
class Namespace:
    """ids: its checkpoints, oldest first; root: the root's checkpoint that the newest one was called from;
    sends_from: the parent that still holds the newest one's pending sends."""

    ids: list[str] = field(default_factory=list)
    root: str | None = None
    sends_from: str | None = None


async def checkpoints_of_runs(
    conn: Connection, tenant: str, run_ids: Sequence[str]
) -> list[tuple[str, str, tuple[str, ...]]]:
    """(thread, namespace, checkpoint ids)."""
    rows = await conn.execute(_OF_RUNS, (tenant, list(run_ids)))
    return [(thread, ns, tuple(ids)) for thread, ns, ids in await rows.fetchall()]


async def threads_with_deltas(conn: Connection, tenant: str, threads: Sequence[str]) -> list[str]:
    rows = await conn.execute(_WITH_DELTAS, {"tenant": tenant, "threads": list(threads)})
    return [thread for (thread,) in await rows.fetchall()]


async def namespaces_of(conn: Connection, tenant: str, thread: str) -> dict[str, Namespace]:
    found: dict[str, Namespace] = {}
    rows = await conn.execute(_OF_THREAD, (tenant, thread))
    for ns, checkpoint_id, root, sends_from in await rows.fetchall():
        own = found.setdefault(ns, Namespace())
        own.ids.append(checkpoint_id)
        own.root, own.sends_from = root, sends_from
    return found


def but_the_newest(namespaces: Mapping[str, Namespace]) -> dict[str, tuple[str, ...]]:
    """Namespace → checkpoints to drop (pure). A subgraph's call, which has its task's id after a colon, goes whole
    with the root's checkpoint that it was called from, once that one is saved."""
    root = namespaces.get(ROOT, Namespace())
    kept_roots = _kept(root)
    dropped: dict[str, tuple[str, ...]] = {}
    for ns, own in namespaces.items():
        is_over = ":" in ns and own.root in root.ids and own.root not in kept_roots
        kept = set() if is_over else _kept(own)
        if ids := tuple(one for one in own.ids if one not in kept):
            dropped[ns] = ids
    return dropped


def _kept(own: Namespace) -> set[str]:
    return {one for one in (*own.ids[-1:], own.sends_from) if one is not None}
