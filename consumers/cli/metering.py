"""The command `usage`: calls, tokens and cost of models."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import typer

from turnlog.agent.operations import usage as usages
from turnlog.consumers.cli.console import Result, spent_text
from turnlog.consumers.cli.options import commands
from turnlog.consumers.cli.runner import Runtime, command
from turnlog.consumers.cli.text_tables import table

Key = Literal["user", "agent", "model", "day", "month"]


app = commands()


@command(app, projecting=False)
async def usage(
    rt: Runtime,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only this user's.")] = None,
    by: Annotated[Key, typer.Option(help="What to sum by: user, agent, model, day or month.")] = "day",
) -> Result:
    """Show calls, tokens, cost and mean latency of models, including embeddings and offline models, by user, agent,
    model, day or month (UTC)."""
    rows = await usages.usage(rt, rt.settings.tenant, user, by)
    return usage_table(rows, by)


_USAGE_COLUMNS: dict[str, Callable[["usages.Usage"], Any]] = {
    "CALLS": lambda row: row.calls,
    "TOKENS IN": lambda row: row.tokens_in,
    "TOKENS OUT": lambda row: row.tokens_out,
    "COST": lambda row: spent_text(row.cost_usd, row.unpriced_tokens == 0),
    "ERRORS": lambda row: row.errors or None,
    "MEAN TIME": lambda row: f"{row.latency_ms_mean:,} ms",
}


def usage_table(rows: "Sequence[usages.Usage]", by: str) -> Result:
    columns = {by.upper(): lambda row: row.key or "-"} | _USAGE_COLUMNS
    return table(rows, columns, "no language model was used yet")
