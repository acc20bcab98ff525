"""The interface of an open turnlog: threads, recall, and memories of people."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Unpack
from uuid import UUID

from turnlog._recording import Exchange
from turnlog._thread import Thread
from turnlog.agent.conversations import threads
from turnlog.agent.conversations.threads import ThreadInfo
from turnlog.agent.counting import counted
from turnlog.agent.memory import entities, memories, memory_changes, preferences
from turnlog.agent.memory.deciding.outcomes import Outcome
from turnlog.agent.memory.entities import EntityFound
from turnlog.agent.memory.memories import ALL, MemoryFilter, MemoryView
from turnlog.agent.memory.memory_changes import Edited, MemoryInput
from turnlog.agent.memory.sanitiser.sanitise import SanitiseLevel
from turnlog.agent.operations.importers import Defaults
from turnlog.agent.operations.importing import (
    ImportReport,
    ImportRequest,
    check_import,
    import_conversations,
    prepare_import,
)
from turnlog.agent.privacy import personal_data
from turnlog.agent.privacy.erasure.erasure_receipt import Receipt
from turnlog.agent.privacy.personal_data import Clearing, Parts
from turnlog.agent.recall.profile import TOKENS, Profile, profile
from turnlog.agent.recall.recall import Found, recall
from turnlog.agent.runtime import Runtime
from turnlog.agent.team import agents
from turnlog.agent.team.agents import AgentChanges
from turnlog.consumers.erasing import erasure_reach
from turnlog.consumers.sync_bridge import LoopBound
from turnlog.events.contracts import MemoryKind, UserPreferences
from turnlog.events.errors import TurnlogError
from turnlog.events.progress import no_progress
from turnlog.events.subjects import check_conversation, check_id
from turnlog.projectors.models.operations.agents import AgentRow

LOOK_AGAIN_S = 0.1
Level = Literal["light", "moderate", "full"]


class NotSettled(TurnlogError):
    """Memories were not extracted in time from a user's words."""

    code = "not-settled"


class Memory(LoopBound):
    """The memory of a tenant, open during its block; `turnlog.open` makes it.

    runtime: log, pool, models and settings, for functions that this class does not offer. exchanges: running exchanges
    of wrapped clients.
    """

    __slots__ = ("_closes", "exchanges", "runtime", "tenant")
    _closes: Callable[[], Awaitable[None]]

    def __init__(self, runtime: Runtime, tenant: str) -> None:
        self.runtime, self.tenant = runtime, tenant
        self.exchanges: set[Exchange] = set()

    def __repr__(self) -> str:
        return f"<turnlog memory of tenant {self.tenant!r}>"

    def thread(self, id: str, user: str | None = None) -> Thread:
        """Returns a conversation to continue or to begin. user: the user who speaks in it. Raises InvalidToken."""
        check_conversation(id)
        if user is not None:
            check_id("user", user)
        return self._thread(id, user)

    async def threads(
        self, user: str | None = None, limit: int = 100, after: Sequence[ThreadInfo] = ()
    ) -> list[ThreadInfo]:
        """Returns conversations of one user or all, most recently active first. after: the previous page, to get the
        next one.
        """
        position = (after[-1].last_active_at, after[-1].thread) if after else None
        return await threads.list_threads(self.runtime, self.tenant, user, limit, position)

    async def recall(
        self,
        query: str,
        *,
        user: str | None = None,
        thread: str | None = None,
        topic: str | None = None,
        speaker: str | None = None,
        k: int = 5,
        as_of: datetime | None = None,
        history: bool = False,
        max_tokens: int | None = None,
        kinds: Sequence[MemoryKind] = (),
        min_importance: float = 0.0,
        keyword_only: bool = False,
    ) -> Found:
        """Returns the k turns of a thread, or of all threads of a user, that the query is about; with a user, k
        memories too.

        Searches by meaning, words, names and dates; `degraded` says why it was done without vectors. topic: only turns
        with this topic, no memories; speaker: only turns of a speaker with this name, or of this user, no memories.
        as_of: only memories, those valid at that time; history: also memories that have ended. kinds, min_importance:
        only memories, of these kinds and with at least that current importance. keyword_only: compares only words, not
        vectors. Raises BadQuery, NotFound, InvalidMemory.
        """
        asked = {
            "thread": thread,
            "topic": topic,
            "speaker": speaker,
            "k": k,
            "as_of": as_of,
            "history": history,
            "max_tokens": max_tokens,
            "keyword_only": keyword_only,
        }
        return await self._recall(query, user, asked | {"kinds": list(kinds), "min_importance": min_importance})

    async def remember(self, user: str, memory: str | MemoryInput, *, memory_id: UUID | None = None) -> Outcome:
        """Stores one claim about a user. A memory that contradicts it ends, or the user is asked. memory_id: repeated
        calls with the same id store it once.

        Raises InvalidMemory.
        """
        return await memory_changes.remember(self.runtime, self.tenant, user, memory, memory_id)

    async def memories(
        self, user: str, which: MemoryFilter = ALL, limit: int = 100, after: Sequence[MemoryView] = ()
    ) -> list[MemoryView]:
        """Returns what is remembered about a user: the most recently said memories, best score first. after: the
        previous page, to get memories said earlier."""
        position = memories.last_said(after) if after else None
        return await memories.list_memories(self.runtime, self.tenant, user, which, limit, position)

    async def profile(self, user: str, *, as_of: datetime | None = None, max_tokens: int = TOKENS) -> Profile:
        """Returns who a user is: what is true of them now, or was at a moment, in groups, most important first.
        max_tokens: the most tokens of its `text`. Raises InvalidMemory."""
        return await profile(self.runtime, self.tenant, user, as_of, max_tokens)

    async def forget(self, user: str, memory: str | UUID) -> tuple[UUID, ...]:
        """Removes the content of a memory and of all with the same words, and returns their ids. A newer version of the
        memory stays.

        memory: an id, the beginning of an id, or words that only this memory contains. Raises NotFound,
        AmbiguousMemory.
        """
        return (await memory_changes.forget_memory(self.runtime, self.tenant, user, str(memory))).forgotten

    async def edit(self, user: str, memory: UUID, content: str) -> Edited:
        """Changes the words of a memory; its history keeps the earlier version. Raises NotFound, InvalidMemory."""
        return await memory_changes.edit_memory(self.runtime, self.tenant, user, str(memory), content)

    async def settled(self, user: str, timeout_s: float = 60.0) -> None:
        """Waits until memories have been extracted from all that the user has said so far. Raises NotSettled."""
        until = time.monotonic() + timeout_s
        while waiting := await self._waiting(user):
            if time.monotonic() > until:
                said = f"{counted(waiting, 'turn')} of {user!r} not read after {timeout_s:g} s"
                raise NotSettled(f"{said}; does a process with the role `reactors` run?")
            await asyncio.sleep(LOOK_AGAIN_S)

    async def preferences(self, user: str) -> UserPreferences:
        """Returns how the user wants to be answered: each preference as set by hand, otherwise as the user last said
        it."""
        return await preferences.show_preferences(self.runtime, self.tenant, user)

    async def set_preferences(self, user: str, *, clear: Sequence[str] = (), **values: Any) -> UserPreferences:
        """Sets preferences by the names of UserPreferences, such as `language="zh"`; others stay as they are.

        clear: names of preferences to remove. Raises InvalidPreference.
        """
        return await preferences.set_preferences(self.runtime, self.tenant, user, values, clear)

    async def entities(self, user: str, type: str | None = None, limit: int = 100) -> list[EntityFound]:
        """Returns people, schools, events and topics that the user spoke of, most mentioned first. type: only of this
        type.
        """
        return await entities.list_entities(self.runtime, self.tenant, user, type, limit)

    async def export(self, user: str, level: Level = "moderate") -> dict[str, Any]:
        """Returns all that is stored of a user, as docs/user-export.schema.json describes it. level: which personal
        details are masked."""
        masked = SanitiseLevel[level.upper()]
        pieces = [piece async for piece in personal_data.export_person(self.runtime, self.tenant, user, masked)]
        return dict(json.loads("".join(pieces)))

    async def agents(self) -> list[AgentRow]:
        """Returns the tenant's agents by type, with the values in use."""
        return await agents.list_agents(self.runtime, self.tenant)

    async def change_agent(self, type: str, **changes: Unpack[AgentChanges]) -> AgentRow:
        """Changes an agent, or creates it, from the next answer on; values that are not named stay.

        changes: system_prompt, temperature, max_tokens, model, name, tools, delegates; None restores the value of the
        team's files or of the settings. Raises InvalidAgent.
        """
        return await agents.change_agent(self.runtime, self.tenant, type, changes)

    async def switch_agent(self, type: str, enabled: bool) -> AgentRow:
        """Switches an agent on or off. While it is off, requests that name it are refused, and no question is routed or
        handed to it.

        Raises NotFound, InvalidAgent.
        """
        agents.checked(type, {})
        return await agents.switch_agent(self.runtime, self.tenant, type, enabled)

    async def import_file(
        self,
        path: str | Path,
        *,
        user: str | None = None,
        format: str | None = None,
        thread: str | None = None,
        dry_run: bool = False,
    ) -> ImportReport:
        """Imports an export of another product, or turnlog's JSONL; the same file again adds nothing.

        user: owner of the turns, which go into conversations of this user alone; by default the users that the file
        names. thread: the conversation for all turns. dry_run: only reports what is in the file. Raises ImportFailed,
        InvalidToken.
        """
        return await self._import(Path(path), user, format, thread, dry_run)

    async def clear(
        self, user: str, *, memories: bool = False, conversations: bool = False, entities: bool = False
    ) -> Clearing:
        """Removes these parts of a person's data from every read model, and returns what it removed.

        The log keeps the events, and the person's key still opens them; only `erase` makes them unreadable.
        Conversations in which others speak stay. Raises NothingNamed.
        """
        parts = Parts(memories, conversations, entities)
        return await personal_data.clear_person(self.runtime, self.tenant, user, parts)

    async def erase(self, user: str, reason: str | None = None) -> Receipt:
        """Erases a person: keys, rows, caches, archives and what is readable in the log, then searches for remains.

        The receipt's `hits` is empty if nothing is left. An interrupted call can be repeated. Raises NotFound for a
        user without data, KeyUnavailable.
        """
        reach = erasure_reach(self.runtime.settings)
        plan = await personal_data.plan_erasure(self.runtime, self.tenant, user, reach)
        return await personal_data.erase_person(self.runtime, plan, reach, reason)

    async def close(self) -> None:
        """Closes a memory that `start` opened, or ends a block early. A second call does nothing."""
        await self._closes()

    async def _waiting(self, user: str) -> int:
        return await memories.waiting_turns(self.runtime, self.tenant, user)

    async def _close(self) -> None:
        """Records the received parts of running answers."""
        for exchange in self.exchanges:
            exchange.stop()
        if self.exchanges:
            await asyncio.wait([exchange.task for exchange in self.exchanges])

    async def _import(
        self, path: Path, user: str | None, format: str | None, thread: str | None, dry_run: bool
    ) -> ImportReport:
        defaults = Defaults(tenant=self.tenant, user=user, thread=thread)
        prepared = await asyncio.to_thread(prepare_import, ImportRequest(path, format, defaults, own=user is not None))
        if dry_run:
            return await asyncio.to_thread(check_import, prepared)
        return await import_conversations(self.runtime, prepared, no_progress, no_progress, no_progress)

    def _thread(self, id: str, user: str | None) -> Thread:
        return Thread(self.runtime, self.tenant, id, user)

    async def _recall(self, query: str, user: str | None, asked: dict[str, Any]) -> Found:
        """Recalls turns and memories. asked: arguments of `recall`, by name."""
        if asked["thread"] is not None:
            asked["thread"] = await self._thread(asked["thread"], user)._own("reader")
        return await recall(self.runtime, self.tenant, query, user=user, **asked)
