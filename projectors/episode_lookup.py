"""Which question and answer a turn belongs to (P5 memory_episodes, D 2.2)."""

from collections.abc import Sequence
from dataclasses import dataclass

from turnlog.projectors.writer import Connection

_EPISODES_OF = """
SELECT f.thread, f.seq, e.question_seq, e.answer_seq
FROM unnest(%(threads)s::text[], %(seqs)s::bigint[]) AS f (thread, seq) CROSS JOIN LATERAL (
  SELECT question_seq, answer_seq FROM memory_episodes
  WHERE tenant = %(tenant)s AND thread_id = f.thread AND question_seq <= f.seq
  ORDER BY question_seq DESC LIMIT 1) e
WHERE e.answer_seq >= f.seq"""


@dataclass(frozen=True, slots=True)
class Span:
    """From the turn that asks to the last one that answers it; tools may have spoken in between."""

    question_seq: int
    answer_seq: int


async def episodes_of(conn: Connection, tenant: str, turns: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Span]:
    """The episode of each turn, given and returned as (thread, seq); turns of no episode are left out."""
    rows = await conn.execute(
        _EPISODES_OF,
        {"tenant": tenant, "threads": [thread for thread, _ in turns], "seqs": [seq for _, seq in turns]},
    )
    return {(thread, seq): Span(question, answer) for thread, seq, question, answer in await rows.fetchall()}
