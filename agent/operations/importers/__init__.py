"""Reads files of other products as turns (`read`), and exports turns as files (`export_*`)."""

from turnlog.agent.operations.importers.imported import (
    Defaults,
    ImportedMemory,
    ImportedTurn,
    ImportFailed,
    Item,
    Rejected,
    Repeated,
    Skipped,
    import_id,
)
from turnlog.agent.operations.importers.reader import FORMATS, events, read
from turnlog.agent.operations.importers.source_files import Format, check_unpacked, detect_format
from turnlog.agent.operations.importers.transcript_export import export_jsonl, export_openai

__all__ = [
    "FORMATS",
    "Defaults",
    "Format",
    "ImportFailed",
    "ImportedMemory",
    "ImportedTurn",
    "Item",
    "Rejected",
    "Repeated",
    "Skipped",
    "check_unpacked",
    "detect_format",
    "events",
    "export_jsonl",
    "export_openai",
    "import_id",
    "read",
]
