"""Reads the turns of LoCoMo's and MemoryBank's conversations, with the same ids as `turnlog import`."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from turnlog.agent.operations.importers import Defaults, ImportedTurn
from turnlog.agent.operations.importers.imported import Conversation, parse_time
from turnlog.events.contracts import Block, Content, ImageBlock, TextBlock, TurnRecorded

BETWEEN_TURNS = timedelta(seconds=30)
_SESSION = re.compile(r"session_(\d+)$")


def locomo_turns(sample: dict[str, Any]) -> Iterator[ImportedTurn]:
    """Yields the turns of one conversation of LoCoMo (snap-research/locomo): two people talk over many sessions, and
    neither is an assistant.

    thread = label = sample_id, source_id = dia_id, name = the speaker, role user for both. A session's date is taken as
    UTC and its turns come 30 seconds apart. A caption becomes searchable text, `[image: caption]`, before the image's
    URL. Raises ValueError for a malformed date, KeyError for a turn without text.
    """
    name, sessions = sample["sample_id"], sample["conversation"]
    conversation = Conversation(Defaults(), name, name, name)
    seen: set[str] = set()
    for number in sorted(int(match[1]) for match in map(_SESSION.match, sessions) if match):
        start = datetime.strptime(sessions[f"session_{number}_date_time"], "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
        for position, turn in enumerate(sessions[f"session_{number}"]):
            source_id = turn["dia_id"]
            data = TurnRecorded(role="user", name=turn["speaker"], content=_content(turn), source_id=source_id)
            key = source_id if source_id not in seen else None
            seen.add(source_id)
            conversation.number += 1
            yield conversation.turn(data, (start + position * BETWEEN_TURNS).isoformat(), key)


def _content(turn: dict[str, Any]) -> Content:
    caption, urls = turn.get("blip_caption"), turn.get("img_url") or []
    text: str = turn["text"] if not caption else f"{turn['text']} [image: {caption}]".lstrip()
    images = [ImageBlock(url=url) for url in ([urls] if isinstance(urls, str) else urls)]
    blocks: tuple[Block, ...] = (TextBlock(text=text), *images)
    return blocks if images else text


def memorybank_turns(user: str, history: dict[str, list[dict[str, str]]]) -> Iterator[ImportedTurn]:
    """Yields the turns of one user of MemoryBank (zhongwanjun/MemoryBank-SiliconFriend); `history` is {date: [{query,
    response}]}.

    One thread, named after the user; roles user and assistant. The data has only dates: a day begins at noon UTC, and
    its turns are 30 seconds apart. source_id is `2023-04-27/1/query`. Raises ValueError for a malformed date, KeyError
    for an incomplete exchange.
    """
    conversation = Conversation(Defaults(), user, user, user)
    sides: tuple[tuple[str, Literal["user", "assistant"]], ...] = (("query", "user"), ("response", "assistant"))
    for day, exchanges in history.items():
        time = parse_time(day) + timedelta(hours=12)
        for number, exchange in enumerate(exchanges, 1):
            for side, role in sides:
                source_id = f"{day}/{number}/{side}"
                name, origin = (user, "person") if role == "user" else (None, None)
                said = {"role": role, "name": name, "content": exchange[side], "source_id": source_id, "origin": origin}
                yield conversation.turn(TurnRecorded.model_validate(said), time.isoformat(), source_id)
                time += BETWEEN_TURNS
