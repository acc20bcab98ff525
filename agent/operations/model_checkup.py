"""Implements `doctor --model`: tries everything that turnlog needs from the configured models, and reports what
works."""

import json
import time
from collections.abc import Awaitable, Callable

from pydantic import BaseModel, ValidationError

from turnlog.agent.answering.recall_tool import SCHEMA
from turnlog.agent.counting import counted
from turnlog.agent.models.errors import ModelError
from turnlog.agent.models.factory import Models, make_models
from turnlog.agent.models.json_text import json_value
from turnlog.agent.models.protocol import ChatRequest
from turnlog.agent.operations.checkup import Finding
from turnlog.agent.settings import Settings

MAX_TOKENS = 1_000  # enough for a model that reasons before it answers


class _City(BaseModel):
    city: str
    inhabitants: int


async def configured_models(settings: Settings) -> list[Finding]:
    """Checks the models of the settings like model_checkup."""
    models = make_models(settings)
    try:
        return await model_checkup(models)
    finally:
        await models.close()


async def model_checkup(models: Models) -> list[Finding]:
    """Returns one finding for each check: chat, tool call, JSON schema, embedding and reranking. The first three are
    left out without a language model, reranking without a reranker."""
    return [
        await _tried(f"model: {name}", models, attempt) for name, attempt in _TRIES.items() if _applies(name, models)
    ]


_Try = Callable[[Models], Awaitable[tuple[bool, str, str]]]


async def _tried(check: str, models: Models, attempt: _Try) -> Finding:
    started = time.perf_counter()
    try:
        ok, detail, fix = await attempt(models)
    except ModelError as error:
        return Finding(check, False, str(error))
    return Finding(check, ok, f"{detail} ({time.perf_counter() - started:.1f} s)", "" if ok else fix)


async def _chat(models: Models) -> tuple[bool, str, str]:
    reply = await models.chat.complete(_request("Say hello in one sentence."))
    fix = "it may use all its tokens for reasoning: choose another model"
    return bool(reply.text.strip()), f"{reply.model} answered with {counted(reply.tokens_out, 'token')}", fix


async def _tools(models: Models) -> tuple[bool, str, str]:
    asked = _request("Use recall_memory to look up what I said about Lisbon.")
    reply = await models.chat.complete(ChatRequest(asked.messages, [SCHEMA], max_tokens=MAX_TOKENS))
    called = [call for call in reply.tool_calls if call.name == SCHEMA["function"]["name"]]
    fix = "answers get the memories of the context, but the model cannot search for more: choose one with tool calls"
    if not called:
        return False, "it did not call a tool", fix
    arguments = json_value(called[0].arguments)
    is_valid = isinstance(arguments, dict) and isinstance(arguments.get("query"), str)
    return is_valid, f"it called {called[0].name} with {json.dumps(arguments, ensure_ascii=False)[:100]}", fix


async def _schema(models: Models) -> tuple[bool, str, str]:
    text = "Name a city and its number of inhabitants. Answer with one JSON object: {city: text, inhabitants: number}."
    reply = await models.chat.complete(ChatRequest(_request(text).messages, max_tokens=MAX_TOKENS, json_model=_City))
    form = models.clients[0].json_form if models.clients else "no response_format"
    fix = "memories are not extracted, merged or compared by this model: choose a server that accepts a JSON schema"
    try:
        _City.model_validate(json_value(reply.text))
    except ValidationError:
        return False, f"it did not answer with the requested JSON object; the server accepts {form}", fix
    return True, f"it answered with the requested JSON object; the server accepts {form}", ""


async def _embedding(models: Models) -> tuple[bool, str, str]:
    vector = await models.embedder.embed_query("hello")
    return True, f"{models.embedder.model} gave a vector of {len(vector)} dimensions", ""


async def _rerank(models: Models) -> tuple[bool, str, str]:
    assert models.reranker is not None
    good, bad = await models.reranker.scores("Where is the cat?", ["The cat sleeps on the sofa.", "Rain fell all day."])
    fix = "it ranks a plain answer behind another text: choose another model, or a build of it for reranking"
    return good > bad, f"{models.reranker.model} scored the answer {good:.3g} and another text {bad:.3g}", fix


_TRIES: dict[str, _Try] = {
    "chat": _chat,
    "tools": _tools,
    "schema": _schema,
    "embedding": _embedding,
    "rerank": _rerank,
}


def _applies(name: str, models: Models) -> bool:
    if name == "rerank":
        return models.reranker is not None
    return name == "embedding" or models.extraction is not None


def _request(text: str) -> ChatRequest:
    return ChatRequest([{"role": "user", "content": text}], max_tokens=MAX_TOKENS)
