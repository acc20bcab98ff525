"""How important a memory is when it is first said: its kind's base and what its words add (E 8.4)."""

import re
from dataclasses import dataclass

from turnlog.events.memory_contracts import MemoryKind


@dataclass(frozen=True, slots=True)
class Modifier:
    """bonus: importance that a content with the pattern gains."""

    pattern: re.Pattern[str]
    bonus: float


@dataclass(frozen=True, slots=True)
class ImportanceRule:
    base: float
    modifiers: tuple[Modifier, ...] = ()


def _says(pattern: str, bonus: float) -> Modifier:
    return Modifier(re.compile(pattern, re.IGNORECASE), bonus)


def _word(alternatives: str) -> str:
    """Latin words stand alone: "act" is not in "exactly". Chinese may touch them ("我的GPA是3.8")."""
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
    """0 to 1. base: an extraction rule's own in place of the kind's; what the words add comes on top."""
    rule = IMPORTANCE_RULES[kind]
    start = rule.base if base is None else base
    total = start + sum(modifier.bonus for modifier in rule.modifiers if modifier.pattern.search(content))
    return min(1.0, max(0.0, total))
