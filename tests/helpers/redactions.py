"""Performs only the part of a redaction that changes the log, which is faster than an entire redaction."""

from uuid import UUID

from helpers.stage import Stage

from turnlog.agent.privacy.redaction import redact
from turnlog.agent.privacy.redaction.redact import plan_redaction


async def replaced_in_log(stage: Stage, seq: int, words: str) -> None:
    plan = await plan_redaction(stage.runtime, "default", "t", seq, words)
    turn_id = plan.turn.event.id
    begun = redact.TurnRedacted(redaction=UUID(int=1), conversation="t", turn_id=turn_id, seq=seq, whole=False)
    await redact._replace(stage.runtime, plan, begun)
