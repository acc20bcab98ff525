"""Implements ChatModels for teams without a language model: a planner that follows rules, and fixed answers.

The planner's rules choose the agent and up to two tools, and the answer lists their results. It says that it was made
by rules, and the same question always gives the same plan.
"""

import hashlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnlog.agent.context.plain_text import content_text
from turnlog.agent.models.language import is_chinese
from turnlog.agent.models.offline_tasks import PROVIDER
from turnlog.agent.models.protocol import ChatRequest, Completion, Delta
from turnlog.agent.team.router import route
from turnlog.agent.team.teams import DELEGATE_TOOL, Team
from turnlog.events.contracts import ToolCall
from turnlog.projectors.models.terms import terms

MODEL = "offline-planner"
RULES = "rules"  # the model and provider of a fixed answer
MOST_TOOLS = 2
MOST_CHARS = 400  # maximum characters of a result
ASKED = ("query", "question", "words", "message")  # parameters that get the question itself
FIRST = "get_profile"
_SAID = {
    "en": "No language model is configured. By rules, these tools were asked:",
    "zh": "没有配置语言模型。按规则查询了以下工具：",
}
_NOTHING = {
    "en": "No language model is configured, and without one no tool fits this question.",
    "zh": "没有配置语言模型，也没有不需要模型就能回答这个问题的工具。",
}
_EMPTY = {"en": "no result", "zh": "没有结果"}


@dataclass(frozen=True, slots=True)
class OfflinePlanner:
    """A ChatModel that plans by the team's rules, and answers with a list of the tools' results."""

    team: Team

    model = MODEL
    provider = PROVIDER

    async def stream(self, request: ChatRequest) -> AsyncIterator[Delta]:
        final = await self.complete(request)
        if final.text:
            yield Delta(text=final.text)
        yield Delta(final=final)

    async def complete(self, request: ChatRequest) -> Completion:
        question, after = _question(request.messages)
        language = "zh" if is_chinese(question) else "en"
        results = [message for message in after if message.get("role") == "tool"]
        calls = self._calls(question, request.tools) if request.tools and not results else ()
        names = _names(after)
        lines = [
            f"- {names.get(str(message.get('tool_call_id')), '?')}: {_in_words(message) or _EMPTY[language]}"
            for message in results
        ]
        text = "" if calls else "\n".join([_SAID[language], *lines]) if lines else _NOTHING[language]
        return Completion(text, calls, 0, 0, 0.0, MODEL, PROVIDER, 0.0, finish_reason="tool_calls" if calls else "stop")

    def _calls(self, question: str, tools: Sequence[Mapping[str, Any]]) -> tuple[ToolCall, ...]:
        """Returns a delegation if another agent's rule fits best, else calls of tools that need only the question."""
        functions = {tool["function"]["name"]: tool["function"] for tool in tools}
        if DELEGATE_TOOL in functions:
            allowed = functions[DELEGATE_TOOL]["parameters"]["properties"]["agent_type"].get("enum", ())
            best = route(question, self.team.rules).agent
            if best in allowed:
                return (_call(DELEGATE_TOOL, {"agent_type": best, "task_description": question}),)
        asked = set(terms(question))
        fitting = [
            (name != FIRST, -len(asked & set(terms(f"{name.replace('_', ' ')} {function['description']}"))), name)
            for name, function in functions.items()
            if name != DELEGATE_TOOL and set(function["parameters"].get("required", ())) <= set(ASKED)
        ]
        chosen = [name for _, shared, name in sorted(fitting) if shared < 0 or name == FIRST][:MOST_TOOLS]
        return tuple(
            _call(name, dict.fromkeys(functions[name]["parameters"].get("required", ()), question)) for name in chosen
        )


@dataclass(frozen=True, slots=True)
class FixedAnswer:
    """A ChatModel that always gives the answer of a rule."""

    answer: str

    model = provider = RULES

    async def stream(self, request: ChatRequest) -> AsyncIterator[Delta]:
        yield Delta(text=self.answer)
        yield Delta(final=await self.complete(request))

    async def complete(self, request: ChatRequest) -> Completion:
        return Completion(self.answer, (), 0, 0, 0.0, RULES, RULES, 0.0, finish_reason="stop")


def _names(messages: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the names of tools by the ids of their calls."""
    return {call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls") or ()}


def _in_words(message: Mapping[str, Any]) -> str:
    """Returns a tool's result as text for people: its values by name, as many as fit."""
    content = str(message.get("content"))
    try:
        return "; ".join(_values(json.loads(content)))[:MOST_CHARS]
    except ValueError:
        return content[:MOST_CHARS]


def _values(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _values(part, key.replace("_", " "))
    elif isinstance(value, list) and any(isinstance(part, dict | list) for part in value):
        for part in value:
            yield from _values(part, name)
    elif value not in (None, "", []):
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        yield f"{name} {text}".strip()


def _question(messages: Sequence[Mapping[str, Any]]) -> tuple[str, Sequence[Mapping[str, Any]]]:
    """Returns the text of the last user message, and the messages after it."""
    at = next((at for at in reversed(range(len(messages))) if messages[at].get("role") == "user"), None)
    return ("", ()) if at is None else (content_text(messages[at].get("content") or ""), messages[at + 1 :])


def _call(name: str, arguments: Mapping[str, Any]) -> ToolCall:
    written = json.dumps(arguments, ensure_ascii=False)
    digest = hashlib.sha256(f"{name}\n{written}".encode()).hexdigest()[:16]
    return ToolCall(id=f"call_{digest}", name=name, arguments=written)
