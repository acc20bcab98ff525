"""extract: memories from what was said, now; or what they would be and why, and what would be left out and why."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnlog.agent.settings import Settings
from turnlog.consumers.cli.console import Json, Tenant, check_given, emit, out, run, tenant_of
from turnlog.events.errors import NotFound, TurnlogError

if TYPE_CHECKING:
    from turnlog.agent.memories.extraction import Talk
    from turnlog.agent.memories.findings import Finding, Looked, Rejection
    from turnlog.agent.memories.outcomes import Outcome
    from turnlog.consumers.runtime import Runtime

READS = ("messages", "memories")


class NothingChosen(TurnlogError):
    """The command needs a conversation or a user."""

    code = "nothing-chosen"


def register(app: typer.Typer) -> None:
    app.command()(extract)


def extract(
    thread: Annotated[str | None, typer.Argument(help="A conversation; or --user.")] = None,
    user: Annotated[
        str | None, typer.Option(help="All conversations of this user, or this user's part of one.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Store nothing: show what the rules find in all turns, and why.")
    ] = False,
    rules: Annotated[Path | None, typer.Option(help="Rules to use in place of MEMORY_RULES_FILE.")] = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Extract memories from what users said and no look has seen yet."""

    async def work(settings: Settings) -> int:
        from turnlog.consumers.runtime import opened, projecting

        check_given("user", user)
        chosen = settings if rules is None else settings.model_copy(update={"rules_file": rules})
        async with opened(chosen) as runtime, projecting(runtime):
            await runtime.settle(names=READS)
            talks = await _talks(runtime, tenant_of(settings, tenant), thread, user)
            made = [one async for one in (_previews(runtime, talks) if dry_run else _runs(runtime, talks))]
        if json:
            emit(made)
        for one in () if json else made:
            _show(one)
        return 0

    run(work, json)


async def _talks(runtime: "Runtime", tenant: str, thread: str | None, user: str | None) -> "list[Talk]":
    """Raises NotFound, NothingChosen."""
    from turnlog.agent.memories.extraction import Talk
    from turnlog.agent.memories.turns import roles
    from turnlog.projectors.extraction_lookup import conversations_of, users_between

    kinds = roles(runtime.settings.extract_tool_results)
    async with runtime.pool.connection() as conn:
        if thread is not None:
            users = await users_between(conn, tenant, thread, kinds)
            found = [Talk(tenant, one, thread) for one in users if user in (None, one)]
        elif user is not None:
            found = [Talk(tenant, user, one) for one in await conversations_of(conn, tenant, user, kinds)]
        else:
            raise NothingChosen(
                "say which conversation: `turnlog extract THREAD`, or `--user USER` for all of one user"
            )
    if not found:
        raise NotFound("nobody said anything there as a user; `turnlog threads` lists conversations and their users")
    return found


async def _previews(runtime: "Runtime", talks: "list[Talk]") -> AsyncIterator[dict[str, Any]]:
    from turnlog.agent.memories.candidates import candidates
    from turnlog.agent.memories.preview import preview
    from turnlog.agent.memories.writing import MemoryWriter, Place

    writer = MemoryWriter(runtime.log, runtime.pool)
    for talk in talks:
        looked = await _looked(runtime, talk)
        by_id = {}
        for one in looked.findings:
            for memory in candidates(talk.tenant, talk.user, [one]):
                by_id[memory.id] = (memory, one)
        outcomes = await preview(writer, Place(talk.tenant, talk.user), [memory for memory, _ in by_id.values()])
        memories = [_memory(one, told) for (_, one), told in zip(by_id.values(), outcomes, strict=True)]
        yield {
            "thread": talk.thread,
            "user": talk.user,
            "memories": memories,
            "rejected": [_rejection(one) for one in looked.rejections],
        }


async def _looked(runtime: "Runtime", talk: "Talk") -> "Looked":
    """What the rules make of all turns, whatever was extracted before."""
    from turnlog.agent.memories.by_rules import Extractor
    from turnlog.agent.memories.rules import load_rules
    from turnlog.agent.memories.turns import evidence, roles
    from turnlog.projectors.extraction_lookup import is_among_people, user_turns

    settings = runtime.settings
    tools = settings.extract_tool_results
    place = (talk.tenant, talk.thread, talk.user)
    async with runtime.pool.connection() as conn:
        messages = await user_turns(conn, *place, roles(tools), 0, 2**31)
        people = await is_among_people(conn, *place)
    turns, _others = evidence(messages, talk.thread, talk.user, people, tools)
    return Extractor(load_rules(settings.rules_file), settings.zone).look(turns)


def _memory(one: "Finding", told: "Outcome") -> dict[str, Any]:
    return {
        "content": one.content,
        "kind": one.kind,
        "outcome": told.what,
        "question": told.question,
        "origin": one.origin,
        "rule": one.rule,
        "dedupe_key": one.dedupe_key,
        "strategy": one.strategy,
        "importance": round(one.importance, 3),
        "confidence": one.confidence,
        "expires_at": one.expires_at,
        "quote": one.source.quote,
        "seq": one.source.seq,
        "event_id": one.source.event_id,
    }


def _rejection(one: "Rejection") -> dict[str, Any]:
    return {"reason": one.reason, "rule": one.rule, "detail": one.detail, "quote": one.quote, "seq": one.turn.seq}


async def _runs(runtime: "Runtime", talks: "list[Talk]") -> AsyncIterator[dict[str, Any]]:
    """The reactor's work now: rules, and the model where one is set, whatever its batch's size. Raises NotNow."""
    from turnlog.agent.models.factory import make_models
    from turnlog.consumers.reactors.extraction import at_once, extraction_of, locked
    from turnlog.events.subjects import memory_thread
    from turnlog.projectors.memory_lookup import extraction_progress

    models = make_models(runtime.settings)
    try:
        extraction = extraction_of(runtime, models)
        for talk in talks:
            with at_once():
                async with runtime.pool.connection() as conn, locked(conn, talk):
                    await extraction.by_rules(conn, talk, finish=True)
                    await extraction.by_model(conn, talk, flush=True)
            await runtime.settle(names=READS)
            place = (talk.tenant, memory_thread(talk.user), talk.thread)
            async with runtime.pool.connection() as conn:
                stages = {stage: await extraction_progress(conn, *place, stage) for stage in ("rules", "llm")}
            yield {"thread": talk.thread, "user": talk.user, "stages": stages}
    finally:
        await models.close()


def _show(one: dict[str, Any]) -> None:
    out.print(f"{one['thread']}  user {one['user']}", style="bold", markup=False)
    for stage, progress in one.get("stages", {}).items():
        if progress is not None:
            told = f"  {progress.error}" if progress.error else ""
            out.print(f"  {stage:<6} through {progress.through_seq}: {progress.stored} stored{told}", markup=False)
    for memory in one.get("memories", ()):
        source = memory["rule"] or memory["origin"]
        out.print(f"  {memory['outcome']:<9} {memory['kind']:<10} {memory['content']}", style="green", markup=False)
        out.print(f"            {source}, importance {memory['importance']:g}, turn {memory['seq']}", markup=False)
        out.print(f"            “{' '.join(memory['quote'].split())}”", markup=False)
    for refused in one.get("rejected", ()):
        why = "  ".join(filter(None, (refused["reason"], refused["rule"], refused["detail"])))
        out.print(f"  left out  {why}", style="yellow", markup=False)
        out.print(f"            “{' '.join(refused['quote'].split())[:200]}”", markup=False)
