"""Recognises requests that a chat program makes for itself, such as a request for a title. They contain no person's
words."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from turnlog.agent.conversations.transcript_matching import SYSTEM, Wire

# A version of Open WebUI that does not know the placeholder {{TASK}} sends it unchanged.
_PLACEHOLDER = "{{"


@dataclass(frozen=True, slots=True)
class TaskPrompt:
    """A prompt of a client; client_tasks.toml describes the fields."""

    client: str
    of: Literal["system", "message", "last"]
    begins: str
    has: Sequence[str]

    def matches(self, text: str) -> bool:
        """Returns whether a text is this prompt. In the text, all white space must be single spaces."""
        if not text.startswith(self.begins):
            return False
        end = len(self.begins)
        for part in self.has:
            at = text.find(part, end)
            if at < 0:
                return False
            end = at + len(part)
        return True


@cache
def task_prompts() -> Sequence[TaskPrompt]:
    """Returns the prompts of client_tasks.toml."""
    text = (files("turnlog.agent.answering") / "client_tasks.toml").read_text("utf-8")
    return [TaskPrompt(**prompt) for prompt in tomllib.loads(text)["prompt"]]


def is_client_task(messages: Sequence[Wire], task_header: str | None = None) -> bool:
    """Returns whether a chat program made the request for itself, judged by its header or by a prompt that only such a
    program writes.

    Words of a person that resemble a prompt do not count: a prompt must be complete, and at the beginning of the
    message where the program puts it. task_header: X-OpenWebUI-Task, which is empty for a chat.
    """
    if task_header and not task_header.startswith(_PLACEHOLDER):
        return True
    said = [message for message in messages if message.get("role") not in SYSTEM]
    texts = {"system": _text(messages[0].get("content")) if messages[0].get("role") in SYSTEM else ""}
    texts["last"] = _last_block(said[-1]) if said else ""
    texts["message"] = texts["last"] if len(said) == 1 else ""
    return any(prompt.matches(texts[prompt.of]) for prompt in task_prompts())


def ends_with_a_prompt(message: Wire) -> bool:
    """Returns whether a message ends with a chat program's prompt, such as its request for a summary."""
    return any(prompt.of == "last" and prompt.matches(_last_block(message)) for prompt in task_prompts())


def _last_block(message: Wire) -> str:
    """Returns the text of the last block of a user's message; "" for any other message."""
    content = message.get("content") if message.get("role") == "user" else ""
    return _text(content[-1:] if isinstance(content, list) else content)


def _text(content: Any) -> str:
    """Returns the text of a message's content as a client sent it, with single spaces."""
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return " ".join(" ".join(text for text in texts if isinstance(text, str)).split())
