"""Conversations that branch where a person edited a message or asked again: the branch that was shown last."""

from collections.abc import Mapping
from typing import Any

OTHER_BRANCH = "on a branch that was not shown last"


def path_to(leaf: Any, messages: Mapping[str, dict[str, Any]], parent: str) -> list[dict[str, Any]]:
    """Returns the messages from the root to `leaf`. `parent`: the field that names the message before.

    Parents that form a loop end the path.
    """
    path: dict[str, dict[str, Any]] = {}
    while isinstance(leaf, str) and leaf in messages and leaf not in path:
        path[leaf] = messages[leaf]
        leaf = messages[leaf].get(parent)
    return list(reversed(path.values()))
