"""Defines the inputs of a context."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnlog.agent.context.digest import Summary
from turnlog.agent.context.wire import Wire
from turnlog.events.contracts import KnownOfUser
from turnlog.projectors.models.conversation.message import Message


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """The settings MEMORY_FULL_RECENT_COUNT, MEMORY_CONDENSED_TOOL_MAX, MEMORY_KEEP_THINKING and MEMORY_STRICT_TIERS.

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
    """Everything that a context depends on. Sizes are in tokens.

    - messages: the conversation after pruning.
    - tools: OpenAI tool schemas.
    - topics: of the conversation, most important first.
    - pruned_through_seq: sequence of the last pruned turn, or 0. If turns were pruned, the context has tier 1 even if
      everything else fits.
    - window: size of the context window; 0 means that of the model.
    - as_of_seq: turns after this sequence are left out.
    - recalled_chunks, memories, known: contents that were added to the prompt; they are only copied to the receipt.
    - reserved: size of messages that the caller adds to the context.
    - notes: messages that are not part of the conversation. They are placed right before the latest user message, so
      that the messages before it stay the same from turn to turn.
    - relevant: sequences of turns to prefer, best first. If not everything fits, they get into tier 2 first.
    - budget: size of all tiers, as in a receipt; None computes it.
    - doubt: a line after the notes which warns that the turns probably do not answer the question. It is left out if
      neither the turns nor the safety margin leave room for it.
    - answer_tokens: maximum size of the answer; 0 if unknown.
    - places: position of each turn in the thread, by sequence; needed only if `messages` lacks some turns.
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
