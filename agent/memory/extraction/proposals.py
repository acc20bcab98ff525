"""Converts findings to memories and entities, without repeated findings and without secrets. Pure."""

from collections.abc import Iterable, Sequence
from uuid import NAMESPACE_OID, uuid5

from turnlog.agent.memory.extraction.findings import ExtractionResult, Finding, Rejection, Turn
from turnlog.agent.memory.sanitiser.sanitise import MASK, holds_secret
from turnlog.events.contracts import EntitiesFound, Entity, Memory
from turnlog.projectors.models.memories.sql import MAX_SOURCES
from turnlog.projectors.models.memories.text import content_key, name_key, normal
from turnlog.projectors.models.terms import terms

SHARED_TERMS = 0.5
# Words that models add to a fact.
_FRAME = frozenset(terms("the user likes wants has is are was prefers loves enjoys 用户 喜欢 想 希望 是 有"))


def candidates(tenant: str, user: str, findings: Iterable[Finding]) -> list[Memory]:
    """Returns memories in the order of the findings. Ids are derived from user, event and content, so a repeated
    extraction makes the same ids."""
    made = {memory.id: memory for finding in findings for memory in [_memory(tenant, user, finding)]}
    return list(made.values())


def entities(looked: ExtractionResult) -> list[EntitiesFound]:
    """Returns one event with each entity once; [] without entities."""
    by_key: dict[tuple[str, str], Entity] = {}
    for mention in (*looked.entities, *(entity for finding in looked.findings for entity in finding.entities)):
        key = (mention.type, name_key(mention.name))
        by_key[key] = _merged(by_key[key], mention) if key in by_key else mention
    return [EntitiesFound(entities=tuple(by_key.values()))] if by_key else []


def without_repeats(model: ExtractionResult, rules: ExtractionResult, turns: Sequence[Turn]) -> ExtractionResult:
    """Returns the model's result without findings that a rule, or the model itself before, also made: with the same
    key, content or statement."""
    by_id = {turn.event_id: turn for turn in turns}
    kept: list[Finding] = []
    rejections = list(model.rejections)
    for finding in model.findings:
        other = next((held for held in (*rules.findings, *kept) if _repeats(finding, held)), None)
        if other is None:
            kept.append(finding)
        else:
            turn = by_id[finding.source.event_id]
            rejections.append(Rejection("repeats", other.rule, turn, finding.source.quote, other.content))
    return ExtractionResult(tuple(kept), tuple(rejections), model.entities)


def without_secrets(result: ExtractionResult, turns: Sequence[Turn]) -> ExtractionResult:
    """Returns the result without findings and entities that contain a password, a key, or the number of a card or
    identity document."""
    by_id = {turn.event_id: turn for turn in turns}
    secret = [finding for finding in result.findings if holds_secret(f"{finding.content}\n{finding.source.quote}")]
    return ExtractionResult(
        tuple(finding for finding in result.findings if finding not in secret),
        (
            *result.rejections,
            *(Rejection("secret", finding.rule, by_id[finding.source.event_id], MASK) for finding in secret),
        ),
        tuple(entity for entity in result.entities if not any(holds_secret(source.quote) for source in entity.sources)),
    )


def _repeats(finding: Finding, other: Finding) -> bool:
    if content_key(finding.kind, finding.content) == content_key(other.kind, other.content):
        return True
    if finding.source.event_id != other.source.event_id:
        return False
    if finding.dedupe_key is not None and finding.dedupe_key == other.dedupe_key:
        return True
    mine = set(terms(finding.content)) - _FRAME
    shared = mine & set(terms(f"{other.content} {other.value or ''}"))
    return bool(mine) and len(shared) >= SHARED_TERMS * len(mine) and _overlap(finding, other)


def _overlap(finding: Finding, other: Finding) -> bool:
    first, second = normal(finding.source.quote), normal(other.source.quote)
    return first in second or second in first


def _memory(tenant: str, user: str, finding: Finding) -> Memory:
    said = f"{tenant}/{user}/{finding.source.event_id}/{content_key(finding.kind, finding.content).hex()}"
    return Memory(
        id=uuid5(NAMESPACE_OID, f"memory/{said}"),
        kind=finding.kind,
        content=finding.content,
        category=finding.category,
        value=finding.value,
        importance=finding.importance,
        confidence=finding.confidence,
        origin=finding.origin,
        rule=finding.rule,
        dedupe_key=finding.dedupe_key,
        strategy=finding.strategy,
        valid_from=finding.source.said_at,
        expires_at=finding.expires_at,
        sources=(finding.source,),
        entities=tuple(dict.fromkeys(entity.name for entity in finding.entities)),
    )


def _merged(entity: Entity, other: Entity) -> Entity:
    sources = {source.event_id: source for source in (*entity.sources, *other.sources)}
    return entity.model_copy(
        update={
            "description": entity.description or other.description,
            "attributes": {**entity.attributes, **other.attributes},
            "relations": tuple(dict.fromkeys((*entity.relations, *other.relations))),
            "sources": tuple(sources.values())[:MAX_SOURCES],
        }
    )
