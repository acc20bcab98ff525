"""Endless repetition is detected soon in English and Chinese, and deliberate repetition is not."""

import json
import tracemalloc

import pytest

from turnlog.agent.models.repetition import Repetition
from turnlog.agent.operations.sample import load_sample


def ends_at(text: str, step: int = 3) -> int | None:
    """Adds the text in pieces of `step` characters. Returns the number of bytes after which the repetition is detected;
    None if it is not detected."""
    repetition = Repetition()
    for at in range(0, len(text), step):
        if repetition.add(text[at : at + step]):
            return len(text[: at + step].encode())
    return None


LOOPS = {
    "an English sentence": "The book is about the relationship between the author and the reader. ",
    "a Chinese sentence": "我不知道你在说什么，请再说一遍。",
    "a paragraph": " ".join(f"Sentence number {n} says a thing of its own." for n in range(12)) + "\n\n",
    "a line of code": "        if value is None: return default\n",
    "a word": "very much so indeed, ",
    "line breaks": "\n",
    "zeros": "0, ",
    "an emoji": "🐟",
    "half of an emoji": "\ud83d",
}


@pytest.mark.parametrize("piece", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("before", ["", "A short answer first. 先说一句。\n"])
def test_a_loop_is_noticed_within_a_few_rounds(piece: str, before: str) -> None:
    size = len(piece.encode("utf-8", "surrogatepass"))
    repetition, came = Repetition(), 0
    assert not repetition.add(before)
    while not repetition.add(piece):
        came += size
        assert came < max(1_500 if size >= 12 else 4_300, 5 * size + 2 * size)


PLAIN = {
    "counting": "\n".join(map(str, range(5_000))),
    "counting in Chinese": "".join(f"第{n}条：还没有内容。\n" for n in range(500)),
    "a table": "\n".join(f"| {n} | pending | 10.0 | none |" for n in range(500)),
    "a table with equal rows": "| yes | yes | no |\n" * 40,
    "JSON": json.dumps([{"id": n, "status": "active", "role": "user", "tags": []} for n in range(300)], indent=1),
    "equal objects in JSON": json.dumps([{"name": "", "value": None, "children": []}] * 20),
    "statements": "\n".join(f"INSERT INTO users (id, age) VALUES ({n}, 30);" for n in range(300)),
    "a list of zeros": ", ".join(["0"] * 1_000),
    "dashes": "=" * 200 + "\ntitle\n" + "-" * 200,
    "a refrain": "".join(f"Verse {n} has words.\n" + "Oh the sea, the sea, it calls to me\n" * 4 for n in range(40)),
    "a refrain in Chinese": "".join(f"第{n}段。\n" + "大海啊大海，你是我的故乡\n" * 4 for n in range(40)),
    "a song's end": "na na na na, hey Jude\n" * 18,
}


@pytest.mark.parametrize("text", PLAIN.values(), ids=PLAIN)
def test_a_text_that_repeats_on_purpose_goes_on(text: str) -> None:
    assert ends_at(text) is None


def test_no_turn_of_the_sample_is_ended() -> None:
    contents = [json.loads(line).get("content") for line in load_sample().read_text("utf-8").splitlines()]
    assert [text for text in contents if isinstance(text, str) and ends_at(text) is not None] == []


@pytest.mark.parametrize("step", [1, 7, 64, 1_000, 100_000])
def test_the_size_of_the_pieces_does_not_matter(step: int) -> None:
    assert ends_at("Every piece is as good as another one. " * 200, step) is not None
    assert ends_at(PLAIN["counting"], step) is None


def test_memory_is_bounded() -> None:
    repetition = Repetition()
    tracemalloc.start()
    for number in range(60_000):
        repetition.add(f"word {number} ")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 100_000
