"""A memory whose vector has come, against those that an embedding finds alike (M5, semantic conflicts). Pure.

Only what makes the same claim is settled, so nothing true is ended: one of the two stays, the other one becomes its
duplicate. KEEP_BOTH keeps both; MERGE and ASK_USER leave paraphrases to the compaction, for joining "I like tea" and
"I enjoy tea", or asking which one holds, helps nobody.
"""

from collections.abc import Mapping, Sequence

from turnlog.agent.memories.chains import (
    Wins,
    changes,
    closed,
    highest,
    lasts_as_long,
    latest,
    layout,
    links_of,
    oldest,
)
from turnlog.agent.memories.claims import same_claim
from turnlog.agent.memories.conflicts import ALIKE
from turnlog.events.memory_contracts import Interval, MemoriesRevised, Strategy
from turnlog.projectors.memory_lookup import StoredMemory

_WINS: Mapping[Strategy, Wins] = {"KEEP_LATEST": latest, "KEEP_HIGHEST": highest, "KEEP_OLDEST": oldest}


def settled_alike(row: StoredMemory, similar: Sequence[tuple[StoredMemory, float]]) -> MemoriesRevised | None:
    """similar: others of the thread with their calibrated similarity, best first. None: nothing is to be done."""
    for other, likeness in similar:
        if likeness > ALIKE and _says_the_same(row, other) and (intervals := _one_stays(row, other)):
            return MemoriesRevised(intervals=intervals, similarity=round(likeness, 4))
    return None


def _says_the_same(row: StoredMemory, other: StoredMemory) -> bool:
    """Two keys know better than words: different ones mean something else, and equal ones were settled by them."""
    valid = row.status == other.status == "valid" and row.id != other.id and row.kind == other.kind
    return valid and None in (row.dedupe_key, other.dedupe_key) and same_claim(row.content, other.content)


def _one_stays(row: StoredMemory, other: StoredMemory) -> tuple[Interval, ...]:
    """The one with a dedupe key stays, for it can be contradicted; else the strategy of the later one decides."""
    if row.dedupe_key is not None or other.dedupe_key is not None:
        kept, lost = (row, other) if row.dedupe_key is not None else (other, row)
        end = closed(lost.id, max(lost.valid_from, kept.valid_from), kept.id, "duplicate")
        return (end,) if lasts_as_long(kept.expires_at, lost.expires_at) else ()
    later = max(row, other, key=lambda one: (one.valid_from, one.seq))
    if (wins := _WINS.get(later.strategy)) is None:
        return ()
    changed = changes(layout(links_of([row, other]), wins), [row, other])
    ended = [one for one in changed if one.valid_to is not None and one.replaced_by in (row.id, other.id)]
    expiry = {row.id: row.expires_at for row in (row, other)}
    if not all(lasts_as_long(expiry[one.replaced_by], expiry[one.memory_id]) for one in ended if one.replaced_by):
        return ()
    return tuple(one if one.valid_to is None else one.model_copy(update={"reason": "duplicate"}) for one in changed)
