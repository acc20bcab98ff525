"""The request for an answer, from the state alone: system prompt, tiers, notes, question. Pure.

Notes are what was recalled and retrieved: one user message right before the question. These are words of users and
documents, which must not get the system's authority, and the messages before it stay the same from turn to turn, which
prompt caches need.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import NAMESPACE_OID, uuid5

from langchain_core.messages import AnyMessage
from pydantic_core import to_json

from turnlog.agent.context import Context, ContextInput, Summary, TokenCounter, build_context, counter_for
from turnlog.agent.context.cut import cut_end
from turnlog.agent.context.plain_text import content_text
from turnlog.agent.context.receipt import context_hash
from turnlog.agent.context.titles import DOCUMENTS, EARLIER, MEMORIES
from turnlog.agent.context.window import MIN_BUDGET
from turnlog.agent.context.wire import Wire
from turnlog.agent.recall.confidence import Evidence
from turnlog.agent.recall.confidence import doubt as doubt_about
from turnlog.agent.settings import Settings
from turnlog.agent.threads.state import context_settings
from turnlog.consumers.langgraph.checkpoint.messages import said, turn_of
from turnlog.consumers.langgraph.graph.state import ConversationState, question
from turnlog.events.contracts import TurnRecorded
from turnlog.projectors.models.message import Message

NOTES_SHARE = 4  # notes may take a quarter of the budget
ITEM_TOKENS = 300
_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class Request:
    """messages: in the OpenAI wire format; context_hash: SHA-256 of them as they are sent.

    context: of the conversation alone, its sequences are places in the state, from 1; notes: what was added to it.
    """

    messages: list[Wire]
    context_hash: str
    context: Context
    notes: tuple[str, ...]


def build_request(state: ConversationState, settings: Settings, model: str) -> Request:
    """Everything fits in the window, notes included. Raises WindowTooSmall."""
    counter = counter_for(model)
    messages = to_messages(state["messages"], state["conversation_id"])
    context = _context(state, settings, model, messages)
    found = notes(state, min(context.budget // NOTES_SHARE, context.budget - MIN_BUDGET), counter)
    doubt = _doubt(state, context, messages, found)
    if (noted := notes_message(found)) is not None or doubt:
        # The room that notes take may push out a turn: only then is it known which earlier turns are shown.
        context = _context(state, settings, model, messages, counter.wire(noted) if noted else 0, doubt)
        noted = notes_message(found, _shown(context, messages))
    wires = _before_the_question(context, noted)
    return Request(wires, context_hash(wires), context, (noted["content"],) if noted else ())


def _context(
    state: ConversationState,
    settings: Settings,
    model: str,
    messages: list[Message],
    reserved: int = 0,
    doubt: str | None = None,
) -> Context:
    summary = state.get("conversation_summary")
    return build_context(
        ContextInput(
            messages,
            model,
            settings.system_prompt,
            summary=Summary(summary, state.get("summary_seq")) if summary else None,
            topics=state.get("topics") or (),
            pruned_through_seq=state.get("pruned_through") or 0,
            window=settings.context_window,
            settings=context_settings(settings),
            reserved=reserved,
            doubt=doubt,
        )
    )


def _shown(context: Context, messages: list[Message]) -> list[str]:
    by_seq = {message.seq: message for message in messages}
    seqs = {item.seq for tier in context.tiers for item in tier.items}
    return [content_text(by_seq[seq].content) for seq in seqs if seq in by_seq]


def _doubt(state: ConversationState, context: Context, messages: list[Message], found: Iterable["Note"]) -> str | None:
    """The line that says that nothing answers the question; None where the model sees the whole conversation."""
    evidence = state.get("evidence")
    if not evidence or not (state.get("pruned_through") or context.dropped):
        return None
    query = question(state["messages"])
    newest = _shown(context, messages)
    return doubt_about(
        Evidence(**evidence), query, [text for text in newest if text != query] + [one.line for one in found]
    )


def _before_the_question(context: Context, noted: Wire | None) -> list[Wire]:
    """The notes before a line of doubt, which is about them too."""
    wires = context.messages
    if noted is None:
        return wires
    asked = max((place for place, wire in enumerate(wires) if wire["role"] == "user"), default=len(wires))
    asked -= 1 if context.receipt.doubt else 0
    return [*wires[:asked], noted, *wires[asked:]]


def to_messages(messages: Sequence[AnyMessage], conversation_id: str) -> list[Message]:
    """The messages with content, as a context is built from them; seq: the place in the state, from 1."""
    turns = [(place, message.id, turn_of(message)) for place, message in enumerate(messages, 1)]
    return [_message(place, f"{conversation_id}/{name}", turn) for place, name, turn in turns if turn is not None]


def _message(seq: int, place: str, turn: TurnRecorded) -> Message:
    # Token counts are kept by event id, and a message of the same id may get other content.
    identity = uuid5(NAMESPACE_OID, f"{place}/{to_json(turn).decode()}")
    return Message(seq, identity, turn.role, time=_EPOCH, origin=turn.of(None).origin or "person", **said(turn))


class Note(NamedTuple):
    """A line. words: of an earlier turn, which may be shown already; '' for other notes."""

    section: str
    line: str
    words: str = ""


def notes(state: ConversationState, limit: int, counter: TokenCounter) -> list[Note]:
    """The notes that fit into `limit` tokens: memories first, then documents, then earlier turns."""
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
        if not (note.words and any(note.words in text for text in shown)):
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
