"""Token counts of text, stored messages and wire messages, each stored message counted once per process."""

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any

import tiktoken

from turnlog.agent.context.encodings import encoding, encoding_name
from turnlog.agent.context.wire import Wire, WireOptions, to_wire
from turnlog.projectors.message import Message

# OpenAI's cookbook, "How to count tokens with tiktoken": each message is wrapped in three tokens, a name adds
# one, the answer is primed with three.
PER_MESSAGE = 3
PER_NAME = 1
REPLY_PRIMING = 3
# A tool call is rendered as one more framed entry around its name and arguments.
PER_TOOL_CALL = 3
# An image costs by its size, which a reference does not tell. This is OpenAI's price of a 1024 x 1024 image
# in high detail (85 + 4 tiles of 170).
IMAGE_TOKENS = 765
# A long run of one character costs more than linear time, and a million blanks make tiktoken's pattern engine
# panic. So longer text is counted in pieces, which is off by a token or two per cut.
PIECE_CHARS = 20_000
_CACHED_MESSAGES = 65_536


class TokenCounter:
    """Counts for one encoding. Take it from `counter_for`, so that all callers share one cache."""

    def __init__(self, encoding: tiktoken.Encoding) -> None:
        self.encoding = encoding
        self.cached_text: Callable[[str], int] = lru_cache(maxsize=256)(self.text)
        self._young: dict[tuple[int, Hashable], int] = {}
        self._old: dict[tuple[int, Hashable], int] = {}

    def text(self, text: str) -> int:
        """Tokens of a text; special tokens in it count as the plain text they are."""
        return sum(self._pieces(text))

    def exceeds(self, text: str, limit: int) -> bool:
        """Whether a text has more than `limit` tokens; of a huge text only as much is read as it takes."""
        return any(total > limit for total in accumulate(self._pieces(text)))

    def _pieces(self, text: str) -> Iterator[int]:
        for start in range(0, len(text), PIECE_CHARS):
            yield len(self.encoding.encode_ordinary(text[start : start + PIECE_CHARS]))

    def message(self, message: Message, options: WireOptions | None = None) -> int:
        """Tokens of a stored message as it goes to the model, results of tools included; cached."""
        options = options or WireOptions()
        return self.once(message, ("whole", options), lambda: sum(map(self.wire, to_wire(message, options))))

    def wire(self, message: Wire) -> int:
        """Tokens of one OpenAI chat message. Ids of calls are no part of what a model reads."""
        total = PER_MESSAGE + 1 + self._content(message.get("content"))
        if name := message.get("name"):
            total += PER_NAME + self.text(name)
        for call in message.get("tool_calls") or ():
            function = call["function"]
            total += PER_TOOL_CALL + self.text(function["name"]) + self.text(function["arguments"])
        return total

    def request(self, messages: Iterable[Wire], tools: Sequence[Wire] = ()) -> int:
        """Tokens of a whole request: messages, tool schemas and the priming of the reply."""
        return sum(map(self.wire, messages)) + self.tools(tools) + REPLY_PRIMING

    def tools(self, tools: Sequence[Wire]) -> int:
        """Tokens of tool schemas, counted as compact JSON: a little more than the API makes of them."""
        if not tools:
            return 0
        return self.cached_text(json.dumps(tools, ensure_ascii=False, separators=(",", ":")))

    def once(self, message: Message, variant: Hashable, count: Callable[[], int]) -> int:
        """The count of one form of a message, worked out the first time only: stored messages never change.

        Two generations stand in for an exact LRU: a hit costs one look-up, and old entries leave in bulk.
        """
        key = (message.event_id.int, variant)
        known = self._young.get(key)
        if known is None:
            known = self._old.get(key)
            self._keep(key, count() if known is None else known)
            return self._young[key]
        return known

    def _keep(self, key: tuple[int, Hashable], tokens: int) -> None:
        if len(self._young) >= _CACHED_MESSAGES:
            self._old, self._young = self._young, {}
        self._young[key] = tokens

    def _content(self, content: str | list[dict[str, Any]] | None) -> int:
        if not content:
            return 0
        if isinstance(content, str):
            return self.text(content)
        return sum(self.text(p["text"]) if p["type"] == "text" else IMAGE_TOKENS for p in content)


@cache
def _counter(name: Any) -> TokenCounter:
    return TokenCounter(encoding(name))


def counter_for(model: str) -> TokenCounter:
    """The process-wide counter of a model's encoding."""
    return _counter(encoding_name(model))
