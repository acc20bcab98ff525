"""Checks strictly whether a list of messages is valid for the OpenAI chat API."""

import json
import re
from collections.abc import Sequence
from typing import Any

from turnlog.agent.context.wire import Wire

_KEYS = {
    "system": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "tool_calls"},
    "tool": {"role", "content", "tool_call_id"},
}
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def validate_openai_messages(messages: Sequence[Wire]) -> list[str]:
    """Returns the defects of the messages, one line each; [] if the API accepts them."""
    problems: list[str] = []
    waiting: list[str] = []
    for index, message in enumerate(messages):
        role = message.get("role")
        if role not in _KEYS:
            problems.append(f"message {index}: unknown role {role!r}")
            continue
        problems += [f"message {index}: {problem}" for problem in _message_problems(message, role)]
        if role == "tool":
            call_id = message.get("tool_call_id")
            if call_id in waiting:
                waiting.remove(call_id)
            else:
                problems.append(f"message {index}: result {call_id!r} does not follow its call")
            continue
        if waiting:
            problems.append(f"message {index}: calls {waiting} are not answered before it")
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
    return [*problems, f"calls {waiting} are not answered at the end"] if waiting else problems


def _message_problems(message: Wire, role: str) -> list[str]:
    problems = [f"unknown key {key!r}" for key in message.keys() - _KEYS[role]]
    problems += _content_problems(message.get("content"), role, bool(message.get("tool_calls")))
    name = message.get("name")
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        problems.append(f"name {name!r} is not allowed")
    if "tool_calls" in message:
        problems += _call_problems(message["tool_calls"])
    return problems


def _content_problems(content: Any, role: str, has_calls: bool) -> list[str]:
    if isinstance(content, str):
        return []
    if content is None:
        return [] if role == "assistant" and has_calls else ["content is missing"]
    if not isinstance(content, list) or not content:
        return ["content is neither a text nor a list of parts"]
    return [f"part {part!r} is not allowed for {role}" for part in content if not _part_is_valid(part, role)]


def _part_is_valid(part: Any, role: str) -> bool:
    if not isinstance(part, dict):
        return False
    if part.get("type") == "text":
        return part.keys() == {"type", "text"} and isinstance(part["text"], str)
    if part.get("type") == "image_url" and role == "user":
        image = part.get("image_url")
        return isinstance(image, dict) and isinstance(image.get("url"), str)
    return False


def _call_problems(calls: Any) -> list[str]:
    if not isinstance(calls, list) or not calls:
        return ["tool_calls is no list of calls"]
    ids = [call.get("id") for call in calls]
    problems = [f"call {call!r} is not valid" for call in calls if not _call_is_valid(call)]
    return [*problems, "two calls have the same id"] if len(set(ids)) < len(ids) else problems


def _call_is_valid(call: Any) -> bool:
    function = call.get("function", {})
    try:
        text = json.dumps(call)
    except TypeError:
        return False
    return (
        bool(text)
        and call.keys() == {"id", "type", "function"}
        and call["type"] == "function"
        and isinstance(call["id"], str)
        and 0 < len(call["id"]) <= 40
        and function.keys() == {"name", "arguments"}
        and _NAME.fullmatch(str(function["name"])) is not None
        and isinstance(function["arguments"], str)
    )
