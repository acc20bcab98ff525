"""A bilingual advising conversation for trying turnlog. It was written for this purpose; schools and figures are
invented.

advising.jsonl: one thread, September to November 2026, with thinking, tool calls and results, in the jsonl
format. questions.json: questions about it, with the source ids of the turns that answer them.
"""

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

THREAD = "advising-lin-wei"
USER = "lin-wei"


@dataclass(frozen=True, slots=True)
class SampleQuestion:
    """A question about the sample conversation. language: "en" or "zh". source_ids: the turns that contain the answer,
    the newest fact first."""

    question: str
    language: str
    answer: str
    source_ids: tuple[str, ...]


def load_sample() -> Path:
    """Returns the path of the conversation, for `read(path, "jsonl")`."""
    return _file("advising.jsonl")


def load_questions() -> tuple[SampleQuestion, ...]:
    rows = json.loads(_file("questions.json").read_text("utf-8"))
    return tuple(SampleQuestion(**{**row, "source_ids": tuple(row["source_ids"])}) for row in rows)


def _file(name: str) -> Path:
    return Path(str(files(__name__) / name))
