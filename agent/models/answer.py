"""One answer of the OpenAI chat API as it arrives: text, tool calls in pieces, usage.

Replies are taken as Any: servers that only speak the API's dialect leave fields out that the client's types promise.
"""

from dataclasses import dataclass, field
from typing import Any

from turnlog.events.contracts import ToolCall


@dataclass
class Answer:
    """What has arrived of one answer."""

    started: float
    text: list[str] = field(default_factory=list)
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    model: str | None = None
    finish_reason: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None

    def forget(self) -> None:
        """Start over: an attempt that failed before the first token may have left its model name."""
        self.__dict__.update(Answer(self.started).__dict__)

    def take(self, chunk: Any) -> str:
        """Note what the chunk brings; returns its text piece. Only the first choice counts (n is never asked)."""
        self._take_frame(chunk)
        if not chunk.choices:
            return ""
        choice = chunk.choices[0]
        self.finish_reason = choice.finish_reason or self.finish_reason
        for piece in choice.delta.tool_calls or ():
            self._take_call(piece)
        text = choice.delta.content or ""
        self.text.append(text)
        return text

    def take_whole(self, reply: Any) -> None:
        """Note a reply that was not streamed."""
        self._take_frame(reply)
        choice = reply.choices[0]
        self.finish_reason = choice.finish_reason
        self.text.append(choice.message.content or "")
        for index, call in enumerate(choice.message.tool_calls or ()):
            self.calls[index] = {"id": call.id, "name": call.function.name, "arguments": call.function.arguments}

    def _take_frame(self, reply: Any) -> None:
        self.model = reply.model or self.model
        if reply.usage is not None:
            self.tokens_in, self.tokens_out = reply.usage.prompt_tokens, reply.usage.completion_tokens

    def _take_call(self, piece: Any) -> None:
        # Some servers leave the index out and send each call whole.
        index = piece.index if piece.index is not None else len(self.calls)
        call = self.calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        call["id"] = piece.id or call["id"]
        if piece.function is not None:
            call["name"] = piece.function.name or call["name"]
            call["arguments"] += piece.function.arguments or ""

    def whole_text(self) -> str:
        return _whole("".join(self.text))

    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall(id=c["id"] or f"call_{i}", name=c["name"], arguments=_whole(c["arguments"]) or "{}")
            for i, c in sorted(self.calls.items())
        )


def _whole(text: str) -> str:
    """Some servers split an emoji between two chunks; half of one is no text that could be stored."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
