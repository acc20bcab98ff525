"""TextTasks by prompting a language model."""

import json
import re
from collections.abc import Sequence

from pydantic import BaseModel, RootModel

from turnlog.agent.models import prompts
from turnlog.agent.models.errors import EmptyAnswer
from turnlog.agent.models.protocol import ChatModel, ChatRequest, Completion, Topics, Written

_JSON = re.compile(r"[\[{].*[\]}]", re.DOTALL)
_BULLET = re.compile(r"^[\s\-*•\d.)、]+")
_COUNT_AT_END = re.compile(r"\s*[:：(（]\s*(\d+)\s*[)）]?\s*$")
_MAX_TOPIC = 80  # characters; longer is a sentence, not a topic


class _Topics(RootModel[dict[str, int]]):
    """A topic to its mentions; a model that ignores it is read by parse_topics."""


class LLMTextTasks:
    """Raises what its ChatModel raises. The answer is bounded by max_tokens with room for a last sentence."""

    def __init__(self, chat: ChatModel) -> None:
        self._chat = chat

    async def summarise(
        self, messages: Sequence[str], previous_summary: str, max_tokens: int, language: str | None = None
    ) -> Written:
        data = prompts.data(previous_summary=previous_summary, new_messages=list(messages))
        return await self._written(prompts.SUMMARY, data, max_tokens, language)

    async def compress(self, summary: str, target_tokens: int, language: str | None = None) -> Written:
        return await self._written(prompts.COMPRESS, prompts.data(summary=summary), target_tokens, language)

    async def topics(self, texts: Sequence[str], limit: int) -> Topics:
        system = prompts.TOPICS.format(limit=limit, language=prompts.language_rule(None))
        reply = await self._ask(system, prompts.data(messages=list(texts)), 40 * limit + 100, _Topics)
        found = dict(list(parse_topics(reply.text).items())[:limit])
        return Topics(found, prompts.prompt_hash(prompts.TOPICS), reply.usage)

    async def _written(self, prompt: str, data: str, max_tokens: int, language: str | None) -> Written:
        system = prompt.format(max_tokens=max_tokens, language=prompts.language_rule(language))
        reply = await self._ask(system, data, max_tokens + 100)
        if not reply.text.strip():  # stored, an empty summary would replace the turns' content
            raise EmptyAnswer(f"{reply.model} at {reply.provider} gave an empty summary.", reply.usage)
        return Written(reply.text.strip(), prompts.prompt_hash(prompt), reply.usage)

    async def _ask(
        self, system: str, data: str, max_tokens: int, json_model: type[BaseModel] | None = None
    ) -> Completion:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": data}]
        request = ChatRequest(messages, temperature=0.0, max_tokens=max_tokens, json_model=json_model)
        return await self._chat.complete(request)


def parse_topics(text: str) -> dict[str, int]:
    """Reads {topic: mentions} from a model's text: a JSON object or list (also in a code fence), else lines.

    Small models often miss the format; a topic without a number counts once.
    """
    found = _JSON.search(text)
    try:
        value = json.loads(found.group()) if found else None
    except (ValueError, RecursionError):  # brackets without end
        value = None
    if isinstance(value, dict):
        pairs = [(str(topic), count) for topic, count in value.items()]
    elif isinstance(value, list):
        pairs = [_item(item) for item in value]
    else:
        pairs = [_line(line) for line in text.splitlines()]
    clean = ((topic.strip(" \"'`,*"), count) for topic, count in pairs)
    return {topic: _mentions(count) for topic, count in clean if 0 < len(topic) <= _MAX_TOPIC}


def _item(item: object) -> tuple[str, object]:
    if isinstance(item, dict):
        return str(item.get("topic") or item.get("name") or ""), item.get("mentions") or item.get("count") or 1
    return str(item), 1


def _line(line: str) -> tuple[str, object]:
    if line.strip().startswith("```"):
        return "", 1
    topic = _BULLET.sub("", line)
    count = _COUNT_AT_END.search(topic)
    return (topic[: count.start()], count.group(1)) if count else (topic, 1)


def _mentions(count: object) -> int:
    """At least 1, also for a number in a string or no number at all."""
    found = re.match(r"\d{1,9}", str(count).strip())
    return max(1, int(found.group())) if found else 1
