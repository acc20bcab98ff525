"""The command `extract`: extracts memories from what was said, or shows which it would store or leave out, and why."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from turnlog.agent.memory.extraction import extract_now
from turnlog.consumers.cli.console import Result, rows
from turnlog.consumers.cli.options import commands
from turnlog.consumers.cli.runner import Runtime, command

app = commands()


@command(app)
async def extract(
    rt: Runtime,
    thread: Annotated[str | None, typer.Argument(help="A conversation; or --user.")] = None,
    user: Annotated[
        str | None, typer.Option(help="All conversations of this user; with a thread, this user's part of it.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what the rules find in all turns, and why; store nothing.")
    ] = False,
    rules: Annotated[Path | None, typer.Option(help="Rules to use instead of MEMORY_RULES_FILE.")] = None,
) -> Result:
    """Extract memories from what users said since the last extraction."""
    if dry_run:
        return rows(await extract_now.preview_extraction(rt, rt.settings.tenant, thread, user, rules), _preview_lines)
    return rows(await extract_now.extract_memories(rt, rt.settings.tenant, thread, user, rules), _lines)


def _lines(extracted: "extract_now.Extracted") -> Iterator[str | Text]:
    yield Text(f"{extracted.thread}  user {extracted.user}", "bold")
    for stage, progress in extracted.stages.items():
        if progress is not None:
            error = f"  {progress.error}" if progress.error else ""
            yield f"  {stage:<6} through {progress.through_seq}: {progress.stored} stored{error}"


def _preview_lines(preview: "extract_now.ExtractionPreview") -> Iterator[str | Text]:
    yield Text(f"{preview.thread}  user {preview.user}", "bold")
    for memory in preview.memories:
        yield Text(f"  {memory.outcome:<9} {memory.kind:<10} {memory.content}", "green")
        yield f"            {memory.rule or memory.origin}, importance {memory.importance:g}, turn {memory.seq}"
        yield f"            “{' '.join(memory.quote.split())}”"
    for rejected in preview.rejected:
        why = "  ".join(filter(None, (rejected.reason, rejected.rule, rejected.detail)))
        yield Text(f"  left out  {why}", "yellow")
        yield f"            “{' '.join(rejected.quote.split())[:200]}”"
