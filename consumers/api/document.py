"""Completes the OpenAPI document that FastAPI makes from the routes."""

import re
from typing import Any

from fastapi.routing import APIRoute

from turnlog.consumers.api import problems
from turnlog.consumers.api.idempotency import WITHOUT_KEY

TITLES: dict[str, Any] = {
    "title": "turnlog",
    "version": "1",
    "summary": "Event-sourced memory for chat agents",
    "description": "Conversations, memories and answers of chat agents, kept as events. Errors are problem details "
    "(RFC 9457), under /v1 those of OpenAI.",
    "contact": {"name": "turnlog"},
    "license_info": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
    "servers": [{"url": "/", "description": "The server that serves this document."}],
}
TAGS = {
    "threads": "Conversations of the caller.",
    "turns": "The messages of a conversation, and what a model sees of them.",
    "answers": "Answers of the server's agent, whole or as a stream.",
    "runs": "The steps of agents at an answer.",
    "memories": "What is known about the caller, with its sources.",
    "recall": "Search in conversations and memories.",
    "person": "Entities and preferences of the caller.",
    "sessions": "Short-term memory of a conversation: its mode, summary, slots and checkpoints.",
    "session memory": "Short-term memory with camelCase requests and results.",
    "limits": "How much users may ask for, and what is left.",
    "timeline": "Events of conversations as they arrive.",
    "personal data": "Export, erasure and import of a person's data.",
    "jobs": "Work that continues after its request.",
    "operations": "Functions for operators.",
    "access": "Signing in, and API keys.",
    "health": "Health of the server.",
    "chat stream": "Questions to the agent, with the result of each step.",
    "ai-agent": "Questions, conversations and memories with camelCase names.",
    "ai-agent administration": "Limits, agents, traces and circuit breakers, for operators.",
    "openai": "OpenAI's API with memory.",
}
PUBLIC = ("/health/", "/.well-known/")


_NAMES = re.compile(r"\{(\w+)\}")
_CREATED = ("201", "202")


def operation_id(route: APIRoute) -> str:
    """Returns the name of the route's function; for a dialect's route, with the first part of its path."""
    first = route.path_format.split("/")[1]
    name = route.name if first in ("api", "health", ".well-known") else f"{first}_{route.name}"
    return name.replace("-", "_")


def documented(document: dict[str, Any]) -> dict[str, Any]:
    """Completes the document in place, so that it is valid OpenAPI 3.1 and other projects' generators accept it.

    Problems get their media type, and objects created by POST get links. The parameter Idempotency-Key is removed from
    operations on which it has no effect.
    """
    document["tags"] = [{"name": name, "description": text} for name, text in TAGS.items()]
    document["security"] = [{name: []} for name in document["components"]["securitySchemes"]]
    _complete_schemas(document)
    for path, by_method in document["paths"].items():
        for method, operation in by_method.items():
            if path.startswith(PUBLIC):
                operation["security"] = []
            if method == "get" or path in WITHOUT_KEY:
                _leave_out(operation, "idempotency-key")
            for status, response in operation["responses"].items():
                _name_problems(response)
                if method == "post" and status in _CREATED and (links := _links(document, path, response)):
                    response["links"] = links
    return document


def _complete_schemas(part: Any) -> None:
    """Gives every array its `items`, and describes the events of streams, because `itemSchema` exists only from OpenAPI
    3.2 on.
    """
    if isinstance(part, list):
        for member in part:
            _complete_schemas(member)
    elif isinstance(part, dict):
        if "itemSchema" in part:
            part["schema"] = part.pop("itemSchema")
        if part.get("type") == "array":
            part.setdefault("items", {})
        for member in part.values():
            _complete_schemas(member)


def _leave_out(operation: dict[str, Any], header: str) -> None:
    kept = [named for named in operation.pop("parameters", []) if named["name"].lower() != header]
    if kept:
        operation["parameters"] = kept


def _name_problems(response: dict[str, Any]) -> None:
    for content in list(response.get("content", {}).values()):
        if content.get("schema", {}).get("$ref", "").endswith("/Problem"):
            response["content"] = {problems.MEDIA_TYPE: content}


def _links(document: dict[str, Any], path: str, response: dict[str, Any]) -> dict[str, Any]:
    """Returns links to all operations on the object that a POST creates, by operation id (OpenAPI 3.1, Link Object)."""
    schema = response["content"]["application/json"]["schema"].get("$ref", "").rpartition("/")[2]
    fields = document["components"]["schemas"].get(schema, {}).get("properties", {})
    links: dict[str, Any] = {}
    for target, by_method in document["paths"].items():
        known, new = _NAMES.findall(path), _NAMES.findall(target.removeprefix(path))
        if not target.startswith(path + "/{") or len(new) != 1:
            continue
        field = next((name for name in (new[0], f"{new[0]}_id", "id") if name in fields), None)
        if field is not None:
            parameters = {name: f"$request.path.{name}" for name in known} | {new[0]: f"$response.body#/{field}"}
            for id_ in (operation["operationId"] for operation in by_method.values()):
                links[id_] = {"operationId": id_, "parameters": parameters}
    return links
