"""The records of /ai-agent: conversations, messages, memories and entities with its field names."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import Field

from turnlog.agent.context.plain_text import content_text
from turnlog.agent.conversations.threads import ThreadInfo
from turnlog.agent.memory.entities import EntityFound, EntityInput, entities_by_id, entity_id
from turnlog.agent.memory.memories import MemoryView
from turnlog.consumers.api.bodies import CamelBody, CamelRecord, JsonObject
from turnlog.consumers.api.principal import Principal
from turnlog.events.errors import NotFound
from turnlog.projectors.models.conversation.message import Cost, Message

_SOURCES = {"user": "user_input", "llm": "llm_extract", "rule": "rule_extract", "explicit": "rule_extract"}


class ConversationRecord(CamelRecord):
    """A conversation. summary: the summary of its older turns, if there is one. metadata: as given at its creation."""

    id: str = Field(validation_alias="thread")
    user_id: str
    title: str | None = Field(validation_alias="label")
    summary: str | None
    metadata: dict[str, Any] | None
    created_at: datetime
    updated_at: datetime = Field(validation_alias="last_active_at")

    @classmethod
    def of(cls, caller: Principal, thread: ThreadInfo) -> "ConversationRecord":
        created_at = thread.created_at or thread.last_active_at
        return cls.model_validate(asdict(thread) | {"user_id": caller.user, "created_at": created_at})


class MessageRecord(CamelRecord):
    """A message. tokensUsed: tokens of request and answer together, as the provider counted them."""

    id: UUID
    conversation_id: str
    role: str
    content: str
    agent_type: str | None
    tool_calls: list[dict[str, Any]]
    tokens_used: int | None
    latency_ms: float | None
    created_at: datetime

    @classmethod
    def of(cls, conversation: str, turn: Message, cost: Cost | None) -> "MessageRecord":
        counted = [tokens for tokens in (cost.tokens_in, cost.tokens_out) if tokens is not None] if cost else []
        return cls(
            id=turn.event_id,
            conversation_id=conversation,
            role=turn.role,
            content=content_text(turn.content),
            agent_type=turn.agent,
            tool_calls=turn.tool_calls,
            tokens_used=sum(counted) if counted else None,
            latency_ms=cost.latency_ms if cost else None,
            created_at=turn.time,
        )


class MemoryRecord(CamelRecord):
    """A memory. metadata: the client's own, and what turnlog knows: confidence, source, conversationId, messageId,
    rawMatch (the quote), normalized (the value), dedupeKey, pendingConflict, merged, summarized, archived, archivedAt,
    updatedAt (when it was last said), accessCount, tier, scoreTier, score, scoreDetails. If both have a name, the
    client's value is shown."""

    id: UUID
    user_id: str = Field(validation_alias="user")
    type: str = Field(validation_alias="kind")
    category: str | None
    content: str
    importance: float
    access_count: int
    last_accessed_at: datetime | None
    metadata: dict[str, Any]
    created_at: datetime

    @classmethod
    def of(cls, memory: MemoryView) -> "MemoryRecord":
        score, source = memory.score, memory.sources[0] if memory.sources else None
        parts = {"importanceScore": score.importance, "freshnessScore": score.freshness}
        known = {
            "confidence": memory.confidence,
            "source": _SOURCES.get(memory.origin, memory.origin),
            "conversationId": source.thread if source else None,
            "messageId": str(source.event_id) if source else None,
            "rawMatch": source.quote if source else None,
            "normalized": memory.value,
            "dedupeKey": memory.dedupe_key,
            "pendingConflict": memory.status == "pending",
            "merged": memory.origin == "compaction",
            "summarized": memory.kind == "SUMMARY",
            "archived": memory.status == "archived",
            "archivedAt": memory.archived_at,
            "updatedAt": memory.confirmed_at,
            "accessCount": memory.access_count,
            "tier": score.tier,
            "scoreTier": score.tier,
            "score": score.total,
            "scoreDetails": parts | {"confidenceScore": score.confidence, "accessBonus": score.access_bonus},
        }
        shown = {"importance": score.importance, "metadata": known | (memory.metadata or {})}
        return cls.model_validate(asdict(memory) | shown)


class Relation(CamelRecord):
    """A relation to another entity. targetId: id of the user's entity with the name targetName; if given, it takes
    precedence over the name.
    """

    type: str
    target_id: UUID | None = None
    target_name: str

    def target(self, known: Mapping[UUID, EntityFound]) -> str:
        """Returns the name of the target. Raises NotFound for an unknown targetId."""
        if self.target_id is None:
            return self.target_name
        if self.target_id not in known:
            raise NotFound(f"there is no entity {self.target_id}")
        return known[self.target_id].name


class NewEntity(CamelBody):
    type: str
    name: str
    description: str | None = None
    attributes: JsonObject = Field({})
    relations: list[Relation] = Field([])

    def stored_as(self, known: Mapping[UUID, EntityFound]) -> EntityInput:
        """Returns the entity to store. known: the user's entities. Raises NotFound for an unknown targetId."""
        relations = [(relation.type, relation.target(known)) for relation in self.relations]
        return EntityInput(self.type, self.name, self.description, self.attributes, relations)


class EntityRecord(NewEntity, CamelRecord):
    id: UUID
    user_id: str
    created_at: datetime = Field(validation_alias="first_seen_at")


async def entity_records(caller: Principal, entities: Sequence[EntityFound]) -> list[EntityRecord]:
    """Returns the caller's entities as records. The target of a relation is stored as a name; if several entities have
    this name, targetId is the id of the entity that was mentioned most."""
    known = await entities_by_id(*caller.person)
    ids = {entity.name.casefold(): id_ for id_, entity in reversed(known.items())}
    records = []
    for entity in entities:
        relations = [
            {"type": each["type"], "target_id": ids.get(each["target"].casefold()), "target_name": each["target"]}
            for each in entity.relations
        ]
        id_ = entity_id(caller.tenant, caller.user, entity.type, entity.name)
        whose = {"id": id_, "user_id": caller.user, "relations": relations}
        records.append(EntityRecord.model_validate(asdict(entity) | whose))
    return records
