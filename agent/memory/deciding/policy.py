"""Computes the score, decay, archiving and deletion of memories. Pure functions.

Decay is not stored: a row has the importance at one time, and readers compute the current value. The daily job computes
it in the same way, and records only which memories it archives, expires or deletes.
"""

import math
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from turnlog.agent.settings import Settings
from turnlog.events.contracts import MemoryKind


@dataclass(frozen=True, slots=True)
class Modifier:
    """A bonus of importance for contents that match a pattern."""

    pattern: re.Pattern[str]
    bonus: float


@dataclass(frozen=True, slots=True)
class ImportanceRule:
    base: float
    modifiers: tuple[Modifier, ...] = ()


def _says(pattern: str, bonus: float) -> Modifier:
    return Modifier(re.compile(pattern, re.IGNORECASE), bonus)


def _word(alternatives: str) -> str:
    """Returns a pattern that matches complete Latin words ("act" does not match in "exactly"), also next to Chinese
    characters ("我的GPA是3.8")."""
    return rf"(?<![a-z])(?:{alternatives})(?![a-z])"


IMPORTANCE_RULES: dict[MemoryKind, ImportanceRule] = {
    "FACT": ImportanceRule(
        0.8, (_says(_word("gpa|sat|act|toefl|ielts"), 0.1), _says(f"排名|{_word('rank|ranks|ranked|ranking')}", 0.05))
    ),
    "PREFERENCE": ImportanceRule(
        0.6, (_says(f"早申|早决定|{_word('ed')}", 0.15), _says(r"dream\b.*\bschool|梦校", 0.1))
    ),
    "DECISION": ImportanceRule(0.9, (_says(f"{_word('ed')}.*决定|最终.*选择", 0.1),)),
    "SUMMARY": ImportanceRule(0.5),
    "FEEDBACK": ImportanceRule(0.7),
}


def first_importance(kind: MemoryKind, content: str, base: float | None = None) -> float:
    """Returns the importance of a new memory, 0 to 1, with bonuses for its words. base: the importance of an extraction
    rule, used instead of that of the kind."""
    rule = IMPORTANCE_RULES[kind]
    start = rule.base if base is None else base
    total = start + sum(modifier.bonus for modifier in rule.modifiers if modifier.pattern.search(content))
    return min(1.0, max(0.0, total))


Tier = Literal["WORKING", "SHORT", "LONG", "ARCHIVE"]
Fate = Literal["keep", "archive", "delete", "expire"]
SECONDS_A_DAY = 86_400


@dataclass(frozen=True, slots=True)
class Policy:
    """The parameters of decay and tiers. decay_rate: importance lost per day. freshness_rate: rate of the exponential,
    per day. tiers: the lowest total of each tier.

    floor: the lowest importance that decay leads to. access_boost: importance that an access adds, up to
    max_access_boost in all.
    """

    enabled: bool = True
    importance_weight: float = 0.4
    freshness_weight: float = 0.3
    confidence_weight: float = 0.3
    freshness_rate: float = 0.1
    access_bonus: float = 0.01
    max_access_bonus: float = 0.1
    tiers: tuple[tuple[float, Tier], ...] = ((0.8, "WORKING"), (0.5, "SHORT"), (0.2, "LONG"))
    decay_rate: float = 0.01
    floor: float = 0.1
    access_boost: float = 0.02
    max_access_boost: float = 0.3
    archive_threshold: float = 0.2
    archive_after_days: int = 180
    delete_after_days: int = 365

    @classmethod
    def of(cls, settings: Settings) -> "Policy":
        return cls(
            enabled=settings.decay_enabled,
            decay_rate=settings.decay_rate,
            archive_threshold=settings.archive_threshold,
            archive_after_days=settings.archive_after_days,
            delete_after_days=settings.delete_after_days,
        )


SEED = Policy()


class PolicyValues(Protocol):
    """The values that the policy needs; a row of the read model has them."""

    @property
    def importance(self) -> float: ...
    @property
    def importance_at(self) -> datetime: ...
    @property
    def confidence(self) -> float: ...
    @property
    def access_count(self) -> int: ...
    @property
    def last_accessed_at(self) -> datetime | None: ...
    @property
    def confirmed_at(self) -> datetime: ...
    @property
    def expires_at(self) -> datetime | None: ...


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a memory. total: the weighted sum of importance, freshness and confidence, plus access_bonus, at
    most 1. The parts are given without their weights, each 0 to 1."""

    total: float
    importance: float
    freshness: float
    confidence: float
    access_bonus: float
    tier: Tier


def importance_at(importance: float, since: datetime, now: datetime, policy: Policy = SEED) -> float:
    """Returns the importance at `now` of a memory with `importance` at `since`.

    Decay is linear, down to the floor; an importance below the floor does not decay. Decaying in two steps has the same
    result as in one. If `now` is before `since`, nothing changes.
    """
    start = _share(importance)
    if not policy.enabled:
        return start
    return max(min(policy.floor, start), start - policy.decay_rate * _days(since, now))


def importance_now(memory: PolicyValues, now: datetime, policy: Policy = SEED) -> float:
    """Returns the current importance of a row: increased by its accesses, reduced by decay."""
    boost = min(memory.access_count * policy.access_boost, policy.max_access_boost)
    return importance_at(memory.importance + boost, memory.importance_at, now, policy)


def freshness(at: datetime, now: datetime, policy: Policy = SEED) -> float:
    """Returns exp(-freshness_rate · days) for the days since `at`: 1 at first and, with the usual rate of 0.1, 0.37
    after ten days."""
    return math.exp(-policy.freshness_rate * _days(at, now))


def score(memory: PolicyValues, now: datetime, policy: Policy = SEED) -> Score:
    left, fresh, sure = (
        importance_now(memory, now, policy),
        freshness(memory.confirmed_at, now, policy),
        memory.confidence,
    )
    bonus = min(policy.max_access_bonus, policy.access_bonus * memory.access_count)
    weighed = policy.importance_weight * left + policy.freshness_weight * fresh + policy.confidence_weight * sure
    total = _share(weighed + bonus)
    return Score(total, left, fresh, sure, bonus, tier_of(total, policy))


def tier_of(total: float, policy: Policy = SEED) -> Tier:
    return next((tier for least, tier in policy.tiers if total >= least), "ARCHIVE")


def fate(memory: PolicyValues, now: datetime, policy: Policy = SEED) -> Fate:
    """Returns the action of the daily job for a memory. Its age counts from the time when it was last said, recorded,
    rated or read, so that memories from an old imported conversation are not deleted the next night.

    A time to live always ends a memory; if the policy is disabled, nothing else does.
    """
    if memory.expires_at is not None and memory.expires_at <= now:
        return "expire"
    if not policy.enabled:
        return "keep"
    age = _days(touched_at(memory), now)
    if age > policy.delete_after_days:
        return "delete"
    faint = importance_now(memory, now, policy) < policy.archive_threshold
    return "archive" if faint or age > policy.archive_after_days else "keep"


def touched_at(memory: PolicyValues) -> datetime:
    """Returns the time when a memory was last said, recorded, rated or read."""
    return max(memory.confirmed_at, memory.importance_at, memory.last_accessed_at or memory.confirmed_at)


def _days(since: datetime, now: datetime) -> float:
    return max(0.0, (now - since).total_seconds() / SECONDS_A_DAY)


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))
