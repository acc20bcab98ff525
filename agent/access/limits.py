"""Shows and changes the limits of a tenant's users, and returns what one user has left."""

from collections.abc import Mapping
from uuid import UUID

from pydantic import ValidationError
from uuid_utils.compat import uuid7

from turnlog.agent.access.identity import Role
from turnlog.agent.access.parked_threads import append_unless_parked
from turnlog.agent.access.throttle.guards import COUNT, DEFAULTS, RESET, Guard, guards_of, parameters
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import Event, LimitName, LimitsChanged, Plan
from turnlog.events.errors import TurnlogError
from turnlog.events.subjects import check_place
from turnlog.projectors.models.operations.limits import LIMITS_THREAD

SOURCE, READS = "turnlog/limits", ("limits",)
Limits = dict[Plan, dict[LimitName, float]]


class InvalidLimit(TurnlogError):
    """A limit or plan has an unknown name, there are no limits, or a limit is not a number from 0 to 1e12."""

    code = "invalid-limit"


async def limits_of(runtime: Runtime, tenant: str) -> Limits:
    """Returns the limits by plan and name; defaults for those that were not changed. Raises InvalidToken,
    NotProjectedInTime, LogUnavailable."""
    check_place(tenant)
    async with runtime.reading(*READS, of=(tenant, LIMITS_THREAD)) as conn:
        rows = await conn.execute(
            "SELECT plan, name, most FROM limits WHERE tenant = %s AND thread_id = %s", (tenant, LIMITS_THREAD)
        )
        changed = {(plan, name): most for plan, name, most in await rows.fetchall()}
    return {
        plan: {name: changed.get((plan, name), most) for name, most in defaults.items()}
        for plan, defaults in DEFAULTS.items()
    }


async def change_limits(
    runtime: Runtime, tenant: str, plan: str, limits: Mapping[str, float], *, event_id: UUID | None = None
) -> Limits:
    """Changes limits of a plan, from the next request on. limits: by name; the others stay as they are.

    plan: user, or vip, which applies to admins too. event_id: repeated calls with the same id are stored once.

    Raises InvalidLimit, InvalidToken, NotProjectedInTime, LogUnavailable; ThreadParked if an earlier event could not be
    read, because the change would have no effect.
    """
    check_place(tenant)
    try:
        data = LimitsChanged.model_validate({"plan": plan, "limits": limits})
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"] if part != "[key]")
        raise InvalidLimit(f"{where}: {problem['msg'].lower()}") from None
    event = Event(id=event_id or uuid7(), source=SOURCE, tenant=tenant, thread=LIMITS_THREAD, data=data)
    await append_unless_parked(runtime, event, READS)
    return await limits_of(runtime, tenant)


async def usage_left(
    runtime: Runtime, tenant: str, user: str, role: Role = "user", thread: str | None = None, agent: str | None = None
) -> list[Guard]:
    """Returns the limits of the user with the used and remaining amounts; with a conversation or an agent, also its
    limits.

    Raises InvalidToken.
    """
    check_place(tenant, thread, user)
    async with runtime.reading("limits", "usage") as conn:
        values = {**parameters(tenant, user, role, thread, agent), "now": None}
        guards = guards_of(await (await conn.execute(COUNT.encode(), values)).fetchall())
    left_out = {name for name, of in (("conversation_per_minute", thread), ("agent_per_minute", agent)) if of is None}
    return [guard for guard in guards if guard.name not in left_out]


async def reset_rate(runtime: Runtime, tenant: str, user: str) -> None:
    """Empties the user's windows; running requests keep their slots, and the quota is unchanged.

    Raises InvalidToken.
    """
    check_place(tenant, user=user)
    async with (runtime.system or runtime).pool.connection() as conn:
        await conn.execute(RESET.encode(), {"tenant": tenant, "user": user})
