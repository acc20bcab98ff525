"""What the extraction rules make of a memory that is written by hand."""

from datetime import datetime
from typing import Any
from uuid import UUID

from turnlog.agent.memories.by_rules import Extractor
from turnlog.agent.memories.findings import Turn
from turnlog.agent.memories.rules import load_rules
from turnlog.agent.settings import Settings

_ABOUT = ("kind", "category", "value", "importance", "rule", "dedupe_key", "strategy", "expires_at")


def fields_by_rules(settings: Settings, text: str, at: datetime) -> dict[str, Any]:
    """Fields of Memory, when the text is the one claim that a rule reads, and nothing more: with a key for a part of it
    the rest would go with the next claim of that key. {} otherwise. Raises InvalidRules."""
    turn = Turn(thread="by hand", seq=1, event_id=UUID(int=0), said_at=at, text=text)
    found = Extractor(load_rules(settings.rules_file), settings.zone).whole(turn)
    return {name: getattr(found, name) for name in _ABOUT} if found is not None else {}
