"""GET /v1/models and POST /v1/embeddings: the models that this server is configured with."""

import base64
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel, Field

from turnlog.agent.models.errors import TextTooLong
from turnlog.agent.models.protocol import Usage
from turnlog.consumers.api.caller import Asker, Caller, identify
from turnlog.consumers.api.openai.errors import OpenAIRoute, Unusable
from turnlog.events.errors import NotFound

router = APIRouter(prefix="/v1", tags=["openai"], route_class=OpenAIRoute)
AnyCaller = Annotated[Caller, Depends(identify)]
Text = Annotated[str, Field(min_length=1, max_length=100_000)]


class EmbeddingsBody(BaseModel):
    input: Text | Annotated[list[Text], Field(min_length=1, max_length=2_048)]
    model: str | None = Field(None, max_length=200)
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


@router.get("/models")
async def list_models(caller: AnyCaller) -> dict[str, Any]:
    """The model that answers. A request may name another one that its server has."""
    return {"object": "list", "data": [_model(caller.runtime.models.chat.model)]}


@router.get("/models/{model:path}")
async def get_model(model: Annotated[str, Path(pattern=r"^[^\n]+$")], caller: AnyCaller) -> dict[str, Any]:
    """The model that answers, or the one of embeddings."""
    models = caller.runtime.models
    if model not in (models.chat.model, models.embedder.model):
        raise NotFound(f"there is no model {model[:100]!r} here; this server has {models.chat.model!r}")
    return _model(model)


@router.post("/embeddings")
async def embeddings(body: EmbeddingsBody, caller: Asker) -> dict[str, Any]:
    """Vectors of the configured embedding model; nothing is stored."""
    embedder = caller.runtime.models.embedder
    used: list[Usage] = []
    texts = [body.input] if isinstance(body.input, str) else body.input
    try:
        vectors = await embedder.embed_documents(texts, used.append)
    except TextTooLong as error:
        raise Unusable("input", str(error)) from error
    if body.dimensions not in (None, vectors.shape[1]):
        raise Unusable("dimensions", f"vectors of {embedder.model} have {vectors.shape[1]} dimensions")
    packed = body.encoding_format == "base64"
    data = [
        {
            "object": "embedding",
            "index": at,
            "embedding": base64.b64encode(one.astype("<f4").tobytes()).decode() if packed else one.tolist(),
        }
        for at, one in enumerate(vectors)
    ]
    tokens = sum(one.tokens_in for one in used)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": embedder.model, "usage": usage}


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "turnlog"}
