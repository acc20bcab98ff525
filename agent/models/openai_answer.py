"""Collects an answer of the OpenAI API from streamed chunks or from one complete reply."""

from dataclasses import dataclass, field
from typing import Any

from turnlog.agent.context.wire import called
from turnlog.agent.models.protocol import CallPiece, Delta
from turnlog.events.contracts import ToolCall
from turnlog.events.texts import storable


@dataclass
class Answer:
    """The parts of one answer received so far. thought: number of characters of reasoning, which is not kept.

    keeps_refusals: treat the words with which a model refuses as text.
    """

    started: float
    keeps_refusals: bool = False
    text: list[str] = field(default_factory=list)
    thought: int = 0
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    model: str | None = None
    finish_reason: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None

    def end_early(self, reason: str) -> None:
        """Ends the answer early: keeps the text and drops tool calls, which may be incomplete."""
        self.calls.clear()
        self.finish_reason = reason

    def forget(self) -> None:
        """Resets the answer, because an attempt that failed before the first token may have set the model name."""
        self.__dict__.update(Answer(self.started, self.keeps_refusals).__dict__)

    def take(self, chunk: Any) -> Delta:
        """Adds a chunk; returns its pieces. If there are several choices, only the first is used."""
        self._take_frame(chunk)
        choice = next((choice for choice in chunk.choices if not choice.index), None)
        if choice is None:
            return Delta()
        self.finish_reason = choice.finish_reason or self.finish_reason
        calls = tuple(self._take_call(piece) for piece in choice.delta.tool_calls or ())
        text = self._text(choice.delta)
        self.text.append(text)
        # DeepSeek, llama.cpp and older vLLM use the first name; newer vLLM and OpenRouter use `reasoning`.
        thought = getattr(choice.delta, "reasoning_content", None) or getattr(choice.delta, "reasoning", None)
        self.thought += len(str(thought or ""))
        return Delta(text=text, calls=calls)

    def take_whole(self, reply: Any) -> None:
        """Adds a reply that was not streamed."""
        self._take_frame(reply)
        choice = reply.choices[0]
        self.finish_reason = choice.finish_reason
        self.text.append(self._text(choice.message))
        for index, call in enumerate(choice.message.tool_calls or ()):
            name, arguments = called(call.model_dump())
            self.calls[index] = {"id": call.id, "name": name, "arguments": arguments}

    def _text(self, said: Any) -> str:
        return said.content or (self.keeps_refusals and getattr(said, "refusal", None)) or ""

    def _take_frame(self, reply: Any) -> None:
        self.model = reply.model or self.model
        if reply.usage is not None:
            self.tokens_in, self.tokens_out = reply.usage.prompt_tokens, reply.usage.completion_tokens

    def _take_call(self, piece: Any) -> CallPiece:
        # Some servers omit the index and send each call in one piece.
        index = piece.index if piece.index is not None else len(self.calls)
        is_first = index not in self.calls
        call = self.calls.setdefault(index, {"id": piece.id or f"call_{index}", "name": "", "arguments": ""})
        arguments = ""
        if piece.function is not None or getattr(piece, "custom", None):
            name, arguments = called(piece.model_dump())
            call["name"] = name or call["name"]
            call["arguments"] += arguments
        return (
            CallPiece(index, call["id"], call["name"], arguments) if is_first else CallPiece(index, "", "", arguments)
        )

    def whole_text(self) -> str:
        """Returns the text; the halves of an emoji that a server split between two chunks are joined."""
        return str(storable("".join(self.text)))

    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall(id=c["id"] or f"call_{i}", name=c["name"], arguments=storable(c["arguments"]) or "{}")
            for i, c in sorted(self.calls.items())
        )
