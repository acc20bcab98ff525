"""extract: memories from what was said, now; or what they would be and why, and what would be left out and why."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from turnlog.consumers.cli.options import add
from turnlog.consumers.cli.runner import serve

if TYPE_CHECKING:
    from turnlog.agent.use_cases.extraction import Extracted, ExtractionPreview, PreviewedMemory, RejectedText


def register(app: typer.Typer) -> None:
    add(app, extract)


def extract(
    thread: Annotated[str | None, typer.Argument(help="A conversation; or --user.")] = None,
    user: Annotated[
        str | None, typer.Option(help="All conversations of this user, or this user's part of one.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Store nothing: show what the rules find in all turns, and why.")
    ] = False,
    rules: Annotated[Path | None, typer.Option(help="Rules to use in place of MEMORY_RULES_FILE.")] = None,
) -> None:
    """Extract memories from what users said and no extraction has read yet."""
    from turnlog.agent.use_cases.extraction import extract_memories, preview_extraction

    if dry_run:
        serve(lambda rt: preview_extraction(rt, rt.settings.tenant, thread, user, rules), _preview_lines)
    else:
        serve(lambda rt: extract_memories(rt, rt.settings.tenant, thread, user, rules), _lines)


def _lines(made: "Iterable[Extracted]") -> Iterator[str | Text]:
    for one in made:
        yield Text(f"{one.thread}  user {one.user}", "bold")
        for stage, progress in one.stages.items():
            if progress is not None:
                error = f"  {progress.error}" if progress.error else ""
                yield f"  {stage:<6} through {progress.through_seq}: {progress.stored} stored{error}"


def _preview_lines(made: "Iterable[ExtractionPreview]") -> Iterator[str | Text]:
    for one in made:
        yield Text(f"{one.thread}  user {one.user}", "bold")
        for memory in one.memories:
            yield from _memory_lines(memory)
        for rejected in one.rejected:
            yield from _rejected_lines(rejected)


def _memory_lines(memory: "PreviewedMemory") -> Iterator[str | Text]:
    yield Text(f"  {memory.outcome:<9} {memory.kind:<10} {memory.content}", "green")
    yield f"            {memory.rule or memory.origin}, importance {memory.importance:g}, turn {memory.seq}"
    yield f"            “{' '.join(memory.quote.split())}”"


def _rejected_lines(rejected: "RejectedText") -> Iterator[str | Text]:
    why = "  ".join(filter(None, (rejected.reason, rejected.rule, rejected.detail)))
    yield Text(f"  left out  {why}", "yellow")
    yield f"            “{' '.join(rejected.quote.split())[:200]}”"
