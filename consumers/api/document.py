"""The OpenAPI document: what FastAPI writes, with what it cannot know of our routes."""

import re
from typing import Any

from turnlog.consumers.api.idempotency import READ_ONLY
from turnlog.consumers.api.problems import MEDIA_TYPE

_NAMES = re.compile(r"\{(\w+)\}")
_CREATED = ("201", "202")


def documented(document: dict[str, Any]) -> dict[str, Any]:
    """Changes it in place: problems have their media type, what a POST made has links, and Idempotency-Key, which every
    route can read, is named where it has a meaning."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if method == "get" or path in READ_ONLY:
                _leave_out(operation, "idempotency-key")
            for status, response in operation["responses"].items():
                _name_problems(response)
                if method == "post" and status in _CREATED and (links := _links(document, path, response)):
                    response["links"] = links
    return document


def _leave_out(operation: dict[str, Any], header: str) -> None:
    kept = [named for named in operation.pop("parameters", []) if named["name"].lower() != header]
    if kept:
        operation["parameters"] = kept


def _name_problems(response: dict[str, Any]) -> None:
    for content in list(response.get("content", {}).values()):
        if content.get("schema", {}).get("$ref", "").endswith("/Problem"):
            response["content"] = {MEDIA_TYPE: content}


def _links(document: dict[str, Any], path: str, response: dict[str, Any]) -> dict[str, Any]:
    """From what a POST made to every operation on it, by operation id (OpenAPI 3.1, Link Object)."""
    schema = response["content"]["application/json"]["schema"].get("$ref", "").rpartition("/")[2]
    fields = document["components"]["schemas"].get(schema, {}).get("properties", {})
    links: dict[str, Any] = {}
    for target, operations in document["paths"].items():
        known, new = _NAMES.findall(path), _NAMES.findall(target.removeprefix(path))
        if not target.startswith(path + "/{") or len(new) != 1:
            continue
        field = next((name for name in (new[0], f"{new[0]}_id", "id") if name in fields), None)
        if field is not None:
            parameters = {name: f"$request.path.{name}" for name in known} | {new[0]: f"$response.body#/{field}"}
            for id_ in (operation["operationId"] for operation in operations.values()):
                links[id_] = {"operationId": id_, "parameters": parameters}
    return links
