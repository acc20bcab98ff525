"""Measures whether memories are true: samples memories that the rules find in public conversations for manual review.

    python -m tests.evaluation.truth --genre locomo --seed 1 [--context]
    python -m tests.evaluation.truth --write

The first form prints memories that are not judged yet as lines for judgements.jsonl, with --context also the turns
before them. A person then corrects `true`, and fills in `why` if it is false. The second form writes the section "True
memories" of docs/evaluation.md. No LLM is used. A judgement contains a hash of the memory and its sentence but no words
of the data, because some of the data must not be copied. A memory that changed rules make differently has another hash
and must be judged again.
"""

import argparse
import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnlog.agent.memory.extraction.by_rules import Extractor
from turnlog.agent.memory.extraction.findings import Finding, Turn
from turnlog.agent.memory.extraction.rules import load_rules
from turnlog.agent.operations.importers import ImportedTurn
from turnlog.projectors.models.conversation.speech import spoken_text

from .__main__ import DEFAULT_FOLDER
from .datasets import locomo_turns, memorybank_turns
from .document import DOCUMENT, put_section
from .genres import chat_turns, diary_turns, read_json
from .locomo import read_evidence

JUDGEMENTS = Path(__file__).with_name("judgements.jsonl")
SAMPLE = 60
HEAD = """Memories that the rules alone find, each once a conversation, read by one reader. True: right in subject and
value, and understood without its sentence. Of LoCoMo, BEAM and MemoryBank all memories were read, for there are fewer
than a hundred each; of MemDaily, whose sentences are made from few templates, those drawn with seeds 2611 and 731, as
many again after relatives' facts were added, and those drawn with 1611 and 2711 after heights and relatives' birthdays
were. Of the 535 that came then, 533 were compared with their sentence by a program too: role and value are equal.
The rules were mended on these conversations, so that unseen ones may give less. Judgements are in
`tests/evaluation/judgements.jsonl`, `python -m tests.evaluation.truth` draws others and writes this section.

`tests/evaluation/typed/` holds messages as people type them to an assistant (180 in each language), the number of
lasting facts that each states, and the memories that the rules find. The last 40 of each language were written after
the rules, and the rules were not mended on them: 31 memories, all true, of 64 facts. The 40 before them, when they were
new to the rules: 26 memories, 24 true, of 73 facts. The rules as they were before the first: 51 memories of these 80 in
each language, 47 true.
"""


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation. evidence: for each question the ids of the turns that answer it. among_people: True if no speaker
    is an assistant, so that turns are not requests."""

    name: str
    turns: Sequence[ImportedTurn]
    evidence: Sequence[frozenset[str]] = ()
    among_people: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """A memory and its source. at: the position of its turn in the conversation."""

    talk: Talk
    at: int
    finding: Finding

    @property
    def turn(self) -> str:
        return f"{self.talk.name}/{_source(self.talk.turns[self.at])}"

    @property
    def key(self) -> str:
        said = f"{self.turn}\n{self.finding.rule}\n{self.finding.content}\n{self.finding.source.quote}"
        return hashlib.sha256(said.encode()).hexdigest()[:16]


def locomo(folder: Path) -> Iterator[Talk]:
    for number, sample in enumerate(json.loads((folder / "locomo-dev.json").read_text("utf-8"))):
        turns = list(locomo_turns(sample))
        known = {_source(turn) for turn in turns}
        asked = [read_evidence(q["evidence"], known).turns for q in sample["qa"]]
        yield Talk(str(number), turns, [turns for turns in asked if turns], among_people=True)


def beam(folder: Path) -> Iterator[Talk]:
    for chat in read_json(folder / "beam-dev.json.gz"):
        asked = [frozenset(map(str, q["evidence"])) for q in chat["questions"] if q["evidence"]]
        yield Talk(str(chat["chat"]), [turn for turn in chat_turns(chat) if turn.data.role == "user"], asked)


def memdaily(folder: Path) -> Iterator[Talk]:
    for diary in read_json(folder / "memdaily-dev.json.gz"):
        name = f"{diary['kind']}-{diary['tid']}"
        yield Talk(name, diary_turns(diary), [frozenset(f"{name}:{number}" for number in diary["evidence"])])


def memorybank(folder: Path, language: str) -> Iterator[Talk]:
    users = json.loads((folder / f"memorybank-{language}.json").read_text("utf-8"))
    for user, value in users.items():
        turns = memorybank_turns(user, value["history"])
        yield Talk(user, [turn for turn in turns if turn.data.role == "user"])


GENRES = {
    "locomo": locomo,
    "beam": beam,
    "memdaily": memdaily,
    "memorybank-en": lambda folder: memorybank(folder, "en"),
    "memorybank-cn": lambda folder: memorybank(folder, "cn"),
}


def _source(turn: ImportedTurn) -> str:
    return turn.data.source_id or ""


def memories(talks: Iterable[Talk]) -> list[Found]:
    extractor = Extractor(load_rules())
    return [
        Found(talk, at, finding)
        for talk in talks
        for at, turn in enumerate(talk.turns)
        for finding in extractor.extract([_turn(talk, at, turn)]).findings
    ]


def _turn(talk: Talk, at: int, turn: ImportedTurn) -> Turn:
    text = spoken_text(turn.data)
    return Turn(talk.name, at + 1, turn.id, turn.time, text, turn.data.name, to_people=talk.among_people)


def distinct(found_memories: Iterable[Found]) -> list[Found]:
    """Returns each memory of a conversation once, in a fixed order."""
    once = {(memory.talk.name, memory.finding.content): memory for memory in found_memories}
    return [once[key] for key in sorted(once)]


def answered(found_memories: Sequence[Found], talks: Sequence[Talk]) -> tuple[int, int]:
    """Returns the number of questions with a memory from one of their evidence turns, and the number of all
    questions."""
    held = {memory.turn for memory in found_memories}
    asked = [{f"{talk.name}/{turn}" for turn in turns} for talk in talks for turns in talk.evidence]
    return sum(bool(turns & held) for turns in asked), len(asked)


def drawn(found_memories: Sequence[Found], seed: int) -> list[Found]:
    return random.Random(seed).sample(found_memories, min(SAMPLE, len(found_memories)))


def judgements(path: Path = JUDGEMENTS) -> dict[str, dict[str, Any]]:
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return {judgement["key"]: judgement for judgement in map(json.loads, lines)}


def show(found_memories: Sequence[Found], genre: str, seed: int, context: bool) -> None:
    judged = judgements()
    for memory in drawn(found_memories, seed):
        if memory.key in judged:
            continue
        for turn in memory.talk.turns[max(0, memory.at - 2) : memory.at + 1] if context else ():
            print(f"    {turn.data.name or turn.data.role}: {spoken_text(turn.data)[:600]}")
        print(f"    {memory.finding.content}\n    {memory.finding.source.quote}")
        print(
            json.dumps(
                {"genre": genre, "key": memory.key, "turn": memory.turn, "rule": memory.finding.rule, "true": True}
            )
        )


def section(folder: Path) -> str:
    """Returns the section on the judged memories among those that the rules find now; other judgements are ignored."""
    rows = ["| genre | memories | questions with a memory on an evidence turn | read | true |"]
    rows.append("| --- | ---: | ---: | ---: | ---: |")
    wrong: list[str] = []
    judged = judgements()
    for genre, talks_of in GENRES.items():
        talks = list(talks_of(folder))
        every = memories(talks)
        once = distinct(every)
        read = [judged[memory.key] for memory in once if memory.key in judged]
        good = sum(judgement["true"] for judgement in read)
        hit, asked = answered(every, talks)
        evidence = f"{hit} of {asked}" if asked else "none given"
        share = f"{good} ({100 * good / max(1, len(read)):.1f} %)"
        rows.append(f"| {genre} | {len(once)} | {evidence} | {len(read)} | {share} |")
        wrong += [
            f"- {genre}, {judgement['turn']}, rule `{judgement['rule']}`: {judgement['why']}"
            for judgement in read
            if not judgement["true"]
        ]
    return "\n".join([HEAD, *rows, "", "Not true:", "", *wrong])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.evaluation.truth", description=__doc__)
    parser.add_argument("--data", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--genre", choices=GENRES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--context", action="store_true", help="the turns before each memory too")
    parser.add_argument("--write", action="store_true", help="write the section of the document")
    arguments = parser.parse_args()
    if arguments.genre:
        show(
            distinct(memories(GENRES[arguments.genre](arguments.data))),
            arguments.genre,
            arguments.seed,
            arguments.context,
        )
    if arguments.write:
        put_section(DOCUMENT, "True memories", section(arguments.data))


if __name__ == "__main__":
    main()
