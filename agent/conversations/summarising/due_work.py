"""Decides whether a summary, topics or pruning are due for a thread. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from turnlog.agent.context.message_units import cuts
from turnlog.agent.settings import Settings
from turnlog.projectors.models.conversation.message import Message

UPDATE_AFTER = 5
PRUNE_BUFFER = 20
TAG_AFTER = 10
KEPT = 10


@dataclass(frozen=True, slots=True)
class Facts:
    """The conversation state of a thread. messages: oldest first. summarised_through, tagged_through: the last
    sequences that its summary and topics cover."""

    messages: Sequence[Message]
    summarised_through: int
    tagged_through: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The sequences up to which to summarise, tag and prune; None if not due. If pruning is due, the topics, and the
    summary unless the settings switch it off, reach at least as far afterwards."""

    summarise_through: int | None = None
    tag_through: int | None = None
    prune_through: int | None = None

    @property
    def nothing(self) -> bool:
        return self.summarise_through is None and self.tag_through is None and self.prune_through is None


def plan(facts: Facts, settings: Settings) -> Plan:
    prune = prune_through(facts.messages, settings.max_messages_per_thread)
    if prune is not None:
        return Plan(
            prune if facts.summarised_through < prune and settings.enable_summary else None,
            prune if facts.tagged_through < prune else None,
            prune,
        )
    return Plan(_summarise_through(facts, settings), _tag_through(facts))


def prune_through(messages: Sequence[Message], limit: int) -> int | None:
    """Returns the sequence up to which to prune: the oldest total − limit + 20 messages; None if the total is within
    the limit.

    A tool call and its results are pruned together: the cut moves after the last result, or before the call if
    otherwise fewer than KEPT messages would be left.
    """
    if len(messages) <= limit:
        return None
    wanted = len(messages) - limit + PRUNE_BUFFER
    possible = cuts(messages)
    later = [at for at in possible if wanted <= at <= len(messages) - KEPT]
    earlier = [at for at in possible if at < wanted]
    count = later[0] if later else earlier[-1] if earlier else 0
    return messages[count - 1].seq if count else None


def _summarise_through(facts: Facts, settings: Settings) -> int | None:
    """Returns the last sequence to summarise; None if it is too early. The newest turns are not summarised, because a
    context shows them completely anyway."""
    if not settings.enable_summary or len(facts.messages) < settings.summary_threshold:
        return None
    older = [m for m in facts.messages[: -settings.full_recent_count] if m.seq > facts.summarised_through]
    return older[-1].seq if len(older) >= UPDATE_AFTER else None


def _tag_through(facts: Facts) -> int | None:
    untagged = [m for m in facts.messages if m.seq > facts.tagged_through]
    return untagged[-1].seq if len(untagged) >= TAG_AFTER else None
