"""turnlog's tools for models. No tool has a parameter for tenant or user, because an injected prompt could set it."""

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from typing import Annotated, Any, TypeVar
from uuid import UUID

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.types import Resource, ToolAnnotations
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic_core import to_json

from turnlog.agent.access.throttle.fair_share import in_share
from turnlog.agent.answering.context import context_as_of, context_of
from turnlog.agent.answering.recall_tool import UNSURE
from turnlog.agent.conversations import threads
from turnlog.agent.memory import memory_changes
from turnlog.agent.memory.memories import MemoryView
from turnlog.agent.recall import profile as profiles
from turnlog.agent.recall.recall import recall as search
from turnlog.consumers.api.mcp.forgiving import ForgivingTool
from turnlog.consumers.api.pages import page_of, place_of
from turnlog.consumers.api.principal import Principal
from turnlog.consumers.api.routes.memories import list_memories
from turnlog.events.contracts import MemoryKind
from turnlog.events.errors import TurnlogError
from turnlog.events.local_time import local, now_there
from turnlog.projectors.models.memories.lookup import zone_of

T = TypeVar("T")
CALLER = "turnlog.caller"
PATIENCE_S = 60.0
MOST_TURNS = 100
MOST_MEMORIES = 100
PROFILE_TYPE = "application/json"
READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
DROPS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
Moment = Annotated[
    datetime,
    Field(
        description="A time such as 2026-05-08T14:30:00Z. A date alone means its first moment in the person's time zone"
    ),
]
MOMENTS: TypeAdapter[datetime] = TypeAdapter(Moment)
Limit = Annotated[int, Field(ge=1, le=100)]
Cursor = Annotated[str | None, Field(description="`next` of the previous page")]


class Remembered(BaseModel):
    """The result of remembering. what: recorded, confirmed (it was said before), ended (another memory replaces it),
    asked (the user has to decide) or known (it was recorded already).
    """

    memory_id: UUID
    what: str
    question: str | None = None


class FoundTurn(BaseModel):
    thread_id: str
    seq: int
    speaker: str
    time: datetime
    text: str


class FoundMemory(BaseModel):
    memory_id: UUID
    kind: str
    content: str
    valid_from: datetime


class Found(BaseModel):
    """Turns and memories, best first. confidence: the probability, 0 to 1, that one of them answers the question; null
    if that cannot be judged.
    """

    turns: list[FoundTurn]
    memories: list[FoundMemory]
    confidence: float | None = None
    note: str | None = None


class Messages(BaseModel):
    """Messages in the form of the OpenAI chat API."""

    messages: list[dict[str, Any]]


class Conversation(BaseModel):
    thread_id: str
    label: str | None
    messages: int
    last_active_at: datetime


class Conversations(BaseModel):
    """Conversations, most recently active first. next: cursor of the next page."""

    threads: list[Conversation]
    next: str | None


class Memories(BaseModel):
    memories: list[FoundMemory]
    next: str | None


class Forgotten(BaseModel):
    """Ids of all forgotten memories, including those with the same words. newer: the latest version of the memory, if
    it replaced the forgotten one and therefore stays."""

    forgotten: list[UUID]
    newer: UUID | None


@dataclass(frozen=True, slots=True)
class _Tools:
    """The tools of one MCP server. fixed: the caller on stdio; over HTTP, each request has its own."""

    fixed: Principal | None

    def caller(self, context: Context[Any, Any], scope: str) -> Principal:
        request: Any = context.request_context.request
        caller: Principal = self.fixed or request.scope[CALLER]
        caller.identity.require(scope)
        return caller

    @asynccontextmanager
    async def reader(self, context: Context[Any, Any]) -> AsyncIterator[Principal]:
        """Waits until the caller may read, because each user has only some reads at a time; yields the caller."""
        caller = self.caller(context, "read")
        async with in_share(*caller.person, "reads"):
            yield caller

    async def remember(self, text: str, context: Context[Any, Any]) -> Remembered:
        """Stores one fact, preference or decision. Recall finds it by its words at once, by its meaning some seconds
        later.
        """
        who = self.caller(context, "write")
        done = await memory_changes.remember(*who.person, text)
        return Remembered(memory_id=done.memory_id, what=done.what, question=done.question)

    async def recall(
        self,
        query: str,
        context: Context[Any, Any],
        k: Limit = 5,
        thread_id: str | None = None,
        speaker: str | None = None,
        before: Moment | None = None,
        after: Moment | None = None,
    ) -> Found:
        """Finds what was said and what is remembered, by meaning, words, names and dates. before, after: of turns.
        speaker: only turns of a speaker with this name, and no memories."""
        async with self.reader(context) as who:
            if thread_id is not None:
                *_, thread_id = await who.owns(thread_id, "reader")
            before, after = await _on_their_clock(who, before), await _on_their_clock(who, after)
            wanted = MOST_TURNS if before or after else k
            about: dict[str, Any] = {"user": who.user, "thread": thread_id, "speaker": speaker}
            recalled = await search(who.runtime, who.tenant, query, **about, k=wanted, for_model=True)
            turns = [
                FoundTurn(thread_id=turn.thread, seq=turn.seq, speaker=turn.speaker, time=turn.time, text=turn.text)
                for turn in recalled.turns
                if (before is None or turn.time < before) and (after is None or turn.time > after)
            ]
            by_words = None if turns or recalled.memories else recalled.memories_degraded or recalled.degraded
            return Found(
                turns=turns[:k],
                memories=[_memory(each.memory) for each in recalled.memories[:k]],
                confidence=recalled.confidence,
                note=UNSURE if recalled.is_unsure else by_words,
            )

    async def context(
        self,
        thread_id: str,
        context: Context[Any, Any],
        max_tokens: Annotated[int | None, Field(ge=64)] = None,
        as_of: Annotated[int | None, Field(ge=1, description="A sequence of the log")] = None,
    ) -> Messages:
        """Returns what a model should see of a conversation: a summary, condensed turns, and the newest turns in full.
        as_of: at this earlier moment.
        """
        async with self.reader(context) as who:
            place = await who.owns(thread_id, "reader" if as_of is None else "owner")
            if as_of is not None:
                return Messages(messages=(await context_as_of(*place, as_of, tokens=max_tokens)).context.messages)
            return Messages(messages=(await context_of(*place, user=who.user, tokens=max_tokens)).context.messages)

    async def threads(
        self, context: Context[Any, Any], query: str | None = None, limit: Limit = 20, cursor: Cursor = None
    ) -> Conversations:
        """Lists the user's conversations. query: only those with this text in their label or id."""
        after = place_of(cursor, datetime, str)
        async with self.reader(context) as who:
            listed = await threads.find_threads(*who.person, query, limit + 1, after)
            page = page_of(listed, limit, lambda thread: (thread.last_active_at.isoformat(), thread.thread))
            shown = [
                Conversation(
                    thread_id=thread.thread,
                    label=thread.label,
                    messages=thread.messages,
                    last_active_at=thread.last_active_at,
                )
                for thread in page.items
            ]
            return Conversations(threads=shown, next=page.next)

    async def memories(
        self,
        context: Context[Any, Any],
        type: MemoryKind | None = None,
        as_of: Moment | None = None,
        cursor: Cursor = None,
    ) -> Memories:
        """Lists the most recently said memories of the user, highest score first; the next page has those said earlier.
        as_of: memories that were valid at this time."""
        async with self.reader(context) as who:
            as_of = await _on_their_clock(who, as_of)
            page = await list_memories(who, [type] if type else None, as_of=as_of, limit=MOST_MEMORIES, cursor=cursor)
            return Memories(memories=[_memory(memory) for memory in page.items], next=page.next)

    async def forget(self, memory_id: UUID, context: Context[Any, Any]) -> Forgotten:
        """Forgets a memory, and all memories with the same words."""
        who = self.caller(context, "write")
        done = await memory_changes.forget_memory(*who.person, str(memory_id))
        return Forgotten(forgotten=list(done.forgotten), newer=done.newer)

    async def profile(self, context: Context[Any, Any], as_of: str) -> str:
        """Returns who the user is, in at most 400 tokens: what is true of them now, or was at a time, each line with
        the user's words and their turn. as_of: `now`, or a time such as 2026-05-08."""
        try:
            moment = None if as_of == "now" else MOMENTS.validate_python(as_of)
        except ValidationError:
            raise ResourceError(f"as_of is `now` or a time such as 2026-05-08, not {as_of[:80]!r}") from None
        async with self.reader(context) as who:
            moment = await _on_their_clock(who, moment)
            return to_json(await profiles.profile(*who.person, moment, for_model=True)).decode()


class _Server(MCPServer):
    """Lists the current profile as a resource, because clients do not offer templates for selection. It is read through
    the template, because the library gives resources without parameters no Context, and therefore no caller."""

    async def list_resources(self) -> list[Resource]:
        about = "Who the user is, in at most 400 tokens"
        return [Resource(uri="turnlog://profile/now", name="profile", description=about, mime_type=PROFILE_TYPE)]


def make_server(fixed: Principal | None = None) -> MCPServer:
    """Returns the server with its tools. fixed: the caller on stdio."""
    tools = _Tools(fixed)
    offered = [
        ForgivingTool.from_function(_with_clear_errors(tool), annotations=hints)
        for tool, hints in (
            (tools.remember, ADDS),
            (tools.recall, READS),
            (tools.context, READS),
            (tools.threads, READS),
            (tools.memories, READS),
            (tools.forget, DROPS),
        )
    ]
    with _untouched_root_logger():
        server = _Server("turnlog", title="turnlog: memory of conversations", version=version("turnlog"), tools=offered)
    add = server.resource("turnlog://profile/{as_of}", name="profile", mime_type=PROFILE_TYPE)
    add(_with_clear_errors(tools.profile, ResourceError))
    return server


@contextmanager
def _untouched_root_logger() -> Iterator[None]:
    """Keeps MCPServer from changing the root logger. MCPServer calls logging.basicConfig, which does nothing if the
    root logger has a handler. Otherwise it would add a handler, and the program's own basicConfig would do nothing."""
    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


def _with_clear_errors(
    tool: Callable[..., Awaitable[T]], kind: type[Exception] = ToolError
) -> Callable[..., Awaitable[T]]:

    @functools.wraps(tool)
    async def run(*args: Any, **kwargs: Any) -> T:
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await tool(*args, **kwargs)
        except TurnlogError as error:
            wait = getattr(error, "retry_after_s", None)
            later = f"; try again in {max(1, round(wait))} s" if wait else ""
            raise kind(f"{error}{later} [{error.code}]") from None

    return run


async def _on_their_clock(who: Principal, moment: datetime | None) -> datetime | None:
    """Returns the moment. Without an offset it is in the caller's zone: the one that the request or its token names,
    unless it is plain UTC, else their preference, else TURNLOG_TIMEZONE."""
    if moment is None or moment.tzinfo:
        return moment
    async with who.runtime.reading("memories") as conn:
        zone = await zone_of(conn, who.tenant, who.user, who.runtime.settings.zone)
    return moment.replace(tzinfo=local(now_there(), zone).tzinfo)


def _memory(memory: MemoryView) -> FoundMemory:
    return FoundMemory(memory_id=memory.id, kind=memory.kind, content=memory.content, valid_from=memory.valid_from)
