"""Finds code in the documentation: blocks by language and label, and console sessions with their output."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_ID = re.compile(
    r"\b(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{16}|[0-9a-f]{8})\b|\btl_[0-9a-f]{16}_[\w-]{43}"
)
_BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a console session, and its output on the page."""

    command: str
    output: str


def blocks(page: str, language: str, label: str) -> list[Block]:
    every_block = [Block(*groups) for groups in _BLOCK.findall((ROOT / page).read_text("utf-8"))]
    return [block for block in every_block if (block.language, block.label) == (language, label)]


def files(page: str) -> dict[str, str]:
    """Returns the page's Python programs, by the file names that label them."""
    every_block = [Block(*groups) for groups in _BLOCK.findall((ROOT / page).read_text("utf-8"))]
    return {
        block.label: block.text for block in every_block if block.language == "python" and block.label.endswith(".py")
    }


def steps(text: str) -> list[Step]:
    """Returns each `$ command` with the lines up to the next command."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [Step(command, output) for command, _, output in (part.partition("\n") for part in parts)]


_BLOCKED = re.compile(
    r"^(?:warn|ok) +(processes .*?)(?:; event loop of .* blocked for .*\n.*PYTHONASYNCIODEBUG.*)$", re.M
)


def shape(output: str) -> str:
    """Returns the output without parts that differ between runs: paths, ids, numbers, bars, the column widths that
    follow from them, and doctor's remarks about event loops that a busy machine blocks."""
    output = _BLOCKED.sub(r"ok \1", output)
    text = re.sub(r"(?<!\S)/[^\s,]+", "/", _ID.sub("#", output))
    text = re.sub(r"[█·]+", "▒", re.sub(r"\d[\d,.:-]*", "#", text))
    return re.sub(r"^ +", "", re.sub(r" +", " ", text), flags=re.MULTILINE).strip()
