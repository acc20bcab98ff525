"""Finds relevant episodes: past questions, with their answers, that are relevant to a new question."""

from collections.abc import Sequence
from dataclasses import dataclass

from turnlog.agent.recall.best_turns import Recalled
from turnlog.agent.recall.confidence import Evidence
from turnlog.agent.recall.search import Recall
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.lookup import EpisodeSpan, Scope, episodes_of
from turnlog.projectors.models.conversation.message import newest_from

# Turns to recall per episode, because the search may find the question, its answer and the tool results between them.
TURNS_AN_EPISODE = 4
# The default number of episodes in a context. Share of the LoCoMo evidence in windows of 2,000 and 8,000 tokens when it
# was chosen: 6 and 23 % with 0 episodes, 80 and 84 % with 5, 83 and 89 % with 8, 83 and 90 % with 10, 83 and 93 % with
# 15; 79 and 90 % if 10 episodes get only half of tier 2. docs/benchmarks.md has the present shares for 0 and 10.
EPISODES = 10


@dataclass(frozen=True, slots=True)
class RelevantEpisode:
    """A question and its answer, or a single turn that belongs to no episode.

    seqs: sequences of the question, the answer and the recalled turns between them, in order. found: sequences of the
    turns that recall found, best first. score: the score of the best of them.
    """

    thread: str
    seqs: tuple[int, ...]
    found: tuple[int, ...]
    chunk_ids: tuple[str, ...]
    score: float


async def relevant_episodes(
    conn: Connection, recall: Recall, scope: Scope, query: str, k: int, before_seq: int | None = None
) -> list[RelevantEpisode]:
    """Returns up to k episodes that are most relevant to a query, best first; [] for a blank query.

    The search uses vector and words, or words alone if there is no vector (`recall.degraded` then has the reason, but
    is None if `recall` has no embedder). before_seq: turns from this sequence on are excluded, because they are still
    in the window.
    """
    if k < 1 or not query.strip():
        return []
    turns = await recall.search(conn, scope, query, TURNS_AN_EPISODE * k, before_seq)
    spans = await episodes_of(conn, scope.tenant, [(turn.thread, turn.seq) for turn in turns])
    groups: dict[tuple[str, int], list[Recalled]] = {}
    for turn in turns:
        span = spans.get((turn.thread, turn.seq))
        groups.setdefault((turn.thread, span.question_seq if span else turn.seq), []).append(turn)
    return [_episode(group, spans.get((group[0].thread, group[0].seq)), before_seq) for group in groups.values()][:k]


@dataclass(frozen=True, slots=True)
class Relevant:
    """Turns to prefer in a context. seqs: their sequences, best first. evidence: the evidence for an answer; None if
    the query is not a question."""

    query: str = ""
    seqs: Sequence[int] = ()
    evidence: Evidence | None = None


async def relevant_turns(
    conn: Connection, recall: Recall, scope: Scope, query: str, k: int, recent: int, asked_seq: int | None = None
) -> Relevant:
    """Returns the turns of the k most relevant episodes, for a context. recall: must be used only for this search,
    because its `evidence` is read afterwards.

    recent: number of newest messages to exclude, not counting results of tool calls: a context contains them anyway,
    and they would get higher scores because they are near the question. asked_seq: sequence of the question if it is on
    the log already.
    """
    if scope.thread is None or k < 1:
        return Relevant(query)
    first = await newest_from(conn, scope.tenant, scope.thread, recent, asked_seq)
    before = asked_seq if first is None else first
    seqs = relevant_seqs(await relevant_episodes(conn, recall, scope, query, k, before))
    asks = recall.question is not None and recall.question.asks
    return Relevant(query, seqs, recall.evidence if asks else None)


def relevant_seqs(episodes: Sequence[RelevantEpisode]) -> list[int]:
    """Returns the sequences of the turns of the episodes, best episode first, for the argument `relevant` of a
    context."""
    return list(dict.fromkeys(seq for episode in episodes for seq in episode.seqs))


def _episode(group: Sequence[Recalled], span: EpisodeSpan | None, before_seq: int | None) -> RelevantEpisode:
    ends = {span.question_seq, span.answer_seq} if span else set[int]()
    seqs = sorted(ends | {turn.seq for turn in group})
    return RelevantEpisode(
        thread=group[0].thread,
        seqs=tuple(seq for seq in seqs if before_seq is None or seq < before_seq),
        found=tuple(turn.seq for turn in group),
        chunk_ids=tuple(dict.fromkeys(turn.chunk_id for turn in group)),
        score=group[0].score,
    )
