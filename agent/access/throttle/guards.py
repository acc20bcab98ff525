"""Defines the throttle's guards, which are the limits that refuse a request, and the SQL that counts and admits.

An admitted request is a row of `admissions`, so a window is exact: it holds the requests of the last minute or hour.
One statement counts everything and inserts the row unless something is full; NAMES is the order of the checks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, get_args

from turnlog.agent.access.identity import Role
from turnlog.agent.models.offline_tasks import PROVIDER as OFFLINE
from turnlog.events.contracts import LimitName, Plan
from turnlog.events.errors import TurnlogError
from turnlog.projectors.engine.locks import LockFor
from turnlog.projectors.models.operations.limits import LIMITS_THREAD

NAMES: tuple[LimitName, ...] = get_args(LimitName)
DEFAULTS: Mapping[Plan, Mapping[LimitName, float]] = {
    "user": dict(zip(NAMES, (2.0, 30.0, 500.0, 20.0, 60.0, 200_000.0, 20.0, 1_000_000.0), strict=True)),
    "vip": dict(zip(NAMES, (5.0, 120.0, 2_000.0, 80.0, 240.0, 1_000_000.0, 100.0, 5_000_000.0), strict=True)),
}
QUOTAS: tuple[LimitName, ...] = ("tokens_per_day", "usd_per_month", "embedding_tokens_per_day")
HELD_S = 30.0
HANDED_ON = ""  # stored instead of the conversation for a handed-over question, which is not a new request
# Retry time if all slots are taken; short, because nobody knows when a running request ends.
SLOT_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Guard:
    """A limit and its use. resets_at: when a full window has room for one more request, or the oldest request leaves a
    window that is not full; for a quota, the beginning of the next day or month (UTC); None for an empty window and for
    concurrent requests."""

    name: LimitName
    limit: float
    used: float
    left: float
    resets_at: datetime | None


class Refused(TurnlogError):
    """The throttle did not admit a request. retry_after_s: None if unknown."""

    code = "refused"

    def __init__(self, guard: Guard, now: datetime) -> None:
        wait = (guard.resets_at - now).total_seconds() if guard.resets_at else None
        self.name, self.limit, self.used = guard.name, guard.limit, guard.used
        self.retry_after_s = SLOT_RETRY_S if guard.name == "concurrent" else wait
        later = f"; try again in {self.retry_after_s:.0f} s" if self.retry_after_s else ""
        super().__init__(f"{guard.used:,.10g} of {guard.limit:,.10g} {guard.name.replace('_', ' ')} are used{later}")


class TooManyAtOnce(Refused):
    """The user's maximum number of concurrent requests is running (429)."""

    code = "too-many-at-once"


class RateLimited(Refused):
    """A sliding window of the user, the conversation or the agent is full (429)."""

    code = "rate-limited"


class QuotaExceeded(Refused):
    """The user's daily tokens for answers or embeddings, or the monthly cost, are used up (402)."""

    code = "quota-exceeded"


def refusal(guards: Sequence[Guard], now: datetime) -> Refused | None:
    """Returns the error of the first guard that is full; None if no guard is full."""
    for guard in guards:
        if guard.used >= guard.limit:
            is_quota = guard.name in QUOTAS
            kind = TooManyAtOnce if guard.name == "concurrent" else QuotaExceeded if is_quota else RateLimited
            return kind(guard, now)
    return None


def parameters(
    tenant: str, user: str, role: Role, thread: str | None, agent: str | None, without: LimitName | None = None
) -> dict[str, Any]:
    """Returns the parameters of LOCK; with id and now, those of ADMIT and COUNT. VIPs and admins share a plan.

    without: a limit that does not apply to the request.
    """
    plan: Plan = "user" if role == "user" else "vip"
    names = [name for name in NAMES if name != without]
    return {
        "tenant": tenant,
        "user": user,
        "thread": thread,
        "agent": agent,
        "plan": plan,
        "limits": LIMITS_THREAD,
        "names": names,
        "defaults": [DEFAULTS[plan][name] for name in names],
    }


def guards_of(rows: Sequence[tuple[LimitName, float, float, datetime | None, datetime]]) -> list[Guard]:
    """Returns the guards from the rows of ADMIT or COUNT."""
    return [
        Guard(name, limit, used, max(limit - used, 0), resets_at or _period_end(name, now))
        for name, limit, used, resets_at, now in rows
    ]


def _period_end(name: LimitName, now: datetime) -> datetime | None:
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if name in ("tokens_per_day", "embedding_tokens_per_day"):
        return midnight + timedelta(days=1)
    return (midnight.replace(day=1) + timedelta(days=32)).replace(day=1) if name == "usd_per_month" else None


# Requests of one user, and those on one conversation, wait for each other, so that only one takes the last place. The
# commit does not wait for the disk: a crash of Postgres loses only a few admissions.
LOCK = f"""
SELECT set_config('synchronous_commit', 'off', true),
  pg_advisory_xact_lock(hashtextextended(%(tenant)s::text || '/' || %(user)s::text, {LockFor.ASKING_USER:d})),
  pg_advisory_xact_lock(hashtextextended(%(tenant)s::text || '/' || %(thread)s::text, {LockFor.ASKED_THREAD:d}))"""

_EMBEDDINGS = (
    "purpose = 'embedding' AND agent = 'openai'"  # embeddings requested by the user; turnlog's own count as tokens
)

_GUARDS = f"""
WITH clock AS MATERIALIZED (SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) AS now),
request_limits AS (
  SELECT d.name, coalesce(l.most, d.most) AS most, d.place
  FROM unnest(%(names)s::text[], %(defaults)s::float8[]) WITH ORDINALITY AS d (name, most, place)
  LEFT JOIN limits l ON (l.tenant, l.thread_id, l.plan, l.name) = (%(tenant)s, %(limits)s, %(plan)s, d.name)),
of_user AS MATERIALIZED (
  SELECT admitted_at, agent, thread_id IS NOT DISTINCT FROM '{HANDED_ON}' AS handed_on,
    admitted_at > (SELECT now FROM clock) - interval '1 minute' AS lately FROM admissions
  WHERE tenant = %(tenant)s AND user_id = %(user)s AND admitted_at > (SELECT now FROM clock) - interval '1 hour'),
uses (name, used, hits, span) AS (
  SELECT 'concurrent', count(*)::float8, NULL::timestamptz[], NULL::interval FROM admissions
  WHERE tenant = %(tenant)s AND user_id = %(user)s AND held_until > (SELECT now FROM clock)
  UNION ALL SELECT 'user_per_minute', count(*), array_agg(admitted_at ORDER BY admitted_at), '1 minute'
  FROM of_user WHERE lately AND NOT handed_on
  UNION ALL SELECT 'user_per_hour', count(*), array_agg(admitted_at ORDER BY admitted_at), '1 hour' FROM of_user
  WHERE NOT handed_on
  UNION ALL SELECT 'conversation_per_minute', count(*), array_agg(admitted_at ORDER BY admitted_at), '1 minute'
  FROM admissions WHERE tenant = %(tenant)s AND thread_id = %(thread)s
  AND admitted_at > (SELECT now FROM clock) - interval '1 minute'
  UNION ALL SELECT 'agent_per_minute', count(*), array_agg(admitted_at ORDER BY admitted_at), '1 minute'
  FROM of_user WHERE lately AND agent = %(agent)s
  UNION ALL SELECT CASE WHEN {_EMBEDDINGS} THEN 'embedding_tokens_per_day' ELSE 'tokens_per_day' END,
    sum(tokens_in + tokens_out), NULL, NULL FROM usage
  WHERE tenant = %(tenant)s AND user_id = %(user)s AND day = (SELECT now::date FROM clock) AND provider <> '{OFFLINE}'
  GROUP BY 1
  UNION ALL SELECT 'usd_per_month', sum(cost_micro_usd) / 1e6, NULL, NULL FROM usage
  WHERE tenant = %(tenant)s AND user_id = %(user)s
  AND day BETWEEN (SELECT date_trunc('month', now)::date FROM clock) AND (SELECT now::date FROM clock)),
guards AS (
  SELECT b.name, b.most, coalesce(u.used, 0) AS used, b.place,
    u.hits[floor(greatest(u.used - b.most, 0))::int + 1] + u.span AS at
  FROM request_limits b LEFT JOIN uses u USING (name))"""
_ROWS = "SELECT name, most, used, at, now FROM guards, clock ORDER BY place"

COUNT = f"{_GUARDS} {_ROWS}"
ADMIT = f"""{_GUARDS},
admitted AS (
  INSERT INTO admissions (id, tenant, user_id, thread_id, agent, admitted_at, held_until)
  SELECT %(id)s, %(tenant)s, %(user)s, %(thread)s, %(agent)s, now, now + make_interval(secs => {HELD_S})
  FROM clock WHERE NOT EXISTS (SELECT FROM guards WHERE used >= most))
{_ROWS}"""
HAND_ON = f"""
INSERT INTO admissions (id, tenant, user_id, thread_id, agent, admitted_at)
VALUES (%(id)s, %(tenant)s, %(user)s, '{HANDED_ON}', %(agent)s, clock_timestamp()) ON CONFLICT DO NOTHING"""
RENEW = f"""
UPDATE admissions SET held_until = coalesce(%(now)s::timestamptz, clock_timestamp()) + make_interval(secs => {HELD_S})
WHERE id = %(id)s AND held_until IS NOT NULL"""
RELEASE = "UPDATE admissions SET held_until = NULL WHERE id = %(id)s"
RESET = "UPDATE admissions SET admitted_at = '-infinity' WHERE tenant = %(tenant)s AND user_id = %(user)s"
EXPIRED = """
DELETE FROM admissions WHERE admitted_at < %(now)s::timestamptz - interval '1 hour'
AND (held_until IS NULL OR held_until < %(now)s)"""
