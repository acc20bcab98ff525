"""Array values as Postgres reads them: the writer sends them as text and casts."""

from collections.abc import Iterable
from uuid import UUID


def array_literal(values: Iterable[str | int | UUID | None]) -> str:
    return "{" + ",".join("NULL" if v is None else _quoted(str(v)) for v in values) + "}"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
