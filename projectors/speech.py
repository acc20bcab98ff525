"""What was said in a turn, as plain text: what recall, topics and episodes read. Pure."""

from collections.abc import Iterator

from turnlog.events.contracts import Content, TextBlock, ToolResultBlock, TurnRecorded

TOOL_RESULT_CHARS = 800


def spoken_text(turn: TurnRecorded) -> str:
    """The text of the turn without thinking, images and tool calls; of tool results only the beginning."""
    text = clean("\n".join(part for part in _texts(turn.content) if part))
    return clean(text[:TOOL_RESULT_CHARS]) if turn.role == "tool" else text


def clean(text: str) -> str:
    """Without outer space and NUL, which Postgres text cannot hold."""
    return text.replace("\x00", "").strip()


def only_tool_results(content: Content) -> bool:
    """Anthropic-style histories carry tool results in user turns; those ask nothing."""
    return not isinstance(content, str) and not any(isinstance(block, TextBlock) for block in content)


def _texts(content: Content) -> Iterator[str]:
    if isinstance(content, str):
        yield content
        return
    for block in content:
        if isinstance(block, TextBlock):
            yield block.text
        elif isinstance(block, ToolResultBlock):
            yield "\n".join(_texts(block.content))[:TOOL_RESULT_CHARS]
