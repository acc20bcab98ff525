"""Makes a person's profile of a few lines: valid memories, grouped by subject, the most important first.

No line is written by a model: each is a memory, and refers to the words of the user and the turn that it comes from.
The same memories lead to the same profile, so that it can be requested as of any moment. The text that a model wrote
from the lines (profile_text.py) is included while all memories that it states are valid.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal
from uuid import UUID

from turnlog.agent.context import TokenCounter, counter_for
from turnlog.agent.context.titles import PROFILE
from turnlog.agent.memory.deciding.by_hand import InvalidMemory
from turnlog.agent.memory.memories import MemoryFilter, MemoryView, list_memories
from turnlog.agent.models.language import is_chinese
from turnlog.agent.recall.memory_block import one_line
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import MemoryKind, MemorySource
from turnlog.events.subjects import memory_thread
from turnlog.projectors.models.memories.lookup import is_memory_off
from turnlog.projectors.models.memories.profile_texts import ProfileText, profile_text

Group = Literal["person", "people", "work", "likes", "plans", "other"]
# The groups in their order, each with its heading in English and Chinese.
HEADINGS: dict[Group, tuple[str, str]] = {
    "person": ("Who they are", "个人情况"),
    "people": ("Family and pets", "家人与宠物"),
    "work": ("Work and education", "工作与学习"),
    "likes": ("What they like and how they live", "喜好与习惯"),
    "plans": ("Decisions and plans", "决定与计划"),
    "other": ("Also known", "其他"),
}
BY_CATEGORY: dict[str, Group] = {
    **dict.fromkeys(("person", "place", "contact", "language", "health", "document"), "person"),
    **dict.fromkeys(("family", "pet"), "people"),
    **dict.fromkeys(("work", "education", "academic", "test_score", "major", "activity", "learning"), "work"),
    **dict.fromkeys(
        ("taste", "diet", "hobby", "favourite", "habit", "communication", "answers", "possession"), "likes"
    ),
    **dict.fromkeys(("decision", "plan", "goal", "application", "target_school", "finance"), "plans"),
}
BY_KIND: dict[MemoryKind, Group] = {"PREFERENCE": "likes", "DECISION": "plans"}
TOKENS, LEAST_TOKENS, MOST_TOKENS = 400, 40, 4_000
MOST_READ = 1_000  # maximum number of memories to read, the most recently said ones


@dataclass(frozen=True, slots=True)
class ProfileLine:
    """One line of a profile. sources: the turns that say it, with the user's words; empty for a memory that was written
    by hand. since: when it became valid."""

    text: str
    memory: UUID
    kind: MemoryKind
    since: datetime
    sources: tuple[MemorySource, ...]


@dataclass(frozen=True, slots=True)
class ProfileGroup:
    name: Group
    heading: str
    lines: tuple[ProfileLine, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """A user's profile. text: the lines under their headings, for a prompt; "" if nothing is remembered. tokens: number
    of tokens in the text. as_of: the time of the profile; None means now. left_out: number of valid memories that did
    not fit. written: a text that a model wrote from the lines. None for a past time (`as_of`), and from the time when a
    memory that the text states is no longer valid until the text is written again."""

    user: str
    as_of: datetime | None
    text: str
    tokens: int
    groups: tuple[ProfileGroup, ...]
    left_out: int
    written: ProfileText | None = None


async def profile(
    runtime: Runtime,
    tenant: str,
    user: str,
    as_of: datetime | None = None,
    max_tokens: int = TOKENS,
    for_model: bool = False,
) -> Profile:
    """Returns a person's profile now, or as known at the moment `as_of`. max_tokens: limit of the text, counted as for
    the configured model. for_model: return an empty profile if the user does not allow memories in prompts.

    Raises InvalidToken, InvalidMemory for a limit that is too small or too large.
    """
    if not LEAST_TOKENS <= max_tokens <= MOST_TOKENS:
        raise InvalidMemory(f"a profile has {LEAST_TOKENS:,} to {MOST_TOKENS:,} tokens, not {max_tokens:,}")
    known = await list_memories(runtime, tenant, user, MemoryFilter(as_of=as_of), MOST_READ)
    async with runtime.reading("profile_texts") as conn:
        is_off = for_model and await is_memory_off(conn, tenant, memory_thread(user))
        written = await profile_text(conn, tenant, memory_thread(user)) if as_of is None else None
    told = [] if is_off else [memory for memory in known if memory.kind != "SUMMARY"]
    made = made_of(told, counter_for(runtime.settings.model), user, as_of, max_tokens)
    used = {id_ for sentence in (written.sentences if written else ()) for id_ in sentence.memories}
    holds = written and used <= {memory.id for memory in told}
    return replace(made, written=written) if holds else made


def made_of(
    memories: Sequence[MemoryView], counter: TokenCounter, user: str, as_of: datetime | None, max_tokens: int
) -> Profile:
    """Returns a profile of these memories. It contains the most important ones that fit, in each group the most
    important first."""
    by_importance = sorted(
        memories,
        key=lambda memory: (
            -memory.score.importance * memory.confidence,
            -memory.confirmed_at.timestamp(),
            str(memory.id),
        ),
    )
    headings = {name: pair[_are_chinese(memories)] for name, pair in HEADINGS.items()}
    lines: dict[Group, list[ProfileLine]] = {name: [] for name in HEADINGS}
    left = max_tokens - counter.text(f"{PROFILE}\n")
    for memory in by_importance:
        name, words = group_of(memory), one_line(memory.content, counter)
        cost = counter.text(f"- {words}\n") + (0 if lines[name] else counter.text(f"{headings[name]}:\n"))
        if cost <= left:
            left -= cost
            lines[name].append(ProfileLine(words, memory.id, memory.kind, memory.said_from, tuple(memory.sources)))
    groups = tuple(ProfileGroup(name, headings[name], tuple(shown)) for name, shown in lines.items() if shown)
    text = _text(groups)
    left_out = len(memories) - sum(len(group.lines) for group in groups)
    return Profile(user, as_of, text, counter.text(text), groups, left_out)


def group_of(memory: MemoryView) -> Group:
    return BY_CATEGORY.get(memory.category or "") or BY_KIND.get(memory.kind, "other")


def _are_chinese(memories: Sequence[MemoryView]) -> bool:
    return 2 * sum(is_chinese(memory.content) for memory in memories) > len(memories)


def _text(groups: Sequence[ProfileGroup]) -> str:
    if not groups:
        return ""
    parts = [PROFILE]
    for group in groups:
        parts += [f"{group.heading}:", *(f"- {line.text}" for line in group.lines)]
    return "\n".join(parts)
