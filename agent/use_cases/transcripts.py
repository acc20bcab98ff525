"""A whole transcript, to be written to a file: with what personal data is in it masked, or as it is."""

from turnlog.agent.privacy.export import clean_messages
from turnlog.agent.privacy.sanitise import SanitiseLevel
from turnlog.agent.runtime import Runtime
from turnlog.agent.use_cases.turns import transcript
from turnlog.projectors.models.message import Message

_ALL = 2**62


async def export_transcript(
    runtime: Runtime, tenant: str, thread: str, level: SanitiseLevel | None = SanitiseLevel.MODERATE
) -> list[Message]:
    """Oldest first. level: what is masked, None for nothing. Raises NotFound, InvalidToken."""
    found = await transcript(runtime, tenant, thread, limit=_ALL)
    return clean_messages(found.turns, level, runtime.settings.phone_regions.split(","))
