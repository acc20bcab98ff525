"""Reads and changes a user's entities: the people, schools, events and topics that the user mentions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID, uuid5

from pydantic import ValidationError, with_config

from turnlog.agent.runtime import Runtime
from turnlog.events.append import deciding_again
from turnlog.events.contracts import EntitiesCleared, EntitiesFound, Entity, EntityRelation, Event
from turnlog.events.errors import NotFound, TurnlogError
from turnlog.events.subjects import check_tenant, memory_thread
from turnlog.projectors.models.memories.entities_lookup import Mentioned, entities_of, entity_of

SOURCE = "turnlog/entities"
READS = ("entities",)
_IDS = UUID("0193b5a2-6d5e-7c1f-9a43-5f0c8e2b7d13")


class EntityExists(TurnlogError):
    """The user already has an entity of this type and name."""

    code = "entity-exists"


class InvalidEntity(TurnlogError):
    """A type or name is empty or too long, or an attribute is not JSON."""

    code = "invalid-entity"


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class EntityInput:
    """An entity that a person writes. type: PERSON, SCHOOL, EVENT, TOPIC or another, in any case. attributes: facts by
    name, values are JSON. relations: (type, target), such as ("friend_of", "Mia")."""

    type: str
    name: str
    description: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    relations: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class EntityFound:
    """A stored entity. relations: {"type", "target"}. sources: quotes that mention it; empty if written by hand.
    mention_count: events that name it, including those by hand."""

    type: str
    name: str
    description: str | None
    attributes: dict[str, Any]
    relations: list[dict[str, Any]]
    sources: list[dict[str, Any]]
    mention_count: int
    first_seen_at: datetime
    last_seen_at: datetime


def entity_id(tenant: str, user: str, type_: str, name: str) -> UUID:
    """Returns an id for clients that need one; turnlog identifies an entity by its type and name."""
    return uuid5(_IDS, "\0".join((tenant, user, type_, name)))


async def entities_by_id(runtime: Runtime, tenant: str, user: str) -> dict[UUID, EntityFound]:
    """Returns all entities of a user by their ids, most mentioned first. Raises InvalidToken."""
    entities = await list_entities(runtime, tenant, user, limit=2**31)
    return {entity_id(tenant, user, entity.type, entity.name): entity for entity in entities}


async def list_entities(
    runtime: Runtime,
    tenant: str,
    user: str,
    type_: str | None = None,
    limit: int = 100,
    after: Mentioned | None = None,
) -> list[EntityFound]:
    """Returns a user's entities, most mentioned first. type_: only entities of this type, ignoring case. after:
    mention_count, last_seen_at, type and name of the previous page's last entity. Raises InvalidToken."""
    check_tenant(tenant)
    thread = memory_thread(user)
    async with runtime.reading(*READS) as conn:
        rows = await entities_of(conn, tenant, thread, type_.upper() if type_ else None, limit, after)
    return [EntityFound(**row) for row in rows]


async def add_entity(runtime: Runtime, tenant: str, user: str, entity_input: EntityInput) -> EntityFound:
    """Writes a new entity. Raises EntityExists, InvalidEntity, InvalidToken."""
    return await _write(runtime, tenant, user, entity_input, is_new=True)


async def update_entity(runtime: Runtime, tenant: str, user: str, entity_input: EntityInput) -> EntityFound:
    """Adds to an entity: a description or an attribute replaces the earlier one, relations are added.

    Raises NotFound for an unknown type and name, InvalidEntity, InvalidToken.
    """
    return await _write(runtime, tenant, user, entity_input, is_new=False)


async def clear_entities(runtime: Runtime, tenant: str, user: str) -> int:
    """Removes all entities of a user from the read models; returns how many there were. Raises InvalidToken."""
    count = len(await list_entities(runtime, tenant, user, limit=2**31))
    if count:
        about = {"source": SOURCE, "tenant": tenant, "thread": memory_thread(user), "user": user}
        await runtime.log.append(Event(data=EntitiesCleared(), **about))
        await runtime.wait_until_projected(names=READS)
    return count


async def _write(runtime: Runtime, tenant: str, user: str, entity_input: EntityInput, is_new: bool) -> EntityFound:
    """Appends the entity after a check against rows that are up to date; if another write came first, checks again.
    Raises EntityExists, NotFound."""
    event = _event(check_tenant(tenant), user, entity_input)
    async for attempt in deciding_again():
        with attempt:
            head = await runtime.log.thread_head(tenant, event.thread)
            known = await _find(runtime, event)
            what = f"{entity_input.type.upper()} {entity_input.name!r}"
            if is_new and known is not None:
                raise EntityExists(f"user {user!r} already has the entity {what}; update it")
            if not is_new and known is None:
                raise NotFound(f"user {user!r} has no entity {what}; `turnlog entities --user {user}` lists them")
            await runtime.log.append(event, expected=head)
    written = await _find(runtime, event)
    if written is None:  # removed by another caller in the meantime
        raise NotFound(f"the entity {entity_input.name!r} of user {user!r} was removed in the meantime")
    return written


async def _find(runtime: Runtime, event: Event) -> EntityFound | None:
    assert isinstance(event.data, EntitiesFound)
    wanted = event.data.entities[0]
    async with runtime.reading(*READS) as conn:
        row = await entity_of(conn, event.tenant, event.thread, wanted.type, wanted.name)
    return None if row is None else EntityFound(**row)


def _event(tenant: str, user: str, entity_input: EntityInput) -> Event:
    if not entity_input.type.strip() or not entity_input.name.strip():
        raise InvalidEntity("an entity needs a type and a name")
    relations = tuple(EntityRelation(type=type_, target=target) for type_, target in entity_input.relations)
    try:
        entity = Entity(
            type=entity_input.type.strip().upper(),
            name=entity_input.name.strip(),
            description=entity_input.description,
            attributes=dict(entity_input.attributes),
            relations=relations,
        )
    except ValidationError as error:
        raise InvalidEntity(f"this is not a valid entity: {error.errors()[0]['msg']}") from error
    data = EntitiesFound(entities=(entity,))
    thread = memory_thread(user)
    return Event(source=SOURCE, tenant=tenant, thread=thread, user=user, data=data)
