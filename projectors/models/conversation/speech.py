"""Extracts the plain text of a turn for recall, topics and episodes. Pure."""

from collections.abc import Iterator

from turnlog.events.contracts import Content, TextBlock, ToolResultBlock, TurnRecorded
from turnlog.projectors.models.conversation.message import Message

TOOL_RESULT_CHARS = 800
RECALL_TOOL = "recall_memory"
OFFLINE_MODEL = "offline-extractive"


def spoken_text(turn: TurnRecorded) -> str:
    """Returns the text of a turn without thinking, images and tool calls; tool results are cut to TOOL_RESULT_CHARS."""
    text = clean("\n".join(part for part in _texts(turn.content) if part))
    return clean(text[:TOOL_RESULT_CHARS]) if turn.role == "tool" else text


def attributed_to(turn: TurnRecorded | Message) -> str:
    """Returns the speaker for a turn without a name: `program` or `quoted` if the user sent words of that origin, else
    the role."""
    return turn.origin if turn.role == "user" and turn.origin in ("program", "quoted") else turn.role


def repeats_memory(turn: TurnRecorded | Message) -> bool:
    """Returns whether a turn only repeats memories: a result of turnlog's recall tool, or an answer made without a
    model."""
    return (turn.role == "tool" and turn.name == RECALL_TOOL) or turn.model == OFFLINE_MODEL


def clean(text: str) -> str:
    """Returns the text without surrounding space and without NUL, which Postgres text cannot store."""
    return text.replace("\x00", "").strip()


def _texts(content: Content) -> Iterator[str]:
    if isinstance(content, str):
        yield content
        return
    for block in content:
        if isinstance(block, TextBlock):
            yield block.text
        elif isinstance(block, ToolResultBlock):
            yield "\n".join(_texts(block.content))[:TOOL_RESULT_CHARS]
