"""A conversation from before it had a session, as the log has it: it goes on with its whole history (B, 兼容性处理)."""

from dataclasses import dataclass

from turnlog.agent.sessions.lineage import Lineage, lineage
from turnlog.events.contracts import TurnRecorded
from turnlog.events.log import Log
from turnlog.projectors.session_state import is_answer
from turnlog.projectors.speech import spoken_text


@dataclass(frozen=True, slots=True)
class OlderConversation:
    """after_seq: its turns come after this sequence, None: it has none. user: whose it is, None: nobody's yet."""

    user: str | None = None
    after_seq: int | None = None
    turn_count: int = 0
    last_bot_message: str = ""


async def older_conversation(log: Log, tenant: str, thread: str, through_seq: int) -> OlderConversation:
    """The thread up to a sequence, 0 when it has none, with a fork's shared past. Raises LogUnavailable, GapInLog."""
    return _older(await lineage(log, tenant, thread, through_seq)) if through_seq else OlderConversation()


def _older(found: Lineage) -> OlderConversation:
    data = [turn.event.data for turn in found.turns]
    answers = [spoken_text(turn) for turn in data if isinstance(turn, TurnRecorded) and is_answer(turn)]
    after = found.turns[0].seq - 1 if found.turns else None
    return OlderConversation(found.user, after, len(answers), answers[-1] if answers else "")
