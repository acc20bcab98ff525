"""Chooses the strictest `response_format` for JSON that the server accepts.

llama.cpp, vLLM, Ollama and OpenAI accept a JSON schema and then generate nothing else; older servers accept only
`json_object`, or refuse the field. The prompt describes the format too, so that it works without the field.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import openai
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

T = TypeVar("T")
logger = logging.getLogger("turnlog.agent")
FORMS = ("json_schema", "json_object", "no response_format")  # tried in this order
_first: dict[tuple[str, str], int] = {}  # (server, model): index of the first accepted form in FORMS


class _WithoutBounds(GenerateJsonSchema):
    """Makes JSON schemas without length limits of strings. llama.cpp turns each limit into a repetition and refuses
    grammars with many (github.com/ggml-org/llama.cpp/issues/25746); answers are validated anyway."""

    def str_schema(self, schema: core_schema.StringSchema) -> JsonSchemaValue:
        return {"type": "string"}


def accepted_form(server: str, model: str) -> str:
    """Returns the form that a call with a JSON model tries first."""
    return FORMS[_first.get((server, model), 0)]


async def with_format(
    server: str, model: str, wanted: type[BaseModel], create: Callable[[dict[str, Any]], Awaitable[T]]
) -> T:
    """Calls `create` with the options that request `wanted`, and again in a simpler form if that is refused (400, 422).

    Once a simpler form was accepted, this process no longer tries the refused form: only then is it certain that the
    form was the reason, and not another part of the request. Raises the errors of `create`, except refusals of a form
    that is not the simplest.
    """
    start = _first.get((server, model), 0)
    for index in range(start, len(FORMS) - 1):
        try:
            reply = await create({"response_format": _response_format(FORMS[index], wanted)})
        except (openai.BadRequestError, openai.UnprocessableEntityError):
            continue
        _remember(server, model, index)
        return reply
    reply = await create({})
    _remember(server, model, len(FORMS) - 1)
    return reply


def _remember(server: str, model: str, index: int) -> None:
    if index > _first.get((server, model), 0):
        _first[server, model] = index
        logger.warning("%s refuses %s for %s; %s is used", server, FORMS[index - 1], model, FORMS[index])


def _response_format(form: str, wanted: type[BaseModel]) -> dict[str, Any]:
    if form != "json_schema":
        return {"type": form}
    schema = wanted.model_json_schema(schema_generator=_WithoutBounds)
    return {"type": form, "json_schema": {"name": wanted.__name__.strip("_"), "schema": schema}}
