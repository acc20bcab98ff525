"""Translates LangGraph's search filters to SQL over an item's value.

A condition is a value (equality), operators ({"$gt": 3}), or an object whose fields are conditions. Values of different
JSON types are never less or greater; numbers are compared as numbers, strings as strings. A missing field is null.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from turnlog.events.errors import TurnlogError

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def storable_json(value: Any) -> str:
    """Returns the value as JSON text. Raises ValueError, which tells why the value is not JSON or cannot be stored."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it contains a lone surrogate; send valid Unicode") from None
    except RecursionError:
        raise ValueError("it is nested too deeply, or contains itself") from None
    except (TypeError, ValueError) as error:
        raise ValueError(str(error)) from None
    if _NUL.search(text):
        raise ValueError("it contains a NUL character, which Postgres cannot store; remove it")
    return text


Clause = tuple[str, list[Any]]
EVERYTHING: Clause = ("true", [])
_ORDERED = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
OPERATORS = ("$eq", "$ne", *_ORDERED)


class InvalidFilter(TurnlogError, ValueError):
    """A search of the store has an invalid filter, limit or offset."""

    code = "invalid-filter"


def filter_sql(conditions: Mapping[str, Any]) -> Clause:
    """Returns a boolean expression over the column `value`, and its positional parameters. Raises InvalidFilter."""
    return _fields("value", [], conditions)


def _fields(parent: str, path: list[Any], conditions: Mapping[str, Any]) -> Clause:
    """Returns a condition on the fields of an object. parent: SQL of the object. path: the parameters in that SQL."""
    texts: list[str] = ["true"]
    params: list[Any] = []
    for name, wanted in conditions.items():
        _json(name)
        text, values = _condition(f"({parent} -> %s::text)", [*path, str(name)], wanted)
        texts.append(text)
        params += values
    return " AND ".join(texts), params


def _condition(field: str, path: list[Any], wanted: Any) -> Clause:
    if not isinstance(wanted, Mapping):
        return _compare(field, path, "$eq", wanted)
    if any(str(name).startswith("$") for name in wanted):
        return _joined([_compare(field, path, str(name), value) for name, value in wanted.items()])
    is_object: Clause = (f"coalesce(jsonb_typeof({field}), '') = 'object'", path)
    return _joined([is_object, _fields(field, path, wanted)])


def _compare(field: str, path: list[Any], operator: str, value: Any) -> Clause:
    there, wanted = f"coalesce({field}, 'null'::jsonb)", _json(value)
    if operator == "$eq":
        return f"{there} = %s::jsonb", [*path, wanted]
    if operator == "$ne":
        return f"{there} <> %s::jsonb", [*path, wanted]
    if operator not in _ORDERED:
        raise InvalidFilter(f"Unsupported operator: {operator}. Use one of {', '.join(OPERATORS)}")
    text = f"(jsonb_typeof({there}) = jsonb_typeof(%s::jsonb) AND {there} {_ORDERED[operator]} %s::jsonb)"
    return text, [*path, wanted, *path, wanted]


def _joined(clauses: Sequence[Clause]) -> Clause:
    return " AND ".join(text for text, _ in clauses), [param for _, params in clauses for param in params]


def _json(value: Any) -> str:
    try:
        return storable_json(value)
    except ValueError as error:
        raise InvalidFilter(f"the filter's value {str(value)[:80]!r} cannot be compared: {error}") from None
