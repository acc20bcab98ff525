"""Describes a typed function for a model: the schema of its parameters, and the descriptions from its docstring.

Styles of docstrings: Google (`Args:`), NumPy (`Parameters` underlined with hyphens) and Sphinx (`:param name: …`).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

_PARAMETERS = re.compile(r"(?:Args|Arguments|Parameters):?[ \t]*")
_GOOGLE = re.compile(r"(\w+)(?:[ \t]*\([^)]*\))?:[ \t]*(.*)")
_NUMPY = re.compile(r"(\w+)[ \t]*(?::.*)?")
_SPHINX = re.compile(r":param(?:[ \t]+[^:\s]+)*?[ \t]+(\w+):[ \t]*(.*)")


def read_docstring(docstring: str) -> tuple[str, dict[str, str]]:
    """Returns the description of the function on one line, and the descriptions of its parameters by name."""
    text, described = list[str](), dict[str, list[str]]()
    lines, at = docstring.splitlines(), 0
    while at < len(lines):
        line, is_numpy = lines[at], _is_underlined(lines, at)
        if match := _SPHINX.fullmatch(line):
            described[match[1]] = [match[2]]
            at = _indented(lines, at + 1, described[match[1]])
        elif _PARAMETERS.fullmatch(line) and (is_numpy or line.rstrip().endswith(":")):
            at = _section(lines, at + (2 if is_numpy else 1), is_numpy, described)
        else:
            text.append(line)
            at += 1
    return _flat(text), {name: _flat(said) for name, said in described.items()}


def _section(lines: Sequence[str], at: int, is_numpy: bool, described: dict[str, list[str]]) -> int:
    """Reads the parameters of a section; returns the index of the line after it."""
    while at < len(lines):
        line = lines[at]
        if _is_underlined(lines, at) if is_numpy else line.strip() and not line[0].isspace():
            break
        match = (_NUMPY if is_numpy else _GOOGLE).fullmatch(line.strip())
        at += 1
        if match:
            described[match[1]] = said = [] if is_numpy else [match[2]]
            at = _indented(lines, at, said, _indent(line))
    return at


def _indented(lines: Sequence[str], at: int, said: list[str], than: int = 0) -> int:
    """Appends lines to `said` while they are indented by more than `than`; returns the index of the next line."""
    while at < len(lines) and lines[at].strip() and _indent(lines[at]) > than:
        said.append(lines[at])
        at += 1
    return at


def _is_underlined(lines: Sequence[str], at: int) -> bool:
    return at + 1 < len(lines) and lines[at + 1].startswith("---")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _flat(lines: Sequence[str]) -> str:
    return " ".join(" ".join(lines).split())


def parameters_schema(parameters: type[BaseModel]) -> dict[str, Any]:
    """Returns the JSON schema of a model of parameters, without references. Raises RecursionError for a type that
    contains itself."""
    document = parameters.model_json_schema()
    parts = document.pop("$defs", {})
    return {"properties": {}, **_slim(_with_parts(document, parts))}


def _with_parts(schema: Any, parts: Mapping[str, Any]) -> Any:
    """Returns the schema with references replaced by the parts they refer to, because some servers cannot read
    references.
    """
    if isinstance(schema, list):
        return [_with_parts(part, parts) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _with_parts({**parts[schema["$ref"].removeprefix("#/$defs/")], **rest}, parts)
    return {key: _with_parts(value, parts) for key, value in schema.items()}


def _slim(schema: Any) -> Any:
    """Returns the schema without titles, and with the plain type for optional parameters."""
    if isinstance(schema, list):
        return [_slim(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "anyOf" in schema and len(others := [kind for kind in schema["anyOf"] if kind != {"type": "null"}]) == 1:
        rest = {key: value for key, value in schema.items() if key not in ("anyOf", "default", "title")}
        return _slim({**others[0], **rest})
    slim = {key: _slim(value) for key, value in schema.items() if key not in ("title", "properties")}
    if "properties" in schema:  # a parameter itself may be called title
        slim["properties"] = {name: _slim(value) for name, value in schema["properties"].items()}
    return slim
