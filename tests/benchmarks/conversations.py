"""Provides the turns for benchmarks: real IRC messages if the file exists, else generated ones."""

import gzip
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from turnlog.events.contracts import Event, TurnRecorded

DEFAULT_FOLDER = Path(__file__).parents[3] / "shared" / "data"
_START = datetime(2024, 1, 1, tzinfo=UTC)
_WORDS = ("the", "server", "does", "not", "start", "after", "an", "update", "and", "my", "disk", "is", "full", "again")


@dataclass(frozen=True, slots=True)
class Conversations:
    """A source of turns. Every call yields the same turns with new ids."""

    folder: Path

    @property
    def irc(self) -> Path:
        return self.folder / "irc.jsonl.gz"

    @property
    def locomo(self) -> Path:
        return self.folder / "locomo-dev.json"

    @property
    def described(self) -> str:
        return "real IRC messages" if self.irc.exists() else f"generated messages, as there is no {self.irc.name}"

    def events(self, count: int) -> Iterator[Event]:
        """Yields `count` events with turns, or fewer if the file contains fewer."""
        turns = _irc(self.irc) if self.irc.exists() else _generated()
        return itertools.islice(turns, count)

    def texts(self, count: int) -> list[str]:
        return [str(event.data.content) for event in self.events(count) if isinstance(event.data, TurnRecorded)]


def _irc(path: Path) -> Iterator[Event]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            said = json.loads(line)
            yield _turn(said["thread"], said["user"], said["text"], datetime.fromisoformat(said["time"]))


def _generated() -> Iterator[Event]:
    for number in itertools.count():
        text = " ".join(_WORDS[number % 5 : 6 + number % 9]) + f" {number}"
        yield _turn(f"thread-{number // 20}", f"user-{number % 5}", text, _START + timedelta(seconds=number))


def _turn(thread: str, name: str, text: str, time: datetime) -> Event:
    return Event(time=time, thread=thread, data=TurnRecorded(role="user", name=name, content=text))
