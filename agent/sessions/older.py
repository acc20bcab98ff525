"""A conversation from before it had a session, as the log has it: it goes on with its whole history (B, 兼容性处理)."""

from dataclasses import dataclass

from turnlog.events.contracts import Recorded, TurnRecorded
from turnlog.events.log import Log
from turnlog.projectors.incoming import incoming
from turnlog.projectors.projection import REMOVALS
from turnlog.projectors.session_state import is_answer
from turnlog.projectors.speech import spoken_text

TYPES = ("turn_recorded", *sorted(REMOVALS))


@dataclass(frozen=True, slots=True)
class OlderConversation:
    """after_seq: its turns come after this sequence, None: it has none. user: of its first turn that names one."""

    user: str | None = None
    after_seq: int | None = None
    turn_count: int = 0
    last_bot_message: str = ""


async def older_conversation(log: Log, tenant: str, thread: str, through_seq: int) -> OlderConversation:
    """The thread up to a sequence, 0 when it has none. Raises LogUnavailable, GapInLog."""
    if not through_seq:
        return OlderConversation()
    turns: list[Recorded] = []
    async for stored in log.read_stored(tenant, thread, through_seq=through_seq, types=TYPES):
        recorded = incoming(stored).recorded  # one that cannot be read is parked, and in no read model either
        if recorded is not None and recorded.event.type in REMOVALS:
            turns.clear()
        elif recorded is not None:
            turns.append(recorded)
    return _older(turns) if turns else OlderConversation()


def _older(turns: list[Recorded]) -> OlderConversation:
    data = [turn.event.data for turn in turns]
    answers = [spoken_text(turn) for turn in data if isinstance(turn, TurnRecorded) and is_answer(turn)]
    user = next((turn.event.user for turn in turns if turn.event.user), None)
    return OlderConversation(user, turns[0].seq - 1, len(answers), answers[-1] if answers else "")
