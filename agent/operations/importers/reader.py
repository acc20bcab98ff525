"""Reads files of all formats (`read`), and makes events of their turns (`events`)."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import get_args

from turnlog.agent.operations.importers.chatgpt import read_chatgpt
from turnlog.agent.operations.importers.claude import read_claude
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
from turnlog.agent.operations.importers.jsonl import read_jsonl
from turnlog.agent.operations.importers.jsontext import Record, lines, records
from turnlog.agent.operations.importers.letta import read_letta
from turnlog.agent.operations.importers.librechat import read_librechat
from turnlog.agent.operations.importers.mem0 import read_mem0
from turnlog.agent.operations.importers.open_webui import read_open_webui
from turnlog.agent.operations.importers.openai import read_openai
from turnlog.agent.operations.importers.source_files import (
    DAMAGED,
    EXAMPLES,
    Format,
    Part,
    detect_format,
    is_blank,
    looks_like,
    opened,
)
from turnlog.agent.operations.importers.zep import read_zep
from turnlog.events.contracts import Event, EventData, ThreadOpened

SOURCE = "turnlog/import"
FORMATS: tuple[Format, ...] = get_args(Format)
RecordReader = Callable[[Iterable[Record], Defaults, str], Iterator[Item]]
_RECORD_READERS: dict[Format, RecordReader] = {
    "openai": read_openai,
    "chatgpt": read_chatgpt,
    "claude": read_claude,
    "open-webui": read_open_webui,
    "librechat": read_librechat,
    "mem0": read_mem0,
    "zep": read_zep,
    "letta": read_letta,
}


def read(path: Path, format: Format | None = None, defaults: Defaults | None = None) -> Iterator[Item]:
    """Yields the turns and memories of a file in order, with rejected and skipped pieces between them, in constant
    memory.

    The file may be gzipped. Raises ImportFailed if the file does not exist, has an unknown format or not the requested
    one, is damaged before the first turn, or contains neither a turn nor a memory.
    """
    asked = format or _detected(path)
    defaults = defaults or Defaults()
    turns, first_error = 0, ""
    try:
        for item in _items(path, asked, defaults):
            if isinstance(item, Rejected) and not (turns or first_error):
                _refuse_other_format(path, asked, item)
                first_error = f": {item.where}: {item.error}"
            turns += isinstance(item, ImportedTurn | ImportedMemory)
            yield item
    except DAMAGED as error:
        if not turns:
            raise ImportFailed(f"{path} is damaged ({error}); get a whole copy of it") from error
        yield Rejected("end of file", f"the file is damaged from here on ({error})")
    if not turns:
        _refuse_empty(path)
        raise ImportFailed(f"{path} contains no turn in the format {asked}{first_error}")


def _refuse_empty(path: Path) -> None:
    if is_blank(path):
        raise ImportFailed(f"{path} is empty: there is nothing to import")


def _items(path: Path, format: Format, defaults: Defaults) -> Iterator[Item]:
    stem = path.name.split(".")[0] or path.name
    with opened(path) as parts:
        if format == "jsonl":
            yield from read_jsonl((line for part in parts for line in lines(part.stream)), defaults, stem)
        else:
            yield from _RECORD_READERS[format](_records(parts), defaults, stem)


def _records(parts: Iterable[Part]) -> Iterator[Record]:
    """Yields the records of all parts; their places begin with the part's name, if it has one."""
    for part in parts:
        for record in records(part.stream):
            yield record._replace(where=f"{part.name}, {record.where}") if part.name else record


def _detected(path: Path) -> Format:
    try:
        detected = detect_format(path)
    except DAMAGED as error:
        raise ImportFailed(f"{path} is damaged ({error}); get a whole copy of it") from error
    if detected is None:
        _refuse_empty(path)
        known = "".join(f"\n  {name}: {example}" for name, example in EXAMPLES.items())
        raise ImportFailed(
            f"{path} has no known format: it begins with {looks_like(path)}. "
            f"If it has one of these, name it (--format, over HTTP format=):{known}"
        )
    return detected


def _refuse_other_format(path: Path, asked: Format, first: Rejected) -> None:
    """Raises ImportFailed if the first piece was refused because the file has another format."""
    detected = detect_format(path)
    if detected not in (None, asked):
        raise ImportFailed(
            f"{path} is not in the format {asked} ({first.where}: {first.error}); "
            f"it looks like {detected}: use --format {detected}"
        )


def events(items: Iterable[Item], tenant: str) -> Iterator[Event | ImportedMemory | Rejected | Skipped | Repeated]:
    """Yields the items, with an event in place of each turn, and an event `thread_opened` before the first turn of each
    thread. The id of `thread_opened` depends only on tenant, thread and the first turn's time, so a changed title does
    not open the thread twice.
    """
    opened: set[str] = set()
    for item in items:
        if isinstance(item, ImportedTurn):
            if item.thread not in opened:
                opened.add(item.thread)
                opening_id = import_id(tenant, item.thread, "thread_opened", item.time)
                yield _event(item._replace(id=opening_id), tenant, ThreadOpened(label=item.label))
            yield _event(item, tenant, item.data)
        else:
            yield item


def _event(turn: ImportedTurn, tenant: str, data: EventData) -> Event:
    """Returns the event of an imported turn. `data` is an instance already, so building the event does not validate it
    again."""
    return Event(
        id=turn.id, source=SOURCE, time=turn.time, tenant=tenant, thread=turn.thread, user=turn.user, data=data
    )
