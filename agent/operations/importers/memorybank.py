"""MemoryBank (zhongwanjun/MemoryBank-SiliconFriend): {name: {history: {date: [{query, response}]}}}.

One thread per user, named after them; roles user and assistant. The file has only dates: a day begins at noon UTC,
and its turns are 30 seconds apart. source_id is `2023-04-27/1/query`.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from turnlog.agent.counting import counted
from turnlog.agent.operations.importers.imported import (
    MALFORMED,
    Conversation,
    Defaults,
    ImportedTurn,
    Item,
    Rejected,
    ThreadNames,
    parse_time,
    reason_of,
)
from turnlog.agent.operations.importers.jsontext import Record
from turnlog.events.contracts import TurnOrigin, TurnRecorded

BETWEEN_TURNS = timedelta(seconds=30)
_SIDES = (("query", "user"), ("response", "assistant"))


def read_memorybank(records: Iterable[Record], defaults: Defaults, stem: str) -> Iterator[Item]:
    """The turns of every user in the file."""
    names = ThreadNames(defaults, stem)
    for record in records:
        if record.error or not isinstance(record.value, dict):
            yield Rejected(record.where, record.error or "no MemoryBank file: it must be one object of users")
            continue
        for user, value in record.value.items():
            history = value.get("history") if isinstance(value, dict) else None
            if isinstance(history, dict):
                yield from _days(Conversation(defaults, names.next(user), user, user), history)
            else:
                yield Rejected(f"user {user}", "no object `history` of days")


def _days(opened: Conversation, history: dict[str, Any]) -> Iterator[Item]:
    for day, exchanges in history.items():
        if not isinstance(exchanges, list):
            yield Rejected(f"{opened.thread}, {day}", "the day is not a list of exchanges")
            continue
        try:
            noon = parse_time(day) + timedelta(hours=12)
        except ValueError as error:
            yield Rejected(f"{opened.thread}, {day}", f"{error}; {counted(len(exchanges), 'exchange')} left out")
            continue
        for number, exchange in enumerate(exchanges, 1):
            yield from _exchange(opened, day, number, exchange, noon + (number - 1) * 2 * BETWEEN_TURNS)


def _exchange(opened: Conversation, day: str, number: int, exchange: Any, time: datetime) -> Iterator[Item]:
    for side, role in _SIDES:
        source_id = f"{day}/{number}/{side}"
        try:
            yield _turn(opened, exchange, side, role, source_id, time)
        except MALFORMED as error:
            yield Rejected(f"{opened.thread}, {source_id}", reason_of(error))
        time += BETWEEN_TURNS


def _turn(opened: Conversation, exchange: Any, side: str, role: Any, source_id: str, time: datetime) -> ImportedTurn:
    text = exchange.get(side) if isinstance(exchange, dict) else None
    if not isinstance(text, str):
        raise ValueError(f"no text: the exchange has no {side}")
    name = opened.label if role == "user" else None
    origin: TurnOrigin | None = "person" if role == "user" else None  # one person talks, also where --user renames them
    data = TurnRecorded(role=role, name=name, content=text, source_id=source_id, origin=origin)
    return opened.turn(data, time.isoformat(), source_id)
