"""What was recalled and retrieved, as one message for the model. Pure.

A user message right before the question: these are words of users and documents, which must not gain the system's
authority, and the messages before it stay the same from turn to turn, which prompt caches need.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from turnlog.agent.context import TokenCounter
from turnlog.agent.context.cut import cut_end
from turnlog.agent.context.wire import Wire
from turnlog.consumers.graph.state import ConversationState

ITEM_TOKENS = 300
MEMORIES = "[LONG-TERM MEMORIES]"
EARLIER = "[EARLIER IN THIS CONVERSATION]"
DOCUMENTS = "[DOCUMENTS]"


class Note(NamedTuple):
    """A line. says: the words of an earlier turn, which may be in sight already; '' for what is no turn."""

    section: str
    line: str
    says: str = ""


def notes(state: ConversationState, limit: int, counter: TokenCounter) -> list[Note]:
    """What finds room in `limit` tokens: memories first, then documents, then earlier turns."""
    found: list[Note] = []
    room = limit - counter.wire(_wire(""))
    for note in _all(state):
        line = cut_end(note.line, ITEM_TOKENS, counter)
        new = all(note.section != other.section for other in found)
        cost = counter.text(f"{line}\n") + (counter.text(f"\n\n{note.section}\n") if new else 0)
        if cost <= room:
            room -= cost
            found.append(note._replace(line=line))
    return found


def notes_message(found: Iterable[Note], shown: Sequence[str] = ()) -> Wire | None:
    """The message, without turns that the texts of `shown` hold; None when nothing is left."""
    sections: dict[str, list[str]] = {}
    for note in found:
        if not (note.says and any(note.says in text for text in shown)):
            sections.setdefault(note.section, []).append(note.line)
    text = "\n\n".join("\n".join([title, *lines]) for title, lines in sections.items())
    return _wire(text) if text else None


def _wire(text: str) -> Wire:
    return {"role": "user", "content": text}


def _all(state: ConversationState) -> Iterator[Note]:
    for memory in (state.get("memory_context") or "").splitlines():
        yield Note(MEMORIES, f"- {memory}")
    for found in state.get("retrieval_results") or ():
        yield Note(DOCUMENTS, f"- {_flat(found['text'])}")
    for turn in state.get("episodic_memory") or ():
        line = f"- {turn['timestamp'][:10]} {_flat(turn['role'])}: {_flat(turn['content'])}"
        yield Note(EARLIER, line, turn["content"])


def _flat(text: str) -> str:
    return " ".join(text.split())
