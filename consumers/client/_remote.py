"""The methods of Memory and Thread, over the HTTP routes of a server."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Unpack
from urllib.parse import quote
from uuid import UUID, uuid5

from pydantic.alias_generators import to_camel, to_snake
from pydantic_core import to_jsonable_python

from turnlog._http import Http, Turn, decoded, error_of
from turnlog._memory import LOOK_AGAIN_S, Level, Memory
from turnlog._thread import Context, Thread
from turnlog.agent.answering.asking import Answered, AnswerPiece, Restarted, Text, ToolUsed
from turnlog.agent.answering.context import AnswerBasis, ReceiptFound, SignedBasis
from turnlog.agent.answering.receipts import ReceiptGone
from turnlog.agent.answering.turns import NewTurn
from turnlog.agent.context import Tier
from turnlog.agent.conversations.forks import Forked
from turnlog.agent.conversations.participants import Participant
from turnlog.agent.conversations.sessions.value import SessionValue
from turnlog.agent.conversations.threads import ThreadInfo
from turnlog.agent.memory.deciding.outcomes import Outcome
from turnlog.agent.memory.entities import EntityFound
from turnlog.agent.memory.memories import ALL, Extraction, MemoryFilter, MemoryView
from turnlog.agent.memory.memory_changes import Edited, Forgotten, MemoryInput
from turnlog.agent.operations.importers import ImportFailed
from turnlog.agent.operations.importing import ImportReport
from turnlog.agent.privacy.erasure.erasure_receipt import Receipt
from turnlog.agent.privacy.personal_data import Clearing
from turnlog.agent.privacy.redaction.redact import RedactionPreview, RedactionReceipt
from turnlog.agent.recall.best_turns import Recalled
from turnlog.agent.recall.profile import TOKENS, Profile
from turnlog.agent.recall.questions import QuestionAnalysis
from turnlog.agent.recall.recall import Found, FoundMemory
from turnlog.agent.team.agents import AgentChanges, checked
from turnlog.consumers.cursors import memories_cursor, threads_cursor
from turnlog.events.contracts import ParticipantRole, UsageMetered, UserPreferences
from turnlog.events.publish import Appended
from turnlog.projectors.models.conversation.message import Message
from turnlog.projectors.models.operations.agents import AgentRow

ALL_OF_THEM = 2**31
AGENTS = "/admin/ai-agent/agents"


class RemoteThread(Thread):
    """A conversation on a server."""

    __slots__ = ("_http", "_path")

    def __init__(self, http: Http, id: str, user: str | None) -> None:
        self._http, self.id, self.user = http, id, user
        self._path = f"/api/threads/{_in_path(id)}"

    async def _append(
        self,
        made: Sequence[NewTurn],
        receipt: AnswerBasis | None,
        expected: int | None,
        usage: UsageMetered | None = None,
    ) -> list[Appended]:
        turns = [_body(turn) for turn in made]
        id_ = receipt.id if isinstance(receipt, SignedBasis) else None

        async def append(sent: AnswerBasis | UUID | None, write_id: UUID | None) -> list[Appended]:
            body = to_jsonable_python({"turns": turns, "receipt": sent, "expected": expected, "usage": usage})
            path = f"{self._path}/turns"
            return await self._http.call("POST", path, list[Appended], user=self.user, body=body, write_id=write_id)

        try:
            return await append(id_ or receipt, made[0].id if made else None)
        except ReceiptGone:  # the server no longer keeps the receipt; a changed body needs a new key
            return await append(receipt, uuid5(made[0].id, "whole receipt"))

    async def _context(self, asked: dict[str, Any], through: int | None = None) -> Context:
        made = await self._http.call("POST", f"{self._path}/context", dict[str, Any], user=self.user, body=asked)
        tiers = decoded(tuple[Tier, ...], made["tiers"])
        receipt = decoded(SignedBasis, made["receipt"])
        return Context(made["messages"], tiers, made["budget"], receipt, made["degraded"])

    @asynccontextmanager
    async def _turn(self, fork: Callable[[], Awaitable[Any]]) -> AsyncIterator[Thread | None]:
        """Does what Thread._turn does, but orders only the answers of this program."""
        forked, turn = None, self._http.turns.setdefault(self._path, Turn())
        async with turn.changed:
            while turn.is_taken and (forked := await fork()) is None:
                await turn.changed.wait()
            turn.is_taken = turn.is_taken or forked is None
        try:
            yield forked
        finally:
            if forked is None:
                turn.is_taken = False
                await self._tell_waiting()

    async def _tell_waiting(self) -> None:
        if (turn := self._http.turns.get(self._path)) is not None:
            async with turn.changed:
                turn.changed.notify_all()

    async def _own(self, least: ParticipantRole = "owner", *, begins: bool = False) -> str:
        """Returns the thread's name, by which the server finds it."""
        return self.id

    async def receipts(self) -> list[ReceiptFound]:
        return await self._http.pages(f"{self._path}/receipts", ReceiptFound, ALL_OF_THEM, self.user)

    async def fork(self, at_seq: int, *, thread: str | None = None, label: str | None = None) -> Thread:
        body = {"at_seq": at_seq, "thread": thread, "label": label}
        forked = await self._http.call("POST", f"{self._path}/forks", Forked, user=self.user, body=body)
        return RemoteThread(self._http, forked.thread, self.user)

    async def _answer(self, text: str, model: str | None, agent: str | None) -> AsyncGenerator[AnswerPiece]:
        body = {"message": text, "model": model, "agent": agent}
        async with aclosing(self._http.events(f"{self._path}/answers", body, self.user, ("done",))) as events:
            async for event in events:
                if piece := _PIECES.get(event.event):
                    yield piece(json.loads(event.data))

    async def messages(
        self, *, limit: int = 1_000, after_seq: int = 0, before_seq: int | None = None, newest: bool = False
    ) -> list[Message]:
        between: dict[str, Any] = {"after_seq": after_seq, "before_seq": before_seq, "newest": newest}
        return await self._http.pages(f"{self._path}/turns", Message, limit, self.user, **between)

    async def info(self) -> ThreadInfo:
        return await self._http.call("GET", self._path, ThreadInfo, user=self.user)

    async def participants(self) -> list[Participant]:
        return await self._http.call("GET", f"{self._path}/participants", list[Participant], user=self.user)

    async def share(self, user: str, *, name: str | None = None, role: ParticipantRole = "member") -> Participant:
        return await self._set_participant(user, {"name": name, "role": role})

    async def join(self, *, name: str | None = None) -> Participant:
        return await self._set_participant(self.user or await self._own_user(), {"name": name})

    async def _own_user(self) -> str:
        return str((await self._http.call("GET", "/api/caller", dict[str, Any]))["user"])

    async def _set_participant(self, user: str, body: dict[str, Any]) -> Participant:
        path = f"{self._path}/participants/{_in_path(user)}"
        return await self._http.call("PUT", path, Participant, user=self.user, body=body)

    async def unshare(self, user: str) -> None:
        path = f"{self._path}/participants/{_in_path(user)}"
        await self._http.call("DELETE", path, type(None), user=self.user)

    async def begin_session(
        self, *, window: int | None = None, threshold: float | None = None, recent_turns: int | None = None
    ) -> SessionValue:
        body = {"window": window, "threshold": threshold, "recent_turns": recent_turns}
        return await self._http.call("PUT", f"{self._path}/session", SessionValue, user=self.user, body=body)

    async def session(self) -> SessionValue:
        return await self._http.call("GET", f"{self._path}/session", SessionValue, user=self.user)

    async def set_session(
        self,
        *,
        agent: str | None = None,
        global_state: dict[str, Any] | None = None,
        user_snapshot: dict[str, Any] | None = None,
    ) -> SessionValue:
        body = {"current_agent_key": agent, "global_state": global_state, "user_snapshot": user_snapshot}
        return await self._http.call("PATCH", f"{self._path}/session", SessionValue, user=self.user, body=body)

    async def rename(self, label: str) -> None:
        await self._http.call("PATCH", self._path, ThreadInfo, user=self.user, body={"label": label})

    async def label(self) -> str:
        known = await self._http.call("POST", f"{self._path}/label", ThreadInfo, user=self.user)
        return known.label or ""

    async def delete(self) -> None:
        await self._http.call("DELETE", self._path, type(None), user=self.user)

    async def preview_redaction(self, seq: int, words: str | None = None, *, whole: bool = False) -> RedactionPreview:
        body, path = {"words": words, "whole": whole}, f"{self._path}/turns/{seq}/redact/preview"
        return await self._http.call("POST", path, RedactionPreview, user=self.user, body=body)

    async def redact(
        self, seq: int, words: str | None = None, *, whole: bool = False, reason: str | None = None
    ) -> RedactionReceipt:
        body, path = {"words": words, "whole": whole, "reason": reason}, f"{self._path}/turns/{seq}/redact"
        job = await self._http.call("POST", path, dict[str, Any], user=self.user, body=body)
        return decoded(RedactionReceipt, await _result(self._http, job, self.user))


# Event of an answer's stream → its piece; other events are ignored.
_PIECES: dict[str | None, Callable[[Any], AnswerPiece]] = {
    "content": lambda data: Text(data["chunk"]),
    "restart": lambda _: Restarted(),
    "tool_start": lambda data: ToolUsed(data["id"], data["name"], data["args"]),
    "done": lambda data: decoded(Answered, data["response"]),
}


class RemoteMemory(Memory):
    """The memory of a server. user: None means the user of the token; a key with act-as-user may name another one."""

    __slots__ = ("_http",)

    def __init__(self, http: Http) -> None:
        self._http, self.exchanges = http, set()

    def __repr__(self) -> str:
        return f"<turnlog memory of {self._http.url}>"

    def _thread(self, id: str, user: str | None) -> RemoteThread:
        return RemoteThread(self._http, id, user)

    async def threads(
        self, user: str | None = None, limit: int = 100, after: Sequence[ThreadInfo] = ()
    ) -> list[ThreadInfo]:
        cursor = threads_cursor(after) if after else None
        return await self._http.pages("/api/threads", ThreadInfo, limit, user, cursor)

    async def _recall(self, query: str, user: str | None, asked: dict[str, Any]) -> Found:
        body = to_jsonable_python({"query": query, **asked, "explain": True})
        recalled = await self._http.call("POST", "/api/recall", dict[str, Any], user=user, body=body)
        return Found(
            decoded(list[Recalled], recalled["items"]),
            [
                FoundMemory(decoded(MemoryView, memory), memory["relevance"], memory["explain"])
                for memory in recalled["memories"]
            ],
            recalled["degraded"],
            recalled["memories_degraded"],
            None if recalled["question"] is None else decoded(QuestionAnalysis, recalled["question"]),
            recalled["confidence"],
        )

    async def remember(self, user: str | None, memory: str | MemoryInput, *, memory_id: UUID | None = None) -> Outcome:
        body = to_jsonable_python(asdict(MemoryInput(memory) if isinstance(memory, str) else memory))
        return await self._http.call("POST", "/api/memories", Outcome, user=user, body=body, write_id=memory_id)

    async def memories(
        self,
        user: str | None = None,
        which: MemoryFilter = ALL,
        limit: int = 100,
        after: Sequence[MemoryView] = (),
    ) -> list[MemoryView]:
        asked = to_jsonable_python(asdict(which))
        params = {"kind": asked.pop("kinds"), **asked}
        cursor = memories_cursor(after) if after else None
        known = await self._http.pages("/api/memories", MemoryView, limit, user, cursor, **params)
        return sorted(known, key=lambda memory: -memory.score.total)

    async def profile(
        self, user: str | None = None, *, as_of: datetime | None = None, max_tokens: int = TOKENS
    ) -> Profile:
        params = to_jsonable_python({"as_of": as_of, "max_tokens": max_tokens})
        return await self._http.call("GET", "/api/profile", Profile, user=user, params=params)

    async def forget(self, user: str | None, memory: str | UUID) -> tuple[UUID, ...]:
        body = {"memory": str(memory)}
        done = await self._http.call("POST", "/api/memories/forget", Forgotten, user=user, body=body)
        return done.forgotten

    async def edit(self, user: str | None, memory: UUID, content: str) -> Edited:
        body, path = {"content": content}, f"/api/memories/{memory}/content"
        return await self._http.call("PUT", path, Edited, user=user, body=body)

    async def _waiting(self, user: str | None) -> int:
        return (await self._http.call("GET", "/api/extraction", Extraction, user=user)).waiting

    async def preferences(self, user: str | None = None) -> UserPreferences:
        return await self._http.call("GET", "/api/preferences", UserPreferences, user=user)

    async def set_preferences(
        self, user: str | None = None, *, clear: Sequence[str] = (), **values: Any
    ) -> UserPreferences:
        body = {"set": values, "clear": list(clear)}
        return await self._http.call("PATCH", "/api/preferences", UserPreferences, user=user, body=body)

    async def entities(self, user: str | None = None, type: str | None = None, limit: int = 100) -> list[EntityFound]:
        return await self._http.pages("/api/entities", EntityFound, limit, user, type=type)

    async def export(self, user: str | None = None, level: Level = "moderate") -> dict[str, Any]:
        job = await self._http.call("POST", "/api/export", dict[str, Any], user=user, body={"level": level})
        await _result(self._http, job, user)
        return await self._http.call("GET", f"/api/export/{job['id']}", dict[str, Any], user=user)

    async def clear(
        self,
        user: str | None = None,
        *,
        memories: bool = False,
        conversations: bool = False,
        entities: bool = False,
    ) -> Clearing:
        named = {"includeMemories": memories, "includeConversations": conversations, "includeEntities": entities}
        return await self._http.call("DELETE", "/api/user-data", Clearing, user=user, params=named)

    async def agents(self) -> list[AgentRow]:
        return [_agent(known) for known in await self._http.call("GET", AGENTS, list[dict[str, Any]])]

    async def change_agent(self, type: str, **changes: Unpack[AgentChanges]) -> AgentRow:
        checked(type, changes)
        body = {to_camel(name): value for name, value in changes.items()}
        return _agent(await self._http.call("PATCH", f"{AGENTS}/{type}", dict[str, Any], body=body))

    async def switch_agent(self, type: str, enabled: bool) -> AgentRow:
        checked(type, {})
        body = {"enabled": enabled}
        return _agent(await self._http.call("PUT", f"{AGENTS}/{type}/toggle", dict[str, Any], body=body))

    async def erase(self, user: str | None = None, reason: str | None = None) -> Receipt:
        job = await self._http.call("POST", "/api/erase", dict[str, Any], user=user, body={"reason": reason})
        return decoded(Receipt, await _result(self._http, job, user))

    async def _import(
        self, path: Path, user: str | None, format: str | None, thread: str | None, dry_run: bool
    ) -> ImportReport:
        try:
            body = await asyncio.to_thread(path.read_bytes)
        except OSError as error:
            raise ImportFailed(f"{path} cannot be read: {error.strerror}") from error
        name = re.sub(r"[^\w. ()-]|^\W", "_", path.name)[:60]
        params = {"name": name, "format": format, "thread": thread, "dry_run": dry_run}
        job = await self._http.call("POST", "/api/import", dict[str, Any], user=user, body=body, params=params)
        return decoded(ImportReport, await _result(self._http, job, user))


async def _result(http: Http, job: dict[str, Any], user: str | None) -> Any:
    """Waits until the job has ended. Raises its error."""
    while job["state"] == "running":
        await asyncio.sleep(LOOK_AGAIN_S)
        job = await http.call("GET", f"/api/jobs/{job['id']}", dict[str, Any], user=user)
    if job["state"] == "failed":
        raise error_of(job["error"])
    return job["result"]


def _agent(document: dict[str, Any]) -> AgentRow:
    return decoded(AgentRow, {to_snake(name): value for name, value in document.items()})


def _in_path(id: str) -> str:
    """Returns the id as one part of a path. Parts of dots alone would be resolved before the request is sent (RFC 3986,
    5.2.4)."""
    return id.replace(".", "%2E") if id in (".", "..") else quote(id, safe="")


def _body(turn: NewTurn) -> dict[str, Any]:
    return {name: value for name, value in asdict(turn).items() if name != "id"}
