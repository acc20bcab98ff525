"""/v1/conversations: create, get, items. Every thread of the caller is a conversation, whatever its id."""

from dataclasses import replace
from typing import Annotated, Any, Literal
from uuid import UUID, uuid5

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from turnlog.agent.answering.turns import add_turns, turn_of
from turnlog.agent.conversations import threads
from turnlog.agent.conversations.transcript import transcript
from turnlog.consumers.api.bodies import FINITE, JsonObject
from turnlog.consumers.api.dialects.openai.errors import OpenAIRoute
from turnlog.consumers.api.dialects.openai.response_items import Item, item_of, messages_of
from turnlog.consumers.api.pages import cursor_of, place_of
from turnlog.consumers.api.principal import Place, Principal, Reader, WriteId, Writer
from turnlog.consumers.api.routes.threads import ThreadId

router = APIRouter(prefix="/v1/conversations", tags=["openai"], route_class=OpenAIRoute)
Items = Annotated[list[JsonObject], Field(max_length=20)]


class ConversationBody(BaseModel):
    model_config = FINITE
    items: Items = []
    metadata: JsonObject | None = None


class ItemsBody(BaseModel):
    model_config = FINITE
    items: Items = Field(min_length=1)


@router.post("")
async def create_conversation(
    caller: Writer, write_id: WriteId, body: ConversationBody | None = None
) -> dict[str, Any]:
    """Opens a conversation, with its first items if they are given."""
    thread = f"conv_{write_id.hex}"
    # Append first: refused items must not leave a conversation behind.
    await _append((caller.runtime, caller.tenant, thread), caller, body.items if body else [], write_id)
    place = await caller.claims(thread)
    if body is not None and body.metadata:
        await threads.open_thread(*place, caller.user, metadata=body.metadata, event_id=write_id)
    return await _conversation(place)


@router.get("/{thread}")
async def get_conversation(thread: ThreadId, caller: Reader) -> dict[str, Any]:
    """Returns a conversation of the caller."""
    return await _conversation(await caller.owns(thread))


@router.post("/{thread}/items")
async def add_conversation_items(
    thread: ThreadId, body: ItemsBody, caller: Writer, write_id: WriteId
) -> dict[str, Any]:
    """Appends items to a conversation; no model answers them."""
    place = await caller.owns(thread)
    seqs = await _append(place, caller, body.items, write_id)
    if not seqs:  # the items were only reasoning, which is not stored
        return _list([], None)
    page = await transcript(*place, after_seq=seqs[0] - 1, limit=len(seqs))
    return _list([item for turn in page.turns for item in item_of(turn)], None)


@router.get("/{thread}/items")
async def list_conversation_items(
    thread: ThreadId,
    caller: Reader,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: Annotated[str | None, Query(max_length=2_000)] = None,
) -> dict[str, Any]:
    """Lists the items of a conversation. A page has whole turns; `last_id` of a page is `after` of the next."""
    place, seq = await caller.owns(thread), place_of(after, int)
    last, newest = seq[0] if seq else None, order == "desc"
    bound: dict[str, Any] = {"before_seq": last} if newest else {"after_seq": last or 0}
    page = await transcript(*place, limit=limit, newest=newest, **bound)
    turns = page.turns[::-1] if newest else page.turns
    shown = [item for turn in turns for item in item_of(turn)[:: -1 if newest else 1]]
    return _list(shown, cursor_of(turns[-1].seq) if page.more else None)


async def _append(
    place: Place, caller: Principal, items: list[Item] | list[dict[str, Any]], write_id: UUID
) -> list[int]:
    turns = [replace(turn_of(message), id=uuid5(write_id, str(at))) for at, message in enumerate(messages_of(items))]
    if not turns:
        return []
    added = await add_turns(*place, turns, user=caller.user)
    return [turn.seq for turn in added.turns]


async def _conversation(place: Place) -> dict[str, Any]:
    thread = await threads.get_thread(*place)
    created = int((thread.created_at or thread.last_active_at).timestamp())
    return {"id": thread.thread, "object": "conversation", "created_at": created, "metadata": thread.metadata or {}}


def _list(shown: list[dict[str, Any]], after: str | None) -> dict[str, Any]:
    last = after or (shown[-1]["id"] if shown else None)
    first = shown[0]["id"] if shown else None
    return {"object": "list", "data": shown, "first_id": first, "last_id": last, "has_more": after is not None}
