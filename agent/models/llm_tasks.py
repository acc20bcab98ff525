"""Implements TextTasks with a language model. A summary is checked before it is stored, because it is part of every
later context.

A text is refused if it was cut off at the token limit, echoes the prompt, repeats itself, or consists mostly of words,
numbers and names that are not in its source. The model is asked twice; then an offline extract is stored instead.
"""

import json
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from pydantic import BaseModel, RootModel

from turnlog.agent.models import prompts
from turnlog.agent.models.errors import EmptyAnswer
from turnlog.agent.models.protocol import CUT_OFF, ChatModel, ChatRequest, Completion, TextTasks, Topics, Usage, Written
from turnlog.projectors.models.terms import terms

logger = logging.getLogger("turnlog.agent")
_JSON = re.compile(r"[\[{].*[\]}]", re.DOTALL)
_BULLET = re.compile(r"^[\s\-*•\d.)、]+")
_COUNT_AT_END = re.compile(r"\s*[:：(（]\s*(\d+)\s*[)）]?\s*$")
_MAX_TOPIC = 80  # characters; longer is a sentence, not a topic
_TEMPERATURES = (0.0, 0.5)  # for the first and second try; at 0 a repeated request returns the same text
_MARKERS = ("<data>", "</data>", '"previous_summary"', '"new_messages"')  # parts of a prompt that prompts.data adds
_WORD = re.compile(r"[\u3400-\u9fff]|[^\W_\u3400-\u9fff]+")
_SEQUENCE = 6  # words or Chinese characters
# The highest repeated_share of a good text. Of about 2,600 real texts in English and Chinese, 99 % have at most 0.35,
# and only assistant answers that repeat a whole draft of an essay or a file have more than 0.5; a sentence said three
# times has 0.67.
_MOST_REPEATED = 0.5

# The highest weighted share of terms that are not in the source. Ten freely worded summaries that people wrote in
# English and Chinese have 0.17 to 0.71, and an extract 0; inventions of small models have 0.87 or more, a summary of
# another conversation mostly 0.9.
_MOST_INVENTED = 0.75
_FEWEST_TERMS = 4  # a shorter text has too few terms to be compared
_HEAVY = 3  # weight of a name or a number; other terms have weight 1
_NAME = re.compile(r"(?<=[\w,;’'] )[A-Z][^\W\d_]+")  # a word with a capital in the middle of a sentence
_ABOUT_TALK = frozenset(
    terms(
        "user users assistant person someone conversation chat discuss discussed talk topic ask question answer reply"
        " mention say said tell told express share note suggest recommend advise advice want plan prefer like feel"
        " think believe consider currently recently include including new previous summary message provide offer help"
        " need try hope"
        " 用户 助手 对话 聊天 讨论 提到 询问 回答 表示 建议 推荐 认为 觉得 希望 想要 计划 喜欢"
        " 目前 最近 以及 包括 分享 感到"
    )
)


class _Topics(RootModel[dict[str, int]]):
    """Maps each topic to the number of messages that mention it."""


class LLMTextTasks:
    """Implements TextTasks with a language model. Raises EmptyAnswer and the errors of the ChatModel.

    A text may exceed max_tokens by 100 tokens, so that the model can finish its last sentence.
    """

    def __init__(self, chat: ChatModel, extractive: TextTasks) -> None:
        """Uses `extractive` to write a text after two texts of the model were refused."""
        self._chat, self._extractive = chat, extractive

    async def summarise(
        self, messages: Sequence[str], previous_summary: str, max_tokens: int, language: str | None = None
    ) -> Written:
        data = prompts.data(previous_summary=previous_summary, new_messages=list(messages))
        source = "\n".join(filter(None, [previous_summary, *messages]))
        request = _Request(prompts.SUMMARY, data, max_tokens, language, source)
        return await self._written(
            request, lambda: self._extractive.summarise(messages, previous_summary, max_tokens, language)
        )

    async def compress(self, summary: str, target_tokens: int, language: str | None = None) -> Written:
        request = _Request(prompts.COMPRESS, prompts.data(summary=summary), target_tokens, language, summary)
        return await self._written(request, lambda: self._extractive.compress(summary, target_tokens, language))

    async def topics(self, texts: Sequence[str], limit: int) -> Topics:
        system = prompts.TOPICS.format(limit=limit, language=prompts.language_rule(None))
        reply = await self._ask(system, prompts.data(messages=list(texts)), 40 * limit + 100, json_model=_Topics)
        topics = dict(list(parse_topics(reply.text).items())[:limit])
        return Topics(topics, prompts.prompt_hash(prompts.TOPICS), reply.usage)

    async def _written(self, request: "_Request", extract: Callable[[], Awaitable[Written]]) -> Written:
        asked: list[Completion] = []
        problem = None
        for temperature in _TEMPERATURES:
            reply = await self._ask(request.system, request.data, request.max_tokens + 100, temperature)
            asked.append(reply)
            text = _checked_not_empty(reply.text, asked)
            problem = text_problem(text, request.source, reply.finish_reason, request.language)
            if problem is None:
                return Written(text, prompts.prompt_hash(request.prompt), _usage(asked))
        logger.warning(
            "%s wrote no usable summary in two attempts (%s); an extract is stored instead", asked[-1].model, problem
        )
        made = await extract()
        # The extract is empty if no turn makes a statement. max_tokens characters are at most about max_tokens tokens.
        text = made.text or request.source[: request.max_tokens]
        return Written(text, made.prompt_hash, _usage(asked), extracted=True)

    async def _ask(
        self,
        system: str,
        data: str,
        max_tokens: int,
        temperature: float = 0.0,
        json_model: type[BaseModel] | None = None,
    ) -> Completion:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": data}]
        request = ChatRequest(messages, temperature=temperature, max_tokens=max_tokens, json_model=json_model)
        return await self._chat.complete(request)


@dataclass(frozen=True, slots=True)
class _Request:
    """A request for one text. data: the user message. source: the texts in that message."""

    prompt: str
    data: str
    max_tokens: int
    language: str | None
    source: str

    @property
    def system(self) -> str:
        return self.prompt.format(max_tokens=self.max_tokens, language=prompts.language_rule(self.language))


def _checked_not_empty(text: str, asked: Sequence[Completion]) -> str:
    """Returns the text without surrounding white space. Raises EmptyAnswer if nothing is left, because an empty summary
    would replace the content of the turns."""
    if not text.strip():
        raise EmptyAnswer(f"{asked[-1].model} at {asked[-1].provider} gave an empty summary.", _usage(asked))
    return text.strip()


def _usage(asked: Sequence[Completion]) -> Usage:
    return reduce(Usage.plus, (reply.usage for reply in asked))


def text_problem(text: str, source: str, finish_reason: str | None, language: str | None = None) -> str | None:
    """Returns why a model's text must not be stored; None if it may be stored. source: the texts that it was made from.
    language: the requested language, if it differs from that of the source. Pure."""
    if finish_reason == CUT_OFF:
        return "cut off at the token limit"
    if any(marker in text and marker not in source for marker in _MARKERS):
        return "echo of the prompt"
    if repeated_share(text) > _MOST_REPEATED:
        return "repetition"
    return "words that the source does not hold" if _is_invented(text, source, language is not None) else None


def _is_invented(text: str, source: str, numbers_only: bool) -> bool:
    weights = {term: weight for term, weight in term_weights(text).items() if not numbers_only or term.isdigit()}
    known = {term for line in source.splitlines() for term in terms(line)}
    unknown = {term: weight for term, weight in weights.items() if term not in known}
    heavy = [term for term in unknown if weights[term] == _HEAVY]
    are_heavy_unknown = len(heavy) > max(2, list(weights.values()).count(_HEAVY) / 2)
    share = sum(unknown.values()) / max(1, sum(weights.values()))
    return are_heavy_unknown or (len(weights) >= _FEWEST_TERMS and share > _MOST_INVENTED)


def term_weights(text: str) -> dict[str, int]:
    """Returns {term: weight} for the terms that show the subject of a text. Names and numbers of two or more digits
    have the weight _HEAVY, other terms 1."""
    named = _NAME.findall(text)
    if len(named) > len(_WORD.findall(text)) / 4:  # as in German, where every noun has a capital
        named = []
    names = {term for name in named for term in terms(name)}
    subject_terms = {term for line in text.splitlines() for term in terms(line)} - _ABOUT_TALK
    return {term: _HEAVY if term in names or (term.isdigit() and len(term) > 1) else 1 for term in subject_terms}


def repeated_share(text: str) -> float:
    """Returns the share, 0 to 1, of the text's sequences of _SEQUENCE words that repeat an earlier sequence."""
    words = _WORD.findall(text.lower())
    sequences = [tuple(words[at : at + _SEQUENCE]) for at in range(len(words) - _SEQUENCE + 1)]
    return 1 - len(set(sequences)) / len(sequences) if sequences else 0.0


def parse_topics(text: str) -> dict[str, int]:
    """Returns {topic: mentions} from a model's text: a JSON object or list, also in a code fence, or else lines.

    Small models often do not follow the format. A topic without a number counts once.
    """
    match = _JSON.search(text)
    try:
        value = json.loads(match.group()) if match else None
    except (ValueError, RecursionError):  # RecursionError: thousands of nested brackets
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
    """Returns the number with which the value begins, but at least 1; 1 if it does not begin with a number."""
    match = re.match(r"\d{1,9}", str(count).strip())
    return max(1, int(match.group())) if match else 1
