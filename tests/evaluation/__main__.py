"""python -m tests.evaluation [--data DIR] [--kept] [--json]: measures how much of the evidence recall finds.

It uses no language model. It prints the tables and writes the sections "Turns" and "Routing" of docs/evaluation.md;
with --json it prints JSON and does not change the document. The first run embeds for minutes and stores the vectors in
the user's cache folder. With --kept, genres other than LoCoMo are measured only with stored vectors. Without --data the
folder is TURNLOG_EVALUATION_DATA. If the file is missing, nothing is measured, and a message tells this.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from .confidence import write_confidence
from .document import DOCUMENT, Measured, as_json, genres_section, put_section, turns_section
from .genres import embedded, genres, texts_of, with_vectors, words_alone
from .left_out import left_out
from .locomo import load, texts
from .routing import section as routing_section
from .turns import Line, report
from .vectors import Vectors, vectors_path

DEFAULT_FOLDER = Path(__file__).parents[3] / "shared" / "data"
MISSING = (
    "not evaluated: there is no {path}. It is a JSON list of LoCoMo's conversations, as locomo10.json of github.com/"
    "snap-research/locomo is one; give its folder: make eval TURNLOG_EVALUATION_DATA=FOLDER, or --data FOLDER"
)
TABLES = {"Text alone": False, "With the captions of shared images": True}
out, err = Console(width=None if sys.stdout.isatty() else 180), Console(stderr=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.evaluation", description=__doc__)
    parser.add_argument("--data", type=Path, default=_given() or DEFAULT_FOLDER, help="the folder with locomo-dev.json")
    parser.add_argument("--kept", action="store_true", help="embed nothing of the other genres")
    parser.add_argument("--json", action="store_true", help="print JSON, write no document")
    arguments = parser.parse_args()
    path = arguments.data / "locomo-dev.json"
    if not path.exists():
        err.print(MISSING.format(path=path), markup=False)
        return 0
    vectors = Vectors(vectors_path())
    embed(vectors, *texts(path, list(TABLES.values())))
    told = {title: load(path, vectors, captions) for title, captions in TABLES.items()}
    tables = []
    for title, conversations in told.items():
        with err.status(f"ranking: {title.lower()}"):
            tables.append((title, *report(conversations)))
    if arguments.json:
        print(json.dumps(as_json(tables)))
        return 0
    for title, lines, _ in tables:
        out.print(shown(title, lines))
    put_section(DOCUMENT, "Routing", routing_section())
    put_section(DOCUMENT, "Turns", turns_section(tables, next(iter(told.values()))))
    write_genres(arguments.data, vectors, arguments.kept)
    err.print(f"wrote {DOCUMENT}", markup=False)
    return 0


def write_genres(folder: Path, vectors: Vectors, kept: bool) -> None:
    all_genres = genres(folder)
    if not kept:
        for genre in all_genres:
            embed(vectors, *texts_of(genre.conversations))
    with err.status("ranking other genres"):
        known = [genre for loaded in all_genres if (genre := embedded(loaded, vectors)).conversations]
        fitted, fits = left_out(all_genres)
        text = genres_section(
            Measured(all_genres, {genre.name: words_alone(genre) for genre in all_genres}),
            Measured(known, {genre.name: with_vectors(genre) for genre in known}),
            fitted,
            fits,
        )
    put_section(DOCUMENT, "Turns of several genres", text)
    out.print(text, markup=False)
    with err.status("confidence"):
        text = write_confidence(all_genres)
    out.print(text, markup=False)


def _given() -> Path | None:
    folder = os.environ.get("TURNLOG_EVALUATION_DATA")
    return Path(folder) if folder else None


def embed(vectors: Vectors, passages: list[str], questions: list[str]) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task("embedding", total=len(passages) + len(questions))
        vectors.add(passages, "passage", lambda count: progress.advance(task, count))
        vectors.add(questions, "query", lambda count: progress.advance(task, count))


def shown(title: str, lines: list[Line]) -> Table:
    table = Table(title=title)
    for head in ("", "recall@5/10/20", "any@5/10/20", "all@10", *lines[0].categories, *lines[0].conversations):
        table.add_column(head, justify="left" if not head else "right")
    for line in lines:
        shares = ("/".join(f"{n:.1f}" for n in numbers.values()) for numbers in (line.recall, line.any))
        rest = (line.all_at_10, *line.categories.values(), *line.conversations.values())
        table.add_row(line.name, *shares, *(f"{n:.1f}" for n in rest))
    return table


if __name__ == "__main__":
    sys.exit(main())
