"""Implements `doctor`: checks each part and says how to repair the broken ones."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from turnlog.agent.counting import counted
from turnlog.agent.models.errors import NoEmbeddings
from turnlog.agent.models.factory import make_embedder
from turnlog.agent.models.nano_e5 import check_installed
from turnlog.agent.operations.lag import embedding_backlog
from turnlog.agent.operations.role_processes import BLOCKED_S, LoopState, blocked_s, deaths, faults, processes
from turnlog.agent.privacy.keys.kek import InvalidKek, WrongKek, keks_of
from turnlog.agent.privacy.keys.key_admin import uses
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings, unknown_variables
from turnlog.agent.team.configured import check_secrets, server_team
from turnlog.agent.team.teams import InvalidTeam
from turnlog.agent.team.tools import InvalidTool
from turnlog.events.errors import KeyUnavailable, OtherLog, TurnlogError
from turnlog.events.stored import recorded
from turnlog.events.subjects import partition_filter
from turnlog.projectors.engine.lag import Lag, lag
from turnlog.projectors.engine.parking import listed
from turnlog.projectors.engine.row_security import ROLE, NoTenantRole, make_usable
from turnlog.projectors.engine.same_log import assert_same_log, projected
from turnlog.projectors.models.registry import PROJECTIONS

LONG_BLOCKED_S = 0.5  # a block of the event loop that users notice


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. fix: the remedy, if one is needed. loops: the loops of the processes. warning: nothing
    is broken, but somebody should look at it."""

    check: str
    ok: bool
    detail: str
    fix: str = ""
    loops: Mapping[str, LoopState] | None = None
    warning: bool = False


async def checkup(settings: Settings, open_: Callable[[], AbstractAsyncContextManager[Runtime]]) -> list[Finding]:
    """Returns the results of all checks in order. open_: opens the runtime; if it fails, the error becomes a
    finding."""
    findings = [_settings(settings), await _models(settings)]
    try:
        async with open_() as runtime:
            findings += [await look(runtime) for look in _LOOKS]
            if settings.team is not None:
                findings.append(await _team(runtime))
    except (InvalidKek, WrongKek) as error:
        findings.append(Finding("encryption", False, str(error)))
    except TurnlogError as error:
        fix = "`turnlog up` starts the embedded servers"
        if settings.nats_url or settings.database_url:
            fix = "start the given servers, or correct their addresses"
        findings.append(Finding("servers", False, f"{error}; checks that need them were skipped", fix))
    return findings


def _settings(settings: Settings) -> Finding:
    where = "embedded servers" if not (settings.nats_url and settings.database_url) else "given servers"
    unknown = unknown_variables()
    detail = [
        f"home {settings.home}, {where}, tenant {settings.tenant}",
        *(f"{name} is no setting" for name in unknown),
    ]
    fix = "correct the name (docs/configuration.md lists all), or unset it" if unknown else ""
    return Finding("settings", True, "; ".join(detail), fix, warning=bool(unknown))


async def _models(settings: Settings) -> Finding:
    if settings.offline:
        offline = "no language model is configured: offline summaries, topics and quoting answers"
        try:
            if settings.offline_embeddings:
                check_installed()
        except NoEmbeddings as error:
            return Finding("models", True, f"{offline}, recall by words", str(error), warning=True)
        fix = "set API_KEY (and API_BASE_URL) for a language model"
        return Finding("models", True, f"{offline}, {settings.vector_model.partition(':')[0]} vectors", fix)
    vectors = settings.vector_model
    if settings.may_lack_embeddings:
        embedder = make_embedder(settings)
        await embedder.ready()
        vectors = embedder.model
        await embedder.close()
    why = "" if vectors == settings.vector_model else " (offline: the server has no embeddings)"
    return Finding("models", True, f"chat {settings.model}, embeddings {vectors}{why}")


async def _team(runtime: Runtime) -> Finding:
    """Checks the team's files, and asks the servers of its tools whether they offer them."""
    try:
        server = server_team(runtime)
        assert server is not None, "TURNLOG_TEAM names a team"
        check_secrets(server.team)
    except (InvalidTeam, InvalidTool) as error:
        return Finding("team", False, str(error), "correct the team's files; docs/agents.md describes them")
    await server.tools.ready()
    if away := server.tools.away:
        said = "; ".join(f"{names}: {problem}" for names, problem in away.items())
        return Finding("team", False, f"tools that are not offered: {said}", "start the server, or correct team.toml")
    tools = {name for agent in server.team.agents.values() for name in agent.tools}
    return Finding(
        "team", True, f"{server.team.name}: {counted(len(server.team.agents), 'agent')}, {counted(len(tools), 'tool')}"
    )


async def _servers(runtime: Runtime) -> Finding:
    async with runtime.pool.connection() as conn:
        row = await (
            await conn.execute(
                "SELECT current_setting('server_version'), "
                "(SELECT extversion FROM pg_extension WHERE extname = 'vector')"
            )
        ).fetchone()
    postgres, vector = row or ("?", None)
    version = runtime.log.nc.connected_server_version
    nats = f"{version.major}.{version.minor}.{version.patch}"
    detail = f"nats-server {nats}, Postgres {postgres}, pgvector {vector}"
    if runtime.started:
        detail += "; they were not running and were started for this check"
    old = vector is None or tuple(int(n) for n in str(vector).split(".")[:3]) < (0, 8, 0)
    return Finding("servers", not old, detail, "pgvector 0.8 or newer is needed" if old else "")


async def _log(runtime: Runtime) -> Finding:
    try:
        async with runtime.pool.connection() as conn:
            head = await assert_same_log(runtime.log, conn)
    except OtherLog as error:
        return Finding("log", False, str(error), "`turnlog log` shows both; docs/operation.md, Another log")
    return Finding("log", True, f"{counted(head, 'event')}, {counted(runtime.log.partitions, 'partition')}")


async def _projections(runtime: Runtime) -> Finding:
    async with runtime.pool.connection() as conn:
        try:
            lags = await lag(runtime.log, conn, runtime.settings.stalled_after_s)
        except OtherLog:
            return Finding("projections", False, "they wait: the rows were made from another log")
        rows = await conn.execute("SELECT projection, code_version FROM projection_positions WHERE build = 'live'")
        versions: dict[str, int] = dict(await rows.fetchall())
        kept = (await projected(conn)).kept_through
    old = [p.name for p in PROJECTIONS if versions.get(p.name, p.version) != p.version]
    if old and kept is not None:
        return Finding(
            "projections",
            False,
            f"of another version of turnlog: {', '.join(old)}; a rebuild would lose rows up to sequence {kept:,}, "
            "which were kept when this log was adopted and are not all in it",
            "`turnlog log rebuild` deletes them and rebuilds all rows from this log",
        )
    if old:
        return _of_another_version(old, {partition.projection: partition.rebuilt for partition in lags})
    stalled = [partition for partition in lags if partition.stalled]
    behind = max((partition.behind for partition in lags), default=0)
    fix = await _key_waited_for(runtime, stalled) or "start a projector: `turnlog up` or `turnlog worker projectors`"
    detail = f"{len(PROJECTIONS)} read models, at most {behind:,} behind"
    return Finding("projections", not stalled, detail, fix if stalled else "")


def _of_another_version(old: Sequence[str], rebuilt: Mapping[str, float | None]) -> Finding:
    """Returns the finding about projections whose rows are from another version. rebuilt: the share of the log that a
    rebuild has read, by projection."""
    progress = ", ".join(f"{name} {rebuilt.get(name) or 0:.0%}" for name in old)
    detail = f"of another version of turnlog: {', '.join(old)}"
    if any(rebuilt.get(name) for name in old):
        return Finding(
            "projections", True, f"{detail}; rebuilding {progress}", "wait; `turnlog lag` shows the progress"
        )
    return Finding("projections", False, detail, "`turnlog up` or `turnlog worker projectors` rebuilds them")


async def _key_waited_for(runtime: Runtime, stalled: Sequence[Lag]) -> str | None:
    """Returns why the next event of a stalled partition cannot be read if the reason is a missing key; otherwise
    None."""
    lowest = {lagging.partition: lagging.position for lagging in sorted(stalled, key=lambda lagging: -lagging.position)}
    for partition, position in lowest.items():
        async for stored in runtime.log.read([partition_filter(partition)], position + 1):
            try:
                recorded(stored)
            except KeyUnavailable as error:
                return f"the event at sequence {stored.seq} waits for its key: {error}"
            except TurnlogError:  # it will be parked
                pass
            break
    return None


async def _embedding(runtime: Runtime) -> Finding:
    try:
        backlog = await embedding_backlog(runtime)
    except OtherLog:
        return Finding("embedding", False, "it waits: the rows were made from another log")
    rests = bool(backlog.texts) and backlog.texts_per_s is None and not backlog.waits
    fix = "start the reactors: `turnlog up` or `turnlog worker reactors`" if rests else ""
    return Finding("embedding", True, backlog.sentence(), fix)


async def _dead_letters(runtime: Runtime) -> Finding:
    async with runtime.pool.connection() as conn:
        parked = {row["seq"] for row in await listed(conn, None) if row["status"] == "parked"}
    fix = "`turnlog dead-letters list` shows them; retry or drop them" if parked else ""
    return Finding("dead letters", not parked, f"{counted(len(parked), 'event')} parked", fix)


async def _encryption(runtime: Runtime) -> Finding:
    keks = keks_of(runtime.settings)
    if keks is None:
        return Finding(
            "encryption",
            runtime.settings.plaintext,
            "personal data in the log is not encrypted, and erasing a user leaves it there",
            "" if runtime.settings.plaintext else "set TURNLOG_KEK to what `turnlog encryption-key new-kek` prints",
        )
    async with runtime.pool.connection() as conn:
        kek_uses = await uses(conn, keks)
    old = sum(use.current + use.retired for use in kek_uses if use.kek_id != keks.current.id)
    fix = "`turnlog encryption-key rewrap`, then unset TURNLOG_KEK_OLD" if old else ""
    detail = f"personal data in the log is encrypted, key-encryption key {keks.current.id} from {keks.source}"
    return Finding("encryption", True, detail + (f"; {counted(old, 'key')} still under another" if old else ""), fix)


async def _row_security(runtime: Runtime) -> Finding:
    try:
        async with runtime.pool.connection() as conn:
            await make_usable(conn)
    except NoTenantRole as error:
        return Finding("row security", False, str(error))
    return Finding("row security", True, f"the role {ROLE} sees the rows of one tenant at a time")


async def _processes(runtime: Runtime) -> Finding:
    all_processes = await processes(runtime)
    died, broken = deaths(all_processes), [sentence for _, sentence in faults(all_processes)]
    loops = {f"{process}: {loop.loop}": loop for process in all_processes for loop in process.loops}
    if died or broken:
        fix = "`turnlog up` starts all roles" if died else "it restarts by itself; the log says more"
        return Finding("processes", False, "; ".join([*died, *broken]), fix, loops)
    if not all_processes:
        return Finding(
            "processes", True, "no process plays a role, so nothing is served", "`turnlog up` plays all", warning=True
        )
    playing = ", ".join(f"{process} plays {', '.join(process.roles)}" for process in all_processes)
    blocked = {str(process): blocked_s(process) for process in all_processes if blocked_s(process) > BLOCKED_S}
    slow = [f"event loop of {name} blocked for {seconds * 1_000:,.0f} ms" for name, seconds in blocked.items()]
    detail = "; ".join([playing, f"{counted(len(loops), 'loop')} at work", *slow])
    is_long = any(seconds > LONG_BLOCKED_S for seconds in blocked.values())
    fix = "PYTHONASYNCIODEBUG=1 makes the process's log name the callback" if is_long else ""
    return Finding("processes", True, detail, fix, loops, warning=is_long)


_Look = Callable[[Runtime], Awaitable[Finding]]
_LOOKS: tuple[_Look, ...] = (
    _servers,
    _log,
    _encryption,
    _row_security,
    _projections,
    _processes,
    _embedding,
    _dead_letters,
)
