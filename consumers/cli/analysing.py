"""The commands `sql` and `activity`: a tenant's rows and counts for analysts."""

import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic_core import to_jsonable_python

from turnlog.agent.operations import activity as activities
from turnlog.agent.operations import analysis
from turnlog.consumers.cli.console import Result, minute, warn
from turnlog.consumers.cli.options import commands
from turnlog.consumers.cli.runner import Runtime, command
from turnlog.consumers.cli.text_tables import Table

if TYPE_CHECKING:
    from turnlog.agent.operations.activity import HourOfType

WIDEST = 60

app = commands()


@command(app)
async def sql(
    rt: Runtime,
    query: Annotated[str | None, typer.Argument(help="One statement; without it, the views and their columns.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of rows.")] = 1_000,
    csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values, without shortening them.")] = False,
) -> Result:
    """Read the tenant's rows with SQL: the views turns, memories, usage and runs. Nothing can be changed."""
    if query is None:
        views = await analysis.views(rt, rt.settings.tenant)
        lines = Table(["VIEW", "COLUMNS"], [[name, ", ".join(columns)] for name, columns in views.items()])
        return Result(views, lines)
    result = await analysis.query(rt, rt.settings.tenant, query, limit)
    if result.hides:
        warn(f"row security hides the rows of other tenants; these are of {rt.settings.tenant!r} (--tenant)")
    if result.more:
        warn(f"there are more than {limit:,} rows (--limit)")
    rows = [dict(zip(result.columns, to_jsonable_python(row), strict=True)) for row in result.rows]
    return Result(rows, result.csv().rstrip("\n").split("\n") if csv else _table(result.columns, result.rows))


@command(app)
async def activity(
    rt: Runtime,
    hours: Annotated[int, typer.Option(min=1, max=8_784, help="How many hours back.")] = 24,
) -> Result:
    """Events, turns, tokens and errors of each hour (UTC), as the role `analytics` counts them from the log."""
    rows = await activities.activity(rt, rt.settings.tenant, hours)
    return Result(rows, _hours(rows) if rows else "no events were counted; `turnlog up` counts them while it runs")


def _hours(counts: "Sequence[HourOfType]") -> Table:
    by_hour = defaultdict[datetime, list["HourOfType"]](list)
    for each in counts:
        by_hour[each.hour].append(each)
    rows = []
    for hour, types in by_hour.items():
        asked, answered = (sum(kind.events for kind in types if kind.role == role) for role in ("user", "assistant"))
        names = ("events", "tokens_in", "tokens_out", "errors")
        events, *rest = (sum(getattr(kind, name) for kind in types) for name in names)
        rows.append([minute(hour), *(f"{count:,}" for count in (events, asked, answered, *rest))])
    return Table(["HOUR", "EVENTS", "ASKED", "ANSWERED", "TOKENS IN", "TOKENS OUT", "ERRORS"], rows)


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table | str:
    """Returns a table of all columns, including those without a value."""
    if not rows:
        return f"no rows of {', '.join(columns)}"
    return Table(columns, [[_cell(value) for value in row] for row in rows], whole=True)


def _cell(value: Any) -> str:
    """Returns a value as one line of WIDEST characters at most."""
    if isinstance(value, Decimal):
        value = f"{value.normalize():f}"
    if isinstance(value, datetime):
        value = value.isoformat(" ", "seconds").removesuffix("+00:00")
    text = (
        json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else "" if value is None else str(value)
    )
    text = " ".join(text.split())
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"
