"""Where a conversation can be cut in two, to prune its older part or to fork from it (C4)."""

from collections.abc import Sequence
from itertools import accumulate

from turnlog.agent.context.turns import group
from turnlog.projectors.message import Message


def cuts(messages: Sequence[Message]) -> list[int]:
    """How many of the oldest messages the older part can have, ascending, so that no call is parted from a result."""
    place = {message.seq: at for at, message in enumerate(messages)}
    end = list(range(len(messages)))
    for unit in group(messages).units:
        at = [place[message.seq] for message in unit.messages]
        end[min(at)] = max(at)
    reach = accumulate(end, max)
    return [at + 1 for at, farthest in enumerate(reach) if farthest <= at]
