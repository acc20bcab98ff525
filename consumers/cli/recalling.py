"""The commands `recall`, for one question or a file of them, and `profile`, which says who a user is."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnlog.agent.recall import profile as profiles
from turnlog.agent.recall import recall
from turnlog.agent.recall.embedding import embed_now
from turnlog.agent.settings import Settings
from turnlog.consumers import runtime as composed
from turnlog.consumers.cli.console import Result, emit_line, warn
from turnlog.consumers.cli.options import commands
from turnlog.consumers.cli.progress_bars import progress
from turnlog.consumers.cli.remembering import profile_lines, source_line, time_of, validity, words_of
from turnlog.consumers.cli.runner import Runtime, command, run, serve
from turnlog.events.errors import NotFound
from turnlog.events.local_time import day_text

if TYPE_CHECKING:
    from turnlog.agent.recall.best_turns import Recalled
    from turnlog.agent.recall.questions import QuestionAnalysis
    from turnlog.agent.recall.recall import Found, FoundMemory

EMBED_FIRST_S = 60.0


app = commands()


@dataclass(frozen=True, slots=True)
class RecallOptions:
    """Defaults for the lines of a batch. k: how many turns and memories; None means MEMORY_RECALL_TOP_K."""

    thread: str | None
    user: str | None
    topic: str | None
    k: int | None
    keyword_only: bool


@command(app, "recall")
def recall_command(
    query: Annotated[str | None, typer.Argument(help="What to look for.")] = None,
    thread: Annotated[str | None, typer.Option("--thread", "-t")] = None,
    user: Annotated[
        str | None, typer.Option("--user", "-u", help="Search all threads of a user, and their memories.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Only turns with this topic; QUERY is then optional.")] = None,
    speaker: Annotated[
        str | None, typer.Option(help="Only turns of a speaker with this name, or of this user.")
    ] = None,
    k: Annotated[
        int | None,
        typer.Option("-k", min=1, max=1000, help="How many turns and how many memories. Default: MEMORY_RECALL_TOP_K."),
    ] = None,
    explain: Annotated[
        bool, typer.Option(help="Show how the question was understood, and the parts of each score.")
    ] = False,
    batch: Annotated[
        Path | None,
        typer.Option(help='File of JSON lines {"query","thread","topic","k"}; the answers are JSON lines too.'),
    ] = None,
    keyword_only: Annotated[bool, typer.Option(help="Leave vectors out.")] = False,
    as_of: Annotated[
        str | None, typer.Option(help="Only memories valid at this time: a time, a date or 'last March'.")
    ] = None,
    past: Annotated[bool, typer.Option("--history", help="Include memories that have ended.")] = False,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only memories of this kind: FACT, PREFERENCE, DECISION …")
    ] = None,
    min_importance: Annotated[
        float, typer.Option(min=0, max=1, help="Only memories with at least this current importance.")
    ] = 0.0,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Maximum number of tokens shown.")] = None,
) -> None:
    """Search turns, and with --user also memories, by meaning, words, names and dates."""
    if batch is not None:
        run(lambda settings: _batch(settings, RecallOptions(thread, user, topic, k, keyword_only), batch))

    def check() -> None:
        if not query and topic is None:
            raise recall.BadQuery("give a question: `turnlog recall QUESTION --thread T`, or --batch FILE")
        if user is None and (as_of or past or kind or min_importance):
            about = "--as-of, --history, --kind and --min-importance apply to memories"
            raise recall.BadQuery(f"{about}: say whose with --user")

    async def use(rt: Runtime) -> Result:
        now, started = datetime.now(UTC), time.perf_counter()
        recalled = await recall.recall(
            rt,
            rt.settings.tenant,
            query or "",
            user=user,
            thread=thread,
            topic=topic,
            speaker=speaker,
            k=k,
            as_of=None if as_of is None else time_of(as_of, now, rt.settings.zone),
            history=past,
            max_tokens=max_tokens,
            keyword_only=keyword_only,
            kinds=tuple(name.upper() for name in kind or ()),
            min_importance=min_importance,
        )
        milliseconds = (time.perf_counter() - started) * 1000
        for why in dict.fromkeys((recalled.degraded, recalled.memories_degraded)):
            warn(why)
        document = recall.recall_document(query or topic or "", recalled, explain)
        if user is None:
            del document["memories"], document["memories_degraded"]
        nothing = "nothing found" if max_tokens is None else f"nothing found that fits in {max_tokens:,} tokens"
        return Result(document | {"milliseconds": round(milliseconds, 1)}, _lines(recalled, explain, nothing))

    serve(use, check)


def _lines(recalled: "Found", explain: bool, nothing: str) -> Iterator[str]:
    if explain and recalled.question is not None:
        yield from _question_lines(recalled.question)
    if not recalled.turns and not recalled.memories:
        yield nothing
    elif recalled.is_unsure:
        yield f"probably nothing here answers that (confidence {recalled.confidence:.2f}); the nearest are:"
    for memory in recalled.memories:
        yield from _memory_lines(memory, explain)
    if recalled.memories and recalled.turns:
        yield ""
    for turn in recalled.turns:
        yield _turn_line(turn, explain)


def _question_lines(question: "QuestionAnalysis") -> Iterator[str]:
    """Yields lines that say how the question was understood: its kind, and each part with its dates."""
    form = "an order" if question.kind == "order" else f"a {question.kind}"
    yield f"asks for {form}, in the words of {question.words_of}"
    for number, part in enumerate(question.parts, 1):
        dates = ", ".join(f"{period.from_time:%Y-%m-%d} to {period.to_time:%Y-%m-%d}" for period in part.dates)
        yield f"  {number}: {' '.join(part.text.split())!r}" + (f" ({dates})" if dates else "")


def _memory_lines(memory: "FoundMemory", explain: bool) -> Iterator[str]:
    """Yields the lines of a memory. explain: adds a line such as "similarity 0.52 (words 0.80 × 1, vector 0.31 × 0.5)
    × importance 0.75^0.1"."""
    row = memory.memory
    yield f"{memory.relevance:7.3f}  {row.kind:<10}  {words_of(row)}"
    yield f"         {row.id}  {validity(row)}"
    if row.sources:
        yield f"         {source_line(row.sources[0])}"
    if explain:
        why = memory.explain
        parts = ", ".join(
            f"{name} {p['value']:.2f} × {p['weight']:g}" for name, p in why.items() if isinstance(p, dict)
        )
        importance = f"importance {why['importance']:.2f}^{why['power']:g}"
        yield f"         similarity {why['similarity']:.2f} ({parts}) × {importance}"


def _turn_line(turn: "Recalled", explain: bool) -> str:
    source = f" {turn.source_id}" if turn.source_id else ""
    parts = "  (" + ", ".join(f"{k} {v:+.2f}" for k, v in turn.parts.items()) + ")" if explain else ""
    parts += f"  rerank {turn.rerank:.3f}" if explain and turn.rerank is not None else ""
    text = " ".join(turn.text.split())
    return f"{turn.score:7.2f}  {turn.seq:>7}{source}  {day_text(turn.time):<10}  {turn.speaker}: {text}{parts}"


async def _batch(settings: Settings, options: RecallOptions, path: Path) -> int:
    """Prints one JSON line per line of the file, in the same order; for a bad line, its error. Exit code 1 if any line
    is bad.
    """
    bad, lines = 0, list(_numbered(path))
    left: str | None = None
    async with composed.opened(settings) as runtime, composed.projecting(runtime):
        if not options.keyword_only:
            left = await _embed_first(runtime, options, [line for _, line in lines])
        for number, line in lines:
            try:
                emit_line(await _line_answer(runtime, options, line, left))
            except (recall.BadQuery, NotFound, ValueError) as error:
                bad += 1
                emit_line({"line": number, "error": str(error), "items": []})
    return int(bad > 0)


async def _embed_first(runtime: Runtime, options: RecallOptions, lines: Sequence[str]) -> str | None:
    """Embeds the threads in question, for EMBED_FIRST_S at most. Returns why some of their texts still have no
    vector.
    """
    threads = {thread for line in lines if (thread := _thread(line) or options.thread)}
    with progress("embedding") as update:
        left = await embed_now.embed_threads(runtime, runtime.settings.tenant, threads, EMBED_FIRST_S, update)
    warn(left)
    return left


async def _line_answer(runtime: Runtime, options: RecallOptions, line: str, left: str | None) -> dict[str, Any]:
    request = json.loads(line)
    texts = ("query", "topic") if isinstance(request, dict) and "topic" in request else ("query",)
    if not isinstance(request, dict) or not all(isinstance(request.get(name), str) for name in texts):
        raise recall.BadQuery('a line must be an object with "query", "thread" (or "user"), "topic" and "k"')
    k = int(request.get("k") or options.k or runtime.settings.recall_top_k)
    thread, user = request.get("thread") or options.thread, request.get("user") or options.user
    recalled = await recall.recall(
        runtime,
        runtime.settings.tenant,
        request["query"],
        user=user if thread is None else None,
        thread=thread,
        topic=request.get("topic") or options.topic,
        k=k,
        keyword_only=options.keyword_only,
    )
    items = [turn.document() for turn in recalled.turns]
    degraded = recalled.degraded or (left if thread else None)
    return {**request, "k": k, "items": items, "degraded": degraded, "confidence": recalled.confidence}


def _thread(line: str) -> str | None:
    try:
        request = json.loads(line)
    except ValueError:
        return None
    thread = request.get("thread") if isinstance(request, dict) else None
    return thread if isinstance(thread, str) else None


def _numbered(path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise recall.BadQuery(f"cannot read {path}: {error}") from error
    return ((n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip())


@command(app, projecting=False)
async def profile(
    rt: Runtime,
    user: Annotated[str, typer.Option("--user", "-u", help="Who.")],
    as_of: Annotated[str | None, typer.Option(help="Who they were at a time, a date or 'last March'.")] = None,
    max_tokens: Annotated[
        int, typer.Option(min=40, max=4_000, help="Maximum tokens of the lines, not counting their sources.")
    ] = 400,
) -> Result:
    """Show who a user is: what is true of them now, or was then, in groups, each line with their words and its turn."""
    at = None if as_of is None else time_of(as_of, datetime.now(UTC), rt.settings.zone)
    person = await profiles.profile(rt, rt.settings.tenant, user, at, max_tokens)
    return Result(person, profile_lines(person) or f"nothing is remembered of {user}")
