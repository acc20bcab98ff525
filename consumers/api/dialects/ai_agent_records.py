"""Records of seed E (10.2 to 10.4) in its field names, made of what the use cases return."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from turnlog.agent.context.plain_text import content_text
from turnlog.agent.conversations.threads import ThreadInfo
from turnlog.agent.memory.entities import EntityFound, EntityInput
from turnlog.agent.memory.memories import MemoryView
from turnlog.consumers.api.bodies import FINITE, JsonObject
from turnlog.consumers.api.principal import Caller
from turnlog.events.errors import NotFound
from turnlog.projectors.models.conversation.message import Cost, Message

_SOURCES = {"user": "user_input", "llm": "llm_extract", "rule": "rule_extract", "explicit": "rule_extract"}


class ConversationRecord(BaseModel):
    """summary: of its older turns, once there is one. metadata: as it was created with."""

    id: str
    userId: str
    title: str | None
    summary: str | None
    metadata: dict[str, Any] | None
    createdAt: datetime
    updatedAt: datetime

    @classmethod
    def of(cls, caller: Caller, found: ThreadInfo) -> "ConversationRecord":
        return cls(
            id=found.thread,
            userId=caller.user,
            title=found.label,
            summary=found.summary,
            metadata=found.metadata,
            createdAt=found.created_at or found.last_active_at,
            updatedAt=found.last_active_at,
        )


class MessageRecord(BaseModel):
    """tokensUsed: of the request and the answer together, as the provider counted them."""

    id: UUID
    conversationId: str
    role: str
    content: str
    agentType: str | None
    toolCalls: list[dict[str, Any]]
    tokensUsed: int | None
    latencyMs: float | None
    createdAt: datetime

    @classmethod
    def of(cls, conversation: str, turn: Message, cost: Cost | None) -> "MessageRecord":
        counted = [one for one in (cost.tokens_in, cost.tokens_out) if one is not None] if cost else []
        return cls(
            id=turn.event_id,
            conversationId=conversation,
            role=turn.role,
            content=content_text(turn.content),
            agentType=turn.agent,
            toolCalls=turn.tool_calls,
            tokensUsed=sum(counted) if counted else None,
            latencyMs=cost.latency_ms if cost else None,
            createdAt=turn.time,
        )


class MemoryRecord(BaseModel):
    """metadata: the client's own, and what turnlog knows: confidence, source, conversationId, messageId, dedupeKey,
    pendingConflict, scoreTier, score, scoreDetails. A name that both have is the client's."""

    id: UUID
    userId: str
    type: str
    category: str | None
    content: str
    importance: float
    accessCount: int
    lastAccessedAt: datetime | None
    metadata: dict[str, Any]
    createdAt: datetime

    @classmethod
    def of(cls, view: MemoryView) -> "MemoryRecord":
        return cls(
            id=view.id,
            userId=view.user,
            type=view.kind,
            category=view.category,
            content=view.content,
            importance=view.score.importance,
            accessCount=view.access_count,
            lastAccessedAt=view.last_accessed_at,
            metadata=_known(view) | (view.metadata or {}),
            createdAt=view.created_at,
        )


def _known(view: MemoryView) -> dict[str, Any]:
    score, said = view.score, view.sources[0] if view.sources else None
    parts = {"importanceScore": score.importance, "freshnessScore": score.freshness}
    return {
        "confidence": view.confidence,
        "source": _SOURCES.get(view.origin, view.origin),
        "conversationId": said.thread if said else None,
        "messageId": str(said.event_id) if said else None,
        "dedupeKey": view.dedupe_key,
        "pendingConflict": view.status == "pending",
        "scoreTier": score.tier,
        "score": score.total,
        "scoreDetails": parts | {"confidenceScore": score.confidence, "accessBonus": score.access_bonus},
    }


class Relation(BaseModel):
    """targetId: of an entity of the user's with the name targetName; one that is given decides over the name."""

    type: str
    targetId: UUID | None = None
    targetName: str


class NewEntity(BaseModel):
    model_config = FINITE
    type: str
    name: str
    description: str | None = None
    attributes: JsonObject = {}
    relations: list[Relation] = []

    def stored_as(self, known: Mapping[UUID, EntityFound]) -> EntityInput:
        """Raises NotFound for a targetId that no entity has."""
        relations = [(one.type, _target(one, known)) for one in self.relations]
        return EntityInput(self.type, self.name, self.description, self.attributes, relations)


def _target(relation: Relation, known: Mapping[UUID, EntityFound]) -> str:
    if relation.targetId is None:
        return relation.targetName
    if relation.targetId not in known:
        raise NotFound(f"there is no entity {relation.targetId}")
    return known[relation.targetId].name


class EntityRecord(NewEntity):
    id: UUID
    userId: str
    createdAt: datetime

    @classmethod
    def of(cls, user: str, id_: UUID, found: EntityFound, ids: Mapping[str, UUID]) -> "EntityRecord":
        """ids: of the user's entities, as `ids_by_name` has them."""
        relations = [
            Relation(type=one["type"], targetId=ids.get(one["target"].casefold()), targetName=one["target"])
            for one in found.relations
        ]
        return cls(
            id=id_,
            userId=user,
            type=found.type,
            name=found.name,
            description=found.description,
            attributes=found.attributes,
            relations=relations,
            createdAt=found.first_seen_at,
        )


def ids_by_name(known: dict[UUID, EntityFound]) -> dict[str, UUID]:
    """For the targets of relations, which are names; of several entities with one name, that most mentioned."""
    return {one.name.casefold(): id_ for id_, one in reversed(known.items())}
