"""Matches messages of OpenAI clients, which mostly send the complete history, with stored conversations: finds the
conversation and the new messages. A history that differs from the stored conversation leads to a fork."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from turnlog.agent.context.client_texts import without_additions
from turnlog.agent.context.message_units import cuts
from turnlog.agent.context.plain_text import content_text
from turnlog.agent.context.wire import called, message_content
from turnlog.agent.conversations.archive.restoring import restored_if_archived
from turnlog.agent.conversations.blocks import content_of
from turnlog.agent.conversations.ownership import own_thread
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts.origin import is_name_of
from turnlog.events.errors import InvalidEvent
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.forks import related
from turnlog.projectors.models.conversation.message import Message, messages_page, thread_messages, threads_with

Wire = Mapping[str, Any]
History = Literal["all", "some", "none"]
READS = ("messages", "thread_activity", "archives")
SYSTEM = ("system", "developer")
# Parts that a turn keeps unchanged. For others (audio, files) a turn keeps only a note, so the model gets the caller's
# message.
KEPT_PARTS = ("text", "image_url")
CANDIDATES = 8
TURNS_OF_A_RUN = 20  # maximum turns from a question to its answer; a client sees only these two


@dataclass(frozen=True, slots=True)
class RequestPlace:
    """The place of a request in a conversation. thread: None for a new conversation. new: the messages that are not
    stored yet. after: the sequence of the last turn that the request shares, if the conversation goes on differently
    after it; the request then needs a fork. end: the sequence of the thread's last turn, if the request shares it."""

    thread: str | None
    new: Sequence[Wire]
    after: int | None = None
    end: int | None = None


def split_prompt(messages: Sequence[Wire]) -> tuple[str | None, Sequence[Wire]]:
    """Returns the leading system messages as one text (None if there are none), and the other messages."""
    said = next((at for at, message in enumerate(messages) if message.get("role") not in SYSTEM), len(messages))
    prompts = [content_text(message.get("content") or "") for message in messages[:said]]
    return "\n\n".join(prompts) if said else None, messages[said:]


def with_own_last(messages: list[Any], sent: Sequence[Wire]) -> list[Any]:
    """Returns the messages for a model. If the stored turn lacks parts of the caller's last message, such as audio, the
    caller's message takes its place."""
    if sent and messages[-1]["role"] == sent[-1].get("role"):
        content = sent[-1].get("content")
        if isinstance(content, list) and any(part.get("type") not in KEPT_PARTS for part in content):
            return [*messages[:-1], sent[-1]]
    return messages


def unseen(messages: Sequence[Wire], known: Sequence[Message]) -> Sequence[Wire] | None:
    """Returns those messages that the thread lacks: the ones after the longest prefix with which the thread ends.
    Returns None if it ends with no prefix of them."""
    keys, stored = keys_of(messages), [keys_of_turn(message) for message in known]
    for shared in range(min(len(keys), len(stored)), 0, -1):
        if all(key in turn for key, turn in zip(keys, stored[-shared:], strict=False)):
            return messages[shared:]
    return None


def shared_run(keys: Sequence[str], known: Sequence[Collection[str]]) -> tuple[int, int]:
    """Returns (count, end) for the longest prefix of `keys` that equals known[end - count : end]; if there are
    several, the last."""
    best = (0, 0)
    for start in range(len(known)):
        count = 0
        while count < len(keys) and start + count < len(known) and keys[count] in known[start + count]:
            count += 1
        best = max(best, (count, start + count)) if count else best
    return best


async def place_of(
    runtime: Runtime,
    tenant: str,
    user: str,
    thread: str | None,
    messages: Sequence[Wire],
    *,
    history: History = "some",
    claims: bool = True,
    own_tools: bool = False,
) -> RequestPlace:
    """Returns the place of a request's messages in a conversation.

    thread: the client's name for it; None: the conversation is recognised by the assistant's messages.

    history: which part of the history the messages contain: "all", "none", or "some", which means that the messages of
    a named thread are new unless one is from the assistant. claims: a named thread without events may become the
    user's; if False, the request begins a new conversation instead. own_tools: agents answer with their own tools,
    whose calls and results the client has not seen.

    Raises NotFound for a conversation that the user deleted, Forbidden for one that another user shares with the user,
    InvalidToken, and InvalidEvent for a message that cannot be used.
    """
    if thread is not None:
        thread = await own_thread(runtime, tenant, thread, user, begins=True)
        if not claims and not await runtime.log.thread_head(tenant, thread):
            return RequestPlace(None, messages)
        if history == "none" or (history == "some" and not _has_answers(messages)):
            return await _not_stored_yet(runtime, tenant, thread, messages)
    elif not _has_answers(messages):
        return RequestPlace(None, messages)
    async with runtime.reading(*READS) as conn:
        if thread is not None:
            if not await messages_page(conn, tenant, thread, 1):
                return RequestPlace(thread, messages)
            threads = await related(conn, tenant, thread, user, CANDIDATES)
            place = await _best(runtime, conn, tenant, threads, messages, own_tools=own_tools)
            if place is not None:
                return place
        texts, calls = _said(messages)
        first = len(messages) * (TURNS_OF_A_RUN if own_tools else 1)
        threads = await threads_with(conn, tenant, user, texts, calls, first, CANDIDATES)
        place = await _best(runtime, conn, tenant, threads, messages, from_start=True, own_tools=own_tools)
        return place or RequestPlace(None, messages)


async def place_behind(
    runtime: Runtime, tenant: str, user: str, thread: str, seq: int, new: Sequence[Wire]
) -> RequestPlace:
    """Returns the place of messages that continue after the turn at a sequence, without messages that a failed request
    has already stored.

    Raises NotFound for an unknown or deleted conversation, and the other errors of place_of.
    """
    thread = await own_thread(runtime, tenant, thread, user)
    async with runtime.reading(*READS, of=(tenant, thread)) as conn:
        await restored_if_archived(runtime, conn, tenant, thread)
        behind = await messages_page(conn, tenant, thread, len(new) + 1, after_seq=seq)
    keys = keys_of(new)
    if len(behind) <= len(keys) and all(key in keys_of_turn(turn) for key, turn in zip(keys, behind, strict=False)):
        return RequestPlace(thread, new[len(behind) :], end=behind[-1].seq if behind else seq)
    return RequestPlace(thread, new, seq)


async def _not_stored_yet(runtime: Runtime, tenant: str, thread: str, messages: Sequence[Wire]) -> RequestPlace:
    """Returns the place of new messages, without messages that a failed request has already stored."""
    async with runtime.reading(*READS, of=(tenant, thread)) as conn:
        known = await messages_page(conn, tenant, thread, max(1, len(messages)), newest=True)
    behind = unseen(messages, known)
    return RequestPlace(thread, messages) if behind is None else RequestPlace(thread, behind, end=known[-1].seq)


async def _best(
    runtime: Runtime,
    conn: Connection,
    tenant: str,
    threads: Sequence[str],
    messages: Sequence[Wire],
    from_start: bool = False,
    own_tools: bool = False,
) -> RequestPlace | None:
    """Returns the place in the thread that shares most of the messages; among equal threads, one that ends with them.

    from_start: a thread counts only if it begins with these messages and shares at least one answer. Returns None if no
    thread shares a message.
    """
    keys = keys_of(messages)
    best: tuple[tuple[int, bool], RequestPlace] | None = None
    for thread in threads:
        await restored_if_archived(runtime, conn, tenant, thread)
        turns = await thread_messages(conn, tenant, thread)
        if own_tools:
            turns = [turn for turn in turns if not turn.tool_calls and turn.role != "tool"]
        count, end = shared_run(keys, [keys_of_turn(turn) for turn in turns])
        if from_start and (count != end or not _has_answers(messages[:count])):
            continue
        at_end = end == len(turns)
        if not at_end:
            cut = max((possible for possible in cuts(turns) if possible <= end), default=0)
            count, end = count - (end - cut), cut
        rank = (count, at_end)
        if count > 0 and (best is None or rank > best[0]):
            shared = turns[end - 1].seq
            best = rank, RequestPlace(thread, messages[count:], None if at_end else shared, shared if at_end else None)
    return best[1] if best else None


def keys_of(messages: Sequence[Wire]) -> list[str]:
    """Returns a key for each message; a turn that was stored from the message has the same key. Raises InvalidEvent.

    Chat programs put documents into the last message, but send only the person's own words in later requests. So only
    the person's own words count, except in the last message, where the same question about another document is a new
    question.
    """
    return [
        *(_key(message, without_additions) for message in messages[:-1]),
        *(_key(message, str) for message in messages[-1:]),
    ]


def keys_of_turn(turn: Message) -> tuple[str, str]:
    parts = (turn.role, turn.name, turn.content, [_call_key(call) for call in turn.tool_calls], turn.tool_call_id)
    return _dumped(*parts, str), _dumped(*parts, without_additions)


def _key(message: Wire, words: Callable[[str], str]) -> str:
    try:
        calls = [_call_key(call) for call in message.get("tool_calls") or ()]
        said = message_content(message)
        content = content_of("" if said is None else said)
    except (ValueError, AttributeError) as error:
        raise InvalidEvent(f"a message cannot be used: {error}") from None
    blocks = content if isinstance(content, str) else [block.model_dump(exclude_none=True) for block in content]
    role = "system" if message.get("role") in SYSTEM else message.get("role")
    return _dumped(role, message.get("name"), blocks, calls, message.get("tool_call_id"), words)


def _call_key(call: Wire) -> list[Any]:
    """Returns a call in a form that does not depend on spaces in the JSON of its arguments."""
    name, arguments = called(call)
    try:
        return [call.get("id"), name, json.loads(arguments or "{}")]
    except (ValueError, TypeError):
        return [call.get("id"), name, arguments]


def _dumped(role: Any, name: Any, content: Any, calls: list[Any], call_id: Any, words: Callable[[str], str]) -> str:
    """Returns a message as one text for comparison. name: the speaker's name, which distinguishes users' turns; answers
    are stored without a name. words: returns the part of a user's text that counts."""
    speaker = name if role == "user" and isinstance(name, str) and not is_name_of(name, None) else None
    if isinstance(content, list) and all(block.get("type") == "text" for block in content) and len(content) < 2:
        content = content[0]["text"] if content else ""
    if isinstance(content, str):
        content = (words(content) if role == "user" else content).strip()
    elif role == "user":
        content = [
            {**block, "text": words(block["text"])} if block.get("type") == "text" else block for block in content
        ]
    return json.dumps([role, speaker, content, calls, call_id], sort_keys=True, ensure_ascii=False)


def _has_answers(messages: Sequence[Wire]) -> bool:
    return any(message.get("role") == "assistant" for message in messages)


def _said(messages: Sequence[Wire]) -> tuple[list[str], list[str]]:
    """Returns the texts of the assistant and the ids of its tool calls."""
    answers = [message for message in messages if message.get("role") == "assistant"]
    texts = [content_text(message.get("content") or "") for message in answers]
    return [text for text in texts if text], [
        str(call.get("id")) for message in answers for call in message.get("tool_calls") or ()
    ]
