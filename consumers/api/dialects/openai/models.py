"""GET /v1/models and POST /v1/embeddings: the models that this server is configured with."""

import asyncio
import base64
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Request
from pydantic import BaseModel, Field

from turnlog.agent.answering.completions import AGENT, SOURCE
from turnlog.agent.context.tokens import EncodingName, encoding
from turnlog.agent.models.errors import ModelTimedOut, TextTooLong
from turnlog.agent.models.protocol import Meter, Usage, Vectors, asker_of
from turnlog.consumers.api.dialects.openai.agents import agent_models
from turnlog.consumers.api.dialects.openai.begin import cancel_when_left
from turnlog.consumers.api.dialects.openai.errors import OpenAIRoute, Unusable
from turnlog.consumers.api.principal import Asker, Principal, identify
from turnlog.consumers.api.problems import Stopping
from turnlog.consumers.api.streams import throttled
from turnlog.events.contracts import Event
from turnlog.events.errors import NotFound
from turnlog.events.subjects import memory_thread
from turnlog.events.tasks import cancel

LONGEST_S = 600.0  # the timeout of OpenAI's clients
router = APIRouter(prefix="/v1", tags=["openai"], route_class=OpenAIRoute)
AnyCaller = Annotated[Principal, Depends(identify)]
Text = Annotated[str, Field(min_length=1, max_length=100_000)]
Tokens = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1, max_length=25_000)]
ENCODING: EncodingName = "cl100k_base"  # the encoding of all embedding models of OpenAI, whose clients send tokens


class EmbeddingsBody(BaseModel):
    """The body of a request for embeddings. input: a text, texts, tokens of cl100k_base, or such lists of tokens."""

    input: Text | Tokens | Annotated[list[Text] | list[Tokens], Field(min_length=1, max_length=2_048)]
    model: str | None = Field(None, max_length=200)
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


@router.get("/models")
async def list_models(caller: AnyCaller) -> dict[str, Any]:
    """Lists the model that answers, and the agents of the server's team as `turnlog/…`. A request may also name another
    model of the model's server."""
    names = [caller.runtime.models.chat.model, *await agent_models(caller.runtime, caller.tenant)]
    return {"object": "list", "data": [_model(name) for name in names]}


@router.get("/models/{model:path}")
async def get_model(model: Annotated[str, Path(pattern=r"^[^\n]+$")], caller: AnyCaller) -> dict[str, Any]:
    """Returns the model that answers, the embedding model or an agent."""
    models = caller.runtime.models
    agents = await agent_models(caller.runtime, caller.tenant)
    if model not in (models.chat.model, models.embedder.model, *agents):
        raise NotFound(f"there is no model {model[:100]!r} here; this server has {models.chat.model!r}")
    return _model(model)


@router.post("/embeddings")
async def embeddings(body: EmbeddingsBody, caller: Asker, request: Request) -> dict[str, Any]:
    """Returns vectors of the configured embedding model; only the usage is stored."""
    embedder = caller.runtime.models.embedder
    used: list[Usage] = []
    async with throttled(caller, None, AGENT, embeds=True):
        try:
            vectors = await _embedded(body, caller, used.append, request)
        finally:
            about = {"tenant": caller.tenant, "thread": memory_thread(caller.user), "user": caller.user}
            for spent in used:
                await caller.runtime.log.append(Event(source=SOURCE, **about, data=spent.metered("embedding", AGENT)))
    if body.dimensions not in (None, vectors.shape[1]):
        raise Unusable("dimensions", f"vectors of {embedder.model} have {vectors.shape[1]} dimensions")
    packed = body.encoding_format == "base64"
    data = [
        {
            "object": "embedding",
            "index": at,
            "embedding": base64.b64encode(vector.astype("<f4").tobytes()).decode() if packed else vector.tolist(),
        }
        for at, vector in enumerate(vectors)
    ]
    tokens = sum(spent.tokens_in for spent in used)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": embedder.model, "usage": usage}


async def _embedded(body: EmbeddingsBody, caller: Principal, meter: Meter, request: Request) -> Vectors:
    texts = await asyncio.to_thread(_texts, body.input)
    asker = asker_of(caller.tenant, caller.user)
    work = asyncio.create_task(caller.runtime.models.embedder.embed_documents(texts, meter, asker))
    leaving = asyncio.create_task(cancel_when_left(request, work))
    try:
        await asyncio.wait([work], timeout=LONGEST_S)
        if not work.done():
            raise ModelTimedOut(f"vectors of {len(texts)} texts took over {LONGEST_S:.0f} s; send fewer at once")
        if work.cancelled():
            raise Stopping("the client left")
        return work.result()
    except TextTooLong as error:
        raise Unusable("input", str(error)) from error
    finally:
        await cancel(leaving, work)


def _texts(value: str | list[int] | list[str] | list[list[int]]) -> list[str]:
    """Returns the inputs as texts; lists of tokens are decoded. Raises Unusable."""
    inputs = [value] if isinstance(value, str) or isinstance(value[0], int) else value
    try:
        return [part if isinstance(part, str) else encoding(ENCODING).decode(part) for part in inputs]
    except KeyError:
        raise Unusable("input", f"the input contains a number that is not a token of {ENCODING}") from None


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "turnlog"}
