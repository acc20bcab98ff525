"""Imports complete data sets in turnlog's own format, if they exist beside the project."""

import tracemalloc
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from turnlog.agent.operations.importers import Defaults, ImportedTurn, Item, detect_format, read

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def data(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{name} is not beside the project (expected at {DATA})")
    return path


def imported(items: list[Item]) -> list[ImportedTurn]:
    return [item for item in items if isinstance(item, ImportedTurn)]


def test_the_irc_file_is_read_as_valid_turns_in_flat_memory() -> None:
    path = data("irc.jsonl.gz")
    assert detect_format(path) == "jsonl"
    tracemalloc.start()
    try:
        assert {type(item) for item in islice(read(path), 5_000)} == {ImportedTurn}
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6_000_000


@pytest.mark.nightly
def test_the_whole_irc_file_is_valid_turns() -> None:
    path = data("irc.jsonl.gz")
    kinds: Counter[str] = Counter()
    threads, ids = set(), set()
    for item in read(path, defaults=Defaults(user="owner")):
        kinds[type(item).__name__] += 1
        if isinstance(item, ImportedTurn):
            threads.add(item.thread)
            ids.add(item.id.int)
    assert kinds == {"ImportedTurn": 207_735}
    assert (len(threads), len(ids)) == (9_650, 207_735)


def test_all_cped_utterances_are_turns() -> None:
    turns = imported(list(read(data("cped.jsonl.gz"))))
    assert len(turns) == len({turn.id for turn in turns}) == 38_575
