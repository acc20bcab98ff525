"""The request for an answer, from the state alone: system prompt, tiers, notes, question. Pure."""

from dataclasses import dataclass

from turnlog.agent.context import Context, ContextInput, Summary, build_context, counter_for
from turnlog.agent.context.receipt import context_hash
from turnlog.agent.context.window import MIN_BUDGET
from turnlog.agent.context.wire import Wire
from turnlog.agent.plain import content_text
from turnlog.agent.settings import Settings
from turnlog.agent.threads import context_settings
from turnlog.consumers.graph.messages import to_messages
from turnlog.consumers.graph.notes import notes, notes_message
from turnlog.consumers.graph.state import ConversationState
from turnlog.projectors.message import Message

NOTES_SHARE = 4  # notes may take a quarter of the budget


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
    if (said := notes_message(found)) is not None:
        # The room that notes take may push out a turn: only then is it known which earlier ones are in sight.
        context = _context(state, settings, model, messages, reserved=counter.wire(said))
        said = notes_message(found, _shown(context, messages))
    wires = _before_the_question(context.messages, said)
    return Request(wires, context_hash(wires), context, (said["content"],) if said else ())


def _context(
    state: ConversationState, settings: Settings, model: str, messages: list[Message], reserved: int = 0
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
        )
    )


def _shown(context: Context, messages: list[Message]) -> list[str]:
    by_seq = {message.seq: message for message in messages}
    seqs = {item.seq for tier in context.tiers for item in tier.items}
    return [content_text(by_seq[seq].content) for seq in seqs if seq in by_seq]


def _before_the_question(wires: list[Wire], said: Wire | None) -> list[Wire]:
    if said is None:
        return wires
    asked = max((place for place, wire in enumerate(wires) if wire["role"] == "user"), default=len(wires))
    return [*wires[:asked], said, *wires[asked:]]
