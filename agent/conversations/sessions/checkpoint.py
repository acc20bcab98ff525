"""Decides where a segment ends: which turns the summary covers and which stay complete. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from turnlog.agent.context import TokenCounter
from turnlog.agent.context.wire import calls
from turnlog.agent.conversations.sessions.history import retained
from turnlog.events.contracts import SegmentCheckpointed, SegmentRules
from turnlog.projectors.models.conversation.message import Message
from turnlog.projectors.models.sessions.state import SessionState, turns_of

SUMMARY_SHARE = 4


@dataclass(frozen=True, slots=True)
class Cut:
    """The cut that a checkpoint makes in the segment. covered: messages that join the summary, oldest first. kept:
    number of turns after the cut, which stay complete."""

    covered: Sequence[Message]
    kept: int
    covered_seq: int
    turns_covered: int


def automatic_cut(state: SessionState, through_seq: int, rules: SegmentRules, counter: TokenCounter) -> Cut | None:
    """Returns the cut of a requested checkpoint; None if there is nothing to cover. Turns after through_seq are left
    out, so that the same request always leads to the same summary."""
    turns = turns_of(message for message in _uncovered(state) if message.seq <= through_seq)
    kept = retained(turns, rules.recent_turns, rules, counter)
    cut = _cut(state, turns[: len(turns) - kept], kept)
    return cut if cut.covered else None


def manual_checkpoint(state: SessionState, summary: str, recent_turns: int) -> SegmentCheckpointed:
    """Returns a checkpoint with the caller's summary. If there are at most recent_turns turns, all of them stay
    complete."""
    turns = turns_of(state.segment)
    kept = min(len(turns), recent_turns)
    cut = _cut(state, turns[: len(turns) - kept], kept)
    return SegmentCheckpointed(
        summary=summary,
        recent_turns=recent_turns,
        covered_seq=cut.covered_seq,
        turns_covered=cut.turns_covered,
        trigger="manual",
    )


def summary_limit(rules: SegmentRules, most: int) -> int:
    """Returns the token limit of a summary: `most`, but at most a quarter of the threshold's tokens, so that a small
    window has room left."""
    return max(1, min(most, int(rules.token_threshold_ratio * rules.model_context_window) // SUMMARY_SHARE))


def _uncovered(state: SessionState) -> list[Message]:
    """Returns the segment's messages that no summary covers: after a failed checkpoint the segment is the whole
    session, but the previous summary still covers its part."""
    return [message for message in state.segment if message.seq > state.covered_seq]


def _cut(state: SessionState, covered: Sequence[Sequence[Message]], kept: int) -> Cut:
    messages = [message for turn in covered for message in turn]
    covered_seq = messages[-1].seq if messages else state.covered_seq
    later = turns_of(message for message in state.segment if message.seq > covered_seq)
    return Cut(messages, kept, covered_seq, max(0, state.turn_count - sum(map(_is_answered, later))))


def _is_answered(turn: Sequence[Message]) -> bool:
    return any(message.role == "assistant" and not calls(message) for message in turn)
