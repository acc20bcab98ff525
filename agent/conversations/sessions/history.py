"""Builds the history text of a session and counts its tokens. Pure.

A line is a message as `User: …` or `Assistant: …`, or with the name of another speaker; a round of tools is one line
with its calls and short results.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from turnlog.agent.context import TokenCounter
from turnlog.agent.context.condense import MARK, TOOL_MAX, result_text
from turnlog.agent.context.titles import SUMMARY_TITLE
from turnlog.agent.context.wire import calls, results
from turnlog.events.contracts import SegmentRules
from turnlog.projectors.models.conversation.message import Message
from turnlog.projectors.models.conversation.speech import attributed_to

LEFT_OUT = "[{count} earlier turns are left out here: the history is longer than the window of {window:,} tokens]"
LEFT_OUT_TOKENS = 40
_SPEAKERS = {
    "user": "User",
    "assistant": "Assistant",
    "system": "System",
    "tool": "Tool",
    "program": "Program",
    "quoted": "Quoted",
}
_SHOWN_BLOCKS = ("text", "image")

Turn = Sequence[Message]
Line = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class History:
    """The history for a prompt. history: cut to fit the window. full_history: the complete history. tokens: those of
    full_history and the query."""

    history: str
    full_history: str
    tokens: int
    ratio: float
    should_checkpoint: bool


def build_history(
    summary: str, turns: Sequence[Turn], query: str, rules: SegmentRules, counter: TokenCounter
) -> History:
    """Returns the history for a prompt. summary: "" if there is none before the turns.

    If the history exceeds the window, the oldest turns are replaced by a line with their number; the newest turn always
    stays.
    """
    head = summary_text(summary)
    head_tokens, query_tokens = counter.cached_text(head), counter.cached_text(query)
    sizes = [turn_tokens(turn, counter) for turn in turns]
    total = head_tokens + sum(sizes) + query_tokens
    window = rules.model_context_window
    full = _joined(head, turns)
    room = window - head_tokens - query_tokens - LEFT_OUT_TOKENS
    kept = len(turns) if total <= window else _newest(sizes, room)
    ratio = total / window
    return History(
        full if kept == len(turns) else _joined(head, turns[-kept:], len(turns) - kept, window),
        full,
        total,
        ratio,
        ratio >= rules.token_threshold_ratio,
    )


def summary_text(summary: str) -> str:
    return f"{SUMMARY_TITLE}\n{summary}\n\n" if summary else ""


def turn_tokens(turn: Turn, counter: TokenCounter) -> int:
    """Returns the number of tokens of the turn's lines with their line ends; each line is counted once per process."""
    return sum(_line_tokens(line, counter) for line in lines_of(turn))


def retained(turns: Sequence[Turn], recent_turns: int, rules: SegmentRules, counter: TokenCounter) -> int:
    """Returns how many of the newest turns stay complete after a checkpoint: up to recent_turns, at least one, and at
    most half of the threshold's tokens, so that the next segment has room."""
    half = int(rules.token_threshold_ratio * rules.model_context_window) // 2
    newest = turns[-max(1, recent_turns) :]
    return _newest([turn_tokens(turn, counter) for turn in newest], half)


def lines_of(turn: Turn) -> Iterator[Line]:
    """Yields the lines of the turn; results of tools belong to the message that called the tools."""
    line: list[Message] = []
    for message in turn:
        if line and calls(line[0]) and results(message) and not words(message):
            line.append(message)
            continue
        if line:
            yield tuple(line)
        line = [message]
    if line:
        yield tuple(line)


def line_text(line: Line) -> str:
    """Returns the text of a line, or '' if there is nothing to show (only thinking)."""
    said = [words(line[0])]
    for call in calls(line[0]):
        name, arguments = call.wire["function"]["name"], call.wire["function"]["arguments"]
        said.append(f"[called {_short(f'{name}({arguments})')}]")
    said += [f"[result: {_short(result.text)}]" for message in line for result in results(message)]
    text = " ".join(filter(None, said))
    name = line[0].name if line[0].origin == "participant" else None
    return f"{name or _SPEAKERS[attributed_to(line[0])]}: {text}" if text else ""


def words(message: Message) -> str:
    """Returns the content of the message itself: its text, and notes for images."""
    if message.role == "tool":
        return ""
    content = message.content
    shown = content if isinstance(content, str) else [b for b in content if b["type"] in _SHOWN_BLOCKS]
    return result_text(shown).strip()


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= TOOL_MAX else text[:TOOL_MAX] + MARK


def _line_tokens(line: Line, counter: TokenCounter) -> int:
    def count() -> int:
        text = line_text(line)
        return counter.text(text + "\n") if text else 0

    return counter.once(line[0], ("history line", len(line)), count)


def _newest(sizes: Sequence[int], room: int) -> int:
    """Returns how many of the last items fit into the room, but at least one if there are any. sizes: tokens of the
    items."""
    return min(len(sizes), max(1, sum(total <= room for total in accumulate(reversed(sizes)))))


def _joined(head: str, turns: Iterable[Turn], left_out: int = 0, window: int = 0) -> str:
    lines = [LEFT_OUT.format(count=left_out, window=window)] if left_out else []
    lines += [text for turn in turns for line in lines_of(turn) if (text := line_text(line))]
    return (head + "\n".join(lines)).rstrip("\n")
