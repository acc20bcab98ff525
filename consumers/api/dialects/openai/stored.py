"""Stored responses: GET and DELETE /v1/responses/{id}, and POST /v1/responses/compact."""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field

from turnlog.agent.answering.completions import AGENT, SOURCE
from turnlog.agent.context.plain_text import content_text
from turnlog.agent.context.tokens import counter_for
from turnlog.agent.conversations import threads
from turnlog.agent.conversations.summarising.derive import pieces
from turnlog.agent.conversations.transcript import costs_of
from turnlog.agent.models.protocol import Usage
from turnlog.consumers.api.bodies import JsonObject
from turnlog.consumers.api.dialects.openai.errors import OpenAIRoute, Unusable
from turnlog.consumers.api.dialects.openai.response_items import compacted, id_part, item_of, messages_of, place_in
from turnlog.consumers.api.dialects.openai.responses import echoed_fields, usage_of
from turnlog.consumers.api.principal import Asker, Place, Principal, Reader, WriteId, Writer
from turnlog.consumers.api.streams import throttled
from turnlog.events.contracts import Event
from turnlog.events.errors import NotFound
from turnlog.events.subjects import memory_thread
from turnlog.projectors.models.conversation.message import Message, thread_messages

router = APIRouter(prefix="/v1/responses", tags=["openai"], route_class=OpenAIRoute)
ResponseId = Annotated[str, Path(pattern=r"^[^\n]+$", max_length=1_000)]


class CompactBody(BaseModel):
    """The body of OpenAI's request to compact; further fields are ignored."""

    model_config = ConfigDict(allow_inf_nan=False)
    model: str | None = Field(None, max_length=200)
    input: str | list[JsonObject] | None = None
    instructions: str | None = None
    previous_response_id: str | None = Field(None, max_length=1_000)


@router.get("/{response}")
async def get_response(response: ResponseId, caller: Reader) -> dict[str, Any]:
    """Returns a stored response. The log keeps the answer, but not the request's other fields, which have their
    defaults here."""
    place, name, turns = await _through(response, caller)
    answer = turns[-1]
    part = id_part(answer.event_id, name)
    output = [{**item, "id": item["id"].replace(answer.event_id.hex, part)} for item in item_of(answer)]
    cost = (await costs_of(*place, [answer])).get(answer.seq)
    return {
        "id": f"resp_{part}",
        "object": "response",
        "created_at": int(answer.time.timestamp()),
        "status": "completed",
        "model": answer.model or caller.runtime.models.chat.model,
        "error": None,
        "incomplete_details": None,
        **echoed_fields({}),
        "store": True,
        "conversation": {"id": place[2]},
        "output": output,
        "usage": usage_of(cost.tokens_in or 0, cost.tokens_out or 0) if cost else None,
    }


@router.delete("/{response}")
async def delete_response(response: ResponseId, caller: Writer, write_id: WriteId) -> dict[str, Any]:
    """Deletes a response with its conversation. Refused if the conversation has other answers or later turns: delete
    the conversation instead (`DELETE /api/threads/{thread}`)."""
    place, name, turns = await _through(response, caller)
    answers = [turn for turn in turns if turn.role == "assistant"]
    if len(answers) > 1 or (await _turns(place))[-1].seq != turns[-1].seq:
        raise Unusable("response_id", f"the conversation {place[2]!r} has other answers; delete it as a whole")
    await threads.delete_thread(*place, event_id=write_id)
    return {"id": f"resp_{id_part(turns[-1].event_id, name)}", "object": "response", "deleted": True}


@router.post("/compact")
async def compact_response(body: CompactBody, caller: Asker, write_id: WriteId) -> dict[str, Any]:
    """Returns a summary of the given items and of the previous response, as one item to begin a later input with. Only
    the usage is stored."""
    said = (
        [(turn.role, turn.content) for turn in (await _through(body.previous_response_id, caller))[2]]
        if (body.previous_response_id)
        else []
    )
    messages = (
        [{"role": "user", "content": body.input}] if isinstance(body.input, str) else messages_of(body.input or [])
    )
    said += [(str(message["role"]), message.get("content") or "") for message in messages]
    texts = [f"{role}: {text}" for role, content in said if (text := content_text(content))]
    if not texts:
        raise Unusable("input", "there is nothing to compact; send input or previous_response_id")
    runtime, summary, used = caller.runtime, "", list[Usage]()
    async with throttled(caller, None, AGENT):
        for piece in pieces(texts, counter_for(runtime.models.chat.model).text):
            written = await runtime.models.tasks.summarise(piece, summary, runtime.settings.max_summary_tokens)
            summary = written.text
            used.append(written.usage)
            await _meter(caller, written.usage)
    return {
        "id": f"cmp_{write_id.hex}",
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [compacted(write_id, summary)],
        "usage": usage_of(sum(usage.tokens_in for usage in used), sum(usage.tokens_out for usage in used)),
    }


async def _through(response: str, caller: Principal) -> tuple[Place, str, list[Message]]:
    """Returns the place of a stored response, the conversation name in its id, and the turns up to it. Raises
    NotFound.
    """
    name, answer = place_in(response)
    place = await caller.owns(name)
    turns = await _turns(place)
    at = next((at for at, turn in enumerate(turns) if turn.event_id == answer), None)
    if at is None:
        raise NotFound(f"there is no response {response[:100]!r}")
    return place, name, turns[: at + 1]


async def _turns(place: Place) -> list[Message]:
    runtime, tenant, thread = place
    async with runtime.reading("messages", of=(tenant, thread)) as conn:
        return await thread_messages(conn, tenant, thread)


async def _meter(caller: Principal, usage: Usage) -> None:
    about = {"tenant": caller.tenant, "thread": memory_thread(caller.user), "user": caller.user}
    await caller.runtime.log.append(Event(source=SOURCE, **about, data=usage.metered("summary", AGENT)))
