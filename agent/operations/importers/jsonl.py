"""Reads turnlog's own format, one turn per line: {thread, user, text|content, time, role?, name?, source_id?, label?}.

`user` is the speaker and becomes the turn's `name` when the role is user and the line has no `name`; it is also the
owner of the turn unless --user names one. The default `source_id` is the line number (L12). Optional fields:
tool_calls, tool_call_id, agent, model, tokens_in, tokens_out, latency_ms, origin, and from an export `event_id` with
its `tenant`: a turn that is imported into the same tenant and thread keeps its event id. Other fields are skipped and
reported by name. If --user names another owner than the line, the origins `person` and `participant` are decided again.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from turnlog.agent.conversations.blocks import content_of
from turnlog.agent.operations.importers.imported import (
    Clock,
    Defaults,
    ImportedTurn,
    Item,
    Rejected,
    Repeated,
    Skipped,
    import_id,
    reason_of,
)
from turnlog.agent.operations.importers.jsontext import TOO_LONG, parse
from turnlog.events.contracts import TurnRecorded
from turnlog.events.contracts.base import in_calendar

_COPIED = frozenset(("tool_calls", "tool_call_id", "agent", "model", "tokens_in", "tokens_out", "latency_ms", "origin"))
_FIELDS = _COPIED | {"thread", "user", "text", "content", "time", "role", "name", "source_id", "label"}
_FIELDS |= {"event_id", "tenant"}


def read_jsonl(lines: Iterable[bytes | None], defaults: Defaults, stem: str) -> Iterator[Item]:
    """Yields the turns of the lines; None stands for a line that is too long. stem: the thread of lines that do not
    name one."""
    clocks: defaultdict[str, Clock] = defaultdict(lambda: Clock(defaults.base_time))
    seen = set[int]()
    for number, line in enumerate(lines, 1):
        if line is None:
            yield Rejected(f"line {number}", TOO_LONG)
        elif not line.isspace():
            try:
                value = parse(line)
                turn = _turn(value, number, defaults, stem, clocks)
            except ValueError as error:
                yield Rejected(f"line {number}", reason_of(error))
            else:
                for name in (name for name in value if name not in _FIELDS):
                    yield Skipped(f"line {number}", f"the unknown field {name[:40]!r}")
                yield turn if _is_first(value, turn, seen) else Repeated(f"line {number}", str(turn.data.source_id))


def _is_first(line: dict[str, Any], turn: ImportedTurn, seen: set[int]) -> bool:
    """Returns False for a line with the same source_id and words as an earlier one. Only hashes of earlier lines are
    kept.

    Returns True for every line with an event id, because the id identifies the turn. The same source_id with other
    words is a different turn.
    """
    if "event_id" in line or line.get("source_id") is None:
        return True
    key = hash((turn.thread, turn.data.model_dump_json()))
    is_first = key not in seen
    seen.add(key)
    return is_first


def _turn(line: Any, number: int, defaults: Defaults, stem: str, clocks: Mapping[str, Clock]) -> ImportedTurn:
    if not isinstance(line, dict):
        raise ValueError(f"a turn must be an object, not {type(line).__name__}")
    thread = defaults.thread or _id(line, "thread") or stem
    data = _data(line, number, defaults.user)
    time = in_calendar(clocks[thread].time(line.get("time")))
    return ImportedTurn(
        id=_event_id(line, number, defaults.tenant, thread, data, time),
        thread=thread,
        label=_id(line, "label"),
        user=defaults.user or _id(line, "user"),
        time=time,
        data=data,
        is_dated=clocks[thread].is_dated,
    )


def _data(line: dict[str, Any], number: int, owner: str | None) -> TurnRecorded:
    role = line.get("role", "user")
    name = line["name"] if "name" in line else _id(line, "user") if role == "user" else None
    source_id = _id(line, "source_id") if "source_id" in line else f"L{number}"
    content = content_of(line.get("content", line.get("text")))
    copied = {key: line[key] for key in _COPIED & line.keys()}
    if owner and _id(line, "user") not in (None, owner) and copied.get("origin") in ("person", "participant"):
        del copied["origin"]
    return TurnRecorded(role=role, content=content, name=name, source_id=source_id, **copied)


def _event_id(line: dict[str, Any], number: int, tenant: str, thread: str, data: TurnRecorded, time: datetime) -> UUID:
    """Returns the event id of a line's turn. The content is part of the key, because two files may both have an L12,
    and a source_id may be used twice."""
    if "event_id" in line and line.get("tenant") == tenant and line.get("thread") == thread:
        return UUID(str(line["event_id"]))
    content = data.content if isinstance(data.content, str) else repr(line.get("content"))
    source = data.source_id if line.get("source_id") is not None else f"L{number}"
    return import_id(tenant, thread, f"{source}\n{data.role}\n{data.name}\n{content}", time)


def _id(line: dict[str, Any], key: str) -> str | None:
    value = line.get(key)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"{key} is {type(value).__name__}; it must be text")
