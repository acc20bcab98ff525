"""memories, remember, edit, rate, revert, forget, conflicts, answer: long-term memory by hand (M5, E 11.5)."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, get_args
from uuid import UUID

import typer

from turnlog.agent.settings import Settings
from turnlog.consumers.cli.confirming import Yes, confirm, someone_to_ask
from turnlog.consumers.cli.console import Json, Tenant, check_given, emit, out, run, tenant_of
from turnlog.events.errors import NotFound, TurnlogError
from turnlog.events.memory_contracts import Answer, MemoryKind

if TYPE_CHECKING:
    from turnlog.agent.memories.service import Memories
    from turnlog.consumers.runtime import Pool
    from turnlog.events.log import Log
    from turnlog.projectors.memory_lookup import Conflict, StoredMemory

READS = ("memories",)


def _kinds() -> list[str]:
    return list(get_args(MemoryKind))


User = Annotated[str, typer.Option("--user", "-u", help="Whose memories.")]
Which = Annotated[
    str, typer.Argument(metavar="MEMORY", help="Its id, the beginning of it, or words that only this memory has.")
]
Kind = Annotated[
    str | None, typer.Option(help="FACT, PREFERENCE, DECISION, SUMMARY or FEEDBACK.", autocompletion=_kinds)
]


def register(app: typer.Typer) -> None:
    memories = typer.Typer(help="What is remembered of a user.", invoke_without_command=True)
    memories.callback()(listed)
    memories.command()(show)
    app.add_typer(memories, name="memories")
    for command in (remember, edit, rate, revert, forget, conflicts, answer):
        app.command()(command)


def listed(
    context: typer.Context,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Whose memories.")] = None,
    as_of: Annotated[str | None, typer.Option(help="What held then: a time, a date or 'last March'.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Ended, waiting, archived and forgotten ones too.")] = False,
    kind: Kind = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, of those said last.")] = 100,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """What is remembered of a user, worth most first: score, tier, validity, quote and source."""
    if context.invoked_subcommand is not None:
        return
    if user is None:
        raise typer.BadParameter("say whose memories", param_hint="--user")
    whose, kinds = user, _checked_kind(kind)

    async def work(settings: Settings) -> int:
        from turnlog.agent.memories.policy import Policy
        from turnlog.consumers import remembering as shown
        from turnlog.projectors import memory_finding, memory_lookup

        now = datetime.now(UTC)
        at = now if as_of is None else shown.time_of(as_of, now, settings.zone)
        async with _desk(settings, tenant, whose) as desk, desk.pool.connection() as conn:
            if every:
                rows = await memory_finding.every_memory(conn, *desk.place, kinds, limit)
            elif as_of is None:
                rows = await memory_lookup.valid_memories(conn, *desk.place, now, kinds, limit)
            else:
                rows = await memory_lookup.memories_as_of(conn, *desk.place, at, kinds, limit)
        policy = Policy.of(settings)
        if json:
            emit([shown.memory_document(row, at, policy) for row, _ in shown.by_score(rows, at, policy)])
        elif not rows:
            out.print(f"nothing is remembered of {whose}", markup=False)
        for row, worth in () if json else shown.by_score(rows, at, policy):
            _print(shown.memory_lines(row, worth))
        return 0

    run(work, json)


def show(
    which: Which,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Whose; not needed with a whole id.")] = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """A memory's history: every version with its interval and the words that say it."""

    async def work(settings: Settings) -> int:
        from turnlog.agent.memories.policy import Policy
        from turnlog.consumers import remembering as shown
        from turnlog.projectors.memory_lookup import history

        async with _desk(settings, tenant, user, which) as desk, desk.pool.connection() as conn:
            row = await shown.the_memory(conn, *desk.place, desk.user, which)
            rows = await history(conn, *desk.place, row.id)
        if json:
            now, policy = datetime.now(UTC), Policy.of(settings)
            emit({"memory": row.id, "history": [shown.memory_document(one, now, policy) for one in rows]})
        else:
            _print(shown.history_lines(rows, row.id))
        return 0

    run(work, json)


def remember(
    text: Annotated[str, typer.Argument(help="One claim, in the user's words.")],
    user: User,
    kind: Kind = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Write a memory by hand. Extraction rules that read it give it their key, so that it can be contradicted."""
    chosen = _checked_kind(kind)

    async def work(settings: Settings) -> int:
        from turnlog.consumers.noting import fields_by_rules

        fields = fields_by_rules(settings, text, datetime.now(UTC)) | ({"kind": chosen[0]} if chosen else {})
        async with _desk(settings, tenant, user) as desk:
            made = await desk.memories.remember(desk.tenant, user, text, **fields)
        if json:
            emit(made)
        elif made.question:
            _print([f"{made.question}", f"`turnlog answer new --user {user}`, or old, or both"])
        else:
            _print([f"{_WHAT[made.what]}  {made.memory_id}"])
        return 0

    run(work, json)


def edit(
    which: Which,
    text: Annotated[str, typer.Argument(help="What it says from now on.")],
    user: User,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Put other words in a memory's place. The memory before stays in the history."""

    async def work(settings: Settings) -> int:
        async with _desk(settings, tenant, user) as desk:
            row = await desk.memory(which)
            now = await desk.memories.edit(desk.tenant, user, row.id, text)
        _tell({"memory": now, "replaced": row.id}, [f"“{row.content}” is now “{text}”  {now}"], json)
        return 0

    run(work, json)


def rate(
    which: Which,
    importance: Annotated[float, typer.Argument(help="0 to 1.")],
    user: User,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Say how important a memory is. It decays from then on again."""

    async def work(settings: Settings) -> int:
        async with _desk(settings, tenant, user) as desk:
            row = await desk.memory(which)
            await desk.memories.rate(desk.tenant, user, row.id, importance)
        _tell({"memory": row.id, "importance": importance}, [f"“{row.content}” has importance {importance:g}"], json)
        return 0

    run(work, json)


def revert(
    which: Which,
    user: User,
    yes: Yes = False,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Let an earlier version hold again; `turnlog memories show` has their ids. What came after it is taken back."""

    async def work(settings: Settings) -> int:
        someone_to_ask(yes, json)
        async with _desk(settings, tenant, user) as desk:
            row = await desk.memory(which)
            await confirm(f"Let “{row.content}” hold again, and end what took its place?", yes)
            await desk.memories.revert(desk.tenant, user, row.id)
        _tell({"memory": row.id}, [f"“{row.content}” holds again"], json)
        return 0

    run(work, json)


def forget(
    which: Which,
    user: User,
    yes: Yes = False,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Drop a memory's words, and those of what says the same, from every read model. It does not come back."""

    async def work(settings: Settings) -> int:
        someone_to_ask(yes, json)
        async with _desk(settings, tenant, user) as desk:
            row = await desk.memory(which)
            await confirm(f"Forget “{row.content}” for good?", yes)
            gone = await desk.memories.forget(desk.tenant, user, row.id)
        _tell({"forgotten": gone}, [f"forgot {len(gone)} {'memory' if len(gone) == 1 else 'memories'}"], json)
        return 0

    run(work, json)


def conflicts(
    user: User,
    every: Annotated[bool, typer.Option("--all", help="Answered ones too.")] = False,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Contradictions that wait for the user to say what holds."""

    async def work(settings: Settings) -> int:
        from turnlog.consumers.remembering import conflict_lines

        async with _desk(settings, tenant, user) as desk:
            found = await desk.questions(every)
        if json:
            emit(found)
        elif not found:
            out.print("no question is open", markup=False)
        for one in () if json else found:
            _print(conflict_lines(one))
        return 0

    run(work, json)


def answer(
    holds: Annotated[Answer, typer.Argument(metavar="ANSWER", help="new, old or both.")],
    user: User,
    question: Annotated[
        str | None, typer.Argument(help="Its id or the beginning; not needed for the only one.")
    ] = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Say which memory of a contradiction holds: the new one, the old one or both."""

    async def work(settings: Settings) -> int:
        async with _desk(settings, tenant, user) as desk:
            one = _the_question(await desk.questions(question is not None), question)
            await desk.memories.answer(desk.tenant, user, one.conflict_id, holds)
        _tell({"conflict": one.conflict_id, "answer": holds}, [f"{one.question}", f"answered: {holds}"], json)
        return 0

    run(work, json)


_WHAT = {
    "recorded": "remembered",
    "ended": "remembered, but something else holds in its place",
    "confirmed": "said before",
    "known": "known already",
}


@dataclass(frozen=True, slots=True)
class _Desk:
    """The memories of one user, with rows as of now."""

    tenant: str
    user: str
    log: "Log"
    pool: "Pool"

    @property
    def memories(self) -> "Memories":
        from turnlog.agent.memories.service import Memories  # what only reads needs neither it nor numpy

        return Memories(self.log, self.pool)

    @property
    def place(self) -> tuple[str, str]:
        from turnlog.events.subjects import memory_thread

        return self.tenant, memory_thread(self.user)

    async def memory(self, which: str) -> "StoredMemory":
        from turnlog.consumers.remembering import the_memory

        async with self.pool.connection() as conn:
            return await the_memory(conn, *self.place, self.user, which)

    async def questions(self, answered: bool) -> "list[Conflict]":
        from turnlog.projectors import memory_lookup

        async with self.pool.connection() as conn:
            return await memory_lookup.conflicts(conn, *self.place, answered=answered)


@contextlib.asynccontextmanager
async def _desk(
    settings: Settings, tenant: str | None, user: str | None, memory: str | None = None
) -> AsyncIterator[_Desk]:
    from turnlog.consumers.runtime import opened, projecting

    chosen = tenant_of(settings, tenant)
    check_given("user", user)
    async with opened(settings) as runtime, projecting(runtime):
        await runtime.settle(names=READS)
        owner = user or await _owner(runtime.pool, chosen, memory or "")
        yield _Desk(chosen, owner, runtime.log, runtime.pool)


async def _owner(pool: "Pool", tenant: str, memory: str) -> str:
    from turnlog.projectors.memory_finding import users_with_memory

    try:
        id_ = UUID(memory)
    except ValueError:
        raise TurnlogError("say whose memory it is: --user USER (only a whole id needs none)") from None
    async with pool.connection() as conn:
        users = await users_with_memory(conn, tenant, id_)
    if len(users) != 1:
        raise NotFound(f"there is no memory {id_}; `turnlog memories --user USER` lists a user's")
    return users[0]


def _the_question(found: "list[Conflict]", given: str | None) -> "Conflict":
    if given is None and len(found) > 1:
        raise TurnlogError(f"{len(found)} questions are open; `turnlog conflicts` lists them, give the id of one")
    matching = [one for one in found if str(one.conflict_id).startswith((given or "").lower())]
    if len(matching) != 1:
        what = f"no question {given}" if given else "no open question"
        raise NotFound(f"there is {what}; `turnlog conflicts` lists them")
    return matching[0]


def _checked_kind(kind: str | None) -> tuple[str, ...]:
    if kind is None:
        return ()
    if kind.upper() not in _kinds():
        raise typer.BadParameter(f"{kind!r} is no kind of memory; there are {', '.join(_kinds())}", param_hint="--kind")
    return (kind.upper(),)


def _tell(document: Any, lines: list[str], as_json: bool) -> None:
    if as_json:
        emit(document)
    else:
        _print(lines)


def _print(lines: list[str]) -> None:
    for line in lines:
        out.print(line, markup=False)
