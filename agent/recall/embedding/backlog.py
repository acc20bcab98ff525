"""Counts the texts that wait for the embedder, and measures its recent speed."""

from dataclasses import asdict, dataclass
from typing import Any

from turnlog.agent.counting import counted
from turnlog.agent.recall.embedding.pending import pending_count, pending_memories_count
from turnlog.projectors.engine.writer import Connection

_NOTE_ROUND = """
WITH old AS (DELETE FROM embedding_rounds WHERE ended_at < now() - interval '1 hour')
INSERT INTO embedding_rounds (ended_at, texts, seconds) VALUES (clock_timestamp(), %s, %s) ON CONFLICT DO NOTHING"""
_LATELY = """
SELECT sum(texts) / nullif(sum(seconds), 0) FROM embedding_rounds WHERE ended_at > now() - interval '10 minutes'"""

# Counting stops here, because it reads each row and health checks count often.
COUNT_TO = 10_000


@dataclass(frozen=True, slots=True)
class Backlog:
    """Texts without a vector of the present embedding model.

    more: there are more texts than `chunks` and `memories`, because counting stopped at COUNT_TO of each; seconds_left
    then covers only the counted texts. texts_per_s: measured over the rounds in which any process embedded chunks in
    the last ten minutes; None if there was no such round. waits: projectors are catching up, so the embedder works less
    often.
    """

    model: str
    chunks: int
    memories: int
    texts_per_s: float | None
    more: bool = False
    waits: bool = False

    @property
    def texts(self) -> int:
        return self.chunks + self.memories

    @property
    def seconds_left(self) -> float | None:
        """Returns the seconds left at the measured speed; None if the speed is not known."""
        if not self.texts:
            return 0.0
        return self.texts / self.texts_per_s if self.texts_per_s else None

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "seconds_left": self.seconds_left}

    def sentence(self) -> str:
        if not self.texts:
            return "up to date"
        at_least = "more than " if self.more else ""
        waiting = f"{at_least}{counted(self.texts, 'text')} without a vector"
        if self.texts_per_s is None or self.seconds_left is None:
            speed = "none embedded in the last ten minutes"
        else:
            speed = f"{self.texts_per_s:,.1f} texts/s, {at_least}{_duration(self.seconds_left)} left"
        return f"{waiting}, {speed}{', waits while projectors catch up' if self.waits else ''}"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


async def read_backlog(conn: Connection, model: str, waits: bool = False) -> Backlog:
    chunks = await pending_count(conn, model, COUNT_TO + 1)
    memories = await pending_memories_count(conn, model, COUNT_TO + 1)
    [(speed,)] = await (await conn.execute(_LATELY)).fetchall()
    more = max(chunks, memories) > COUNT_TO
    speed = None if speed is None else float(speed)
    return Backlog(model, min(chunks, COUNT_TO), min(memories, COUNT_TO), speed, more, waits)


async def note_round(conn: Connection, texts: int, seconds: float) -> None:
    """Stores the duration of a round of the embedder and deletes those of rounds that ended over an hour ago."""
    await conn.execute(_NOTE_ROUND, (texts, seconds))
