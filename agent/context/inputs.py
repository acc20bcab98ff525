"""Defines the inputs of a context."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnlog.agent.context.digest import Summary
from turnlog.agent.context.wire import Wire
from turnlog.events.contracts import KnownOfUser
from turnlog.projectors.models.conversation.message import Message


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """MEMORY_FULL_RECENT_COUNT, MEMORY_CONDENSED_TOOL_MAX, MEMORY_KEEP_THINKING and MEMORY_STRICT_TIERS.

    keep_thinking: send thinking blocks of tier 3 as `<thinking>` text, because the API has no field for them.
    share_unused: tier 2 may use tokens that the other tiers leave; False with strict tiers. Ten short messages fill a
    hundredth of a large window; with fixed shares, half of the window would stay empty while messages are left out.
    """

    full_recent_count: int = 10
    condensed_tool_max: int = 200
    keep_thinking: bool = False
    share_unused: bool = True


@dataclass(frozen=True, slots=True)
class ContextInput:
    """Everything that a context depends on.

    messages: the conversation state after pruning. pruned_through_seq: turns up to this sequence were pruned (0: none),
    so that tier 1 covers them even if the rest fits. window: tokens; 0 infers it from the model. as_of_seq: leaves out
    later turns. topics: most important first. tools: OpenAI tool schemas. recalled_chunks, memories, known: content
    that was added to the prompt, for the receipt. reserved: tokens of messages that the caller adds. notes: messages
    outside the conversation; they are placed right before the latest user message, so that the prefix stays the same
    from turn to turn. relevant: sequences of turns to keep, best first; if not everything fits, they come first in tier
    2. budget: tokens, as in a receipt; None computes them. doubt: a line after the notes, which says that no result
    answers the question; left out if neither the turns nor the safety margin leave room for it. answer_tokens: maximum
    number of tokens in the answer; 0 if unknown. places: the position of every turn of the thread, by sequence, if the
    conversation lacks some turns.
    """

    messages: Sequence[Message]
    model: str
    system_prompt: str = ""
    tools: Sequence[Wire] = ()
    summary: Summary | None = None
    topics: Sequence[str] = ()
    pruned_through_seq: int = 0
    window: int = 0
    as_of_seq: int | None = None
    settings: ContextSettings = ContextSettings()
    recalled_chunks: tuple[str, ...] = ()
    memories: tuple[str, ...] = ()
    known: KnownOfUser | None = None
    reserved: int = 0
    notes: Sequence[Wire] = ()
    relevant: Sequence[int] = ()
    budget: int | None = None
    doubt: str | None = None
    answer_tokens: int = 0
    places: Mapping[int, int] | None = None
