"""Prepares JSON schemas of tools of other servers: resolves their references, and checks a model's arguments."""

from collections.abc import Callable, Mapping
from typing import Any

from turnlog.agent.team.tool_registry import MOST_MISTAKES
from turnlog.agent.team.tools import InvalidTool, Mistake

DROPPED = frozenset({"$schema", "$defs", "definitions", "example", "examples", "xml", "discriminator", "externalDocs"})


def whole(schema: Any, document: Any) -> Any:
    """Returns the schema with references replaced by the parts they refer to, because some model servers cannot read
    references.

    document: the document to which references such as `#/$defs/Item` refer. Where a part contains itself, the inner
    copy becomes {}, which allows any value. Keywords of OpenAPI 3.0 become those of JSON Schema. Raises InvalidTool for
    a reference to a missing part.
    """
    return _whole(schema, document, ())


def checker(name: str, schema: Mapping[str, Any]) -> Callable[[Any], Mapping[str, Any]]:
    """Returns a function that returns arguments if they fit the schema, and raises Mistake otherwise. Raises
    InvalidTool."""
    from jsonschema import Draft202012Validator, SchemaError  # type: ignore[import-untyped]  # slow to load

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise InvalidTool(f"{name}: its parameters are not a JSON schema: {error.message[:200]}") from None
    validator = Draft202012Validator(schema)

    def check(arguments: Any) -> Mapping[str, Any]:
        if not isinstance(arguments, Mapping):
            raise Mistake("the arguments do not fit: they should be an object")
        problems = sorted(validator.iter_errors(arguments), key=lambda problem: [str(part) for part in problem.path])
        if problems:
            said = (_said(problem.path, problem.message) for problem in problems[:MOST_MISTAKES])
            raise Mistake(f"the arguments do not fit: {'; '.join(said)}")
        return arguments

    return check


def _said(path: Any, message: str) -> str:
    where = ".".join(map(str, path))
    return f"{where}: {message[:200]}" if where else message[:200]


def _whole(schema: Any, document: Any, inside: tuple[str, ...]) -> Any:
    if isinstance(schema, list):
        return [_whole(part, document, inside) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference in inside:
            return {}
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        part = referenced(reference, document)
        return _whole({**part, **rest} if isinstance(part, Mapping) else part, document, (*inside, reference))
    made = {
        key: {name: _whole(part, document, inside) for name, part in value.items()}
        if key == "properties" and isinstance(value, Mapping)
        else _whole(value, document, inside)
        for key, value in schema.items()
        if key not in DROPPED
    }
    return _modern(made)


def referenced(reference: str, document: Any) -> Any:
    """Returns the part of a document that a reference within it names. Raises InvalidTool."""
    part = document
    for name in reference.removeprefix("#").strip("/").split("/"):
        name = name.replace("~1", "/").replace("~0", "~")
        if not reference.startswith("#") or not isinstance(part, Mapping) or name not in part:
            raise InvalidTool(f"the reference {reference[:200]!r} leads to nothing in the document")
        part = part[name]
    return part


def _modern(schema: dict[str, Any]) -> dict[str, Any]:
    """Rewrites `nullable` and exclusive bounds, which OpenAPI 3.0 writes in ways that JSON Schema does not have."""
    if schema.pop("nullable", False) and isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    for name, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(name), bool) and schema.pop(name) and bound in schema:
            schema[name] = schema.pop(bound)
    return schema
