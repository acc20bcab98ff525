"""A conversation: append turns, get a context, ask turnlog's agent, read the transcript."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid7

from turnlog.agent.answering import asking, turns
from turnlog.agent.answering.context import AnswerBasis, ReceiptFound, context_of, list_receipts
from turnlog.agent.answering.fallback import ended_early
from turnlog.agent.answering.thread_turns import in_turn, tell_waiting
from turnlog.agent.answering.turns import NewTurn
from turnlog.agent.context import Tier
from turnlog.agent.conversations import labels, participants, threads
from turnlog.agent.conversations.forks import fork_thread
from turnlog.agent.conversations.ownership import ROLES, append_as_owner, check_not_deleted, own_thread
from turnlog.agent.conversations.participants import Participant
from turnlog.agent.conversations.sessions import session_calls
from turnlog.agent.conversations.sessions.value import SessionChanges, SessionValue
from turnlog.agent.conversations.threads import ThreadInfo
from turnlog.agent.conversations.transcript import transcript
from turnlog.agent.privacy.redaction.redact import (
    RedactionPreview,
    RedactionReceipt,
    plan_redaction,
    redact_turn,
    words_to_strike,
)
from turnlog.agent.runtime import Runtime
from turnlog.agent.team.agents import check_agent
from turnlog.consumers.erasing import erasure_reach
from turnlog.consumers.sync_bridge import LoopBound
from turnlog.events.contracts import ParticipantRole, TurnOrigin, UsageMetered
from turnlog.events.publish import Appended
from turnlog.projectors.models.conversation.message import Message

_MEMBER = ROLES[: ROLES.index("member") + 1]
RESTARTED = "\n[the answer starts again]\n"


class Answer(LoopBound):
    """An answer in progress: iterates over the pieces of its text. suggestions: what the person may ask next, available
    once the text has ended; empty if no team answers."""

    __slots__ = ("_text", "suggestions")

    def __init__(self, pieces: AsyncGenerator[asking.AnswerPiece]) -> None:
        self.suggestions: tuple[str, ...] = ()
        self._text = self._texts(pieces)

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        return await anext(self._text)

    async def aclose(self) -> None:
        """Stops listening; the answer is recorded nevertheless."""
        await self._text.aclose()

    async def _texts(self, pieces: AsyncGenerator[asking.AnswerPiece]) -> AsyncGenerator[str]:
        text = asking.Continued(RESTARTED)
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                if said := text.said(piece):
                    yield said
                if isinstance(piece, asking.Answered):
                    self.suggestions = piece.suggestions
                    if note := ended_early(piece.finish_reason, "en"):
                        yield f"\n[{note}]\n"


Content = str | Sequence[Mapping[str, Any]] | None


@dataclass(frozen=True, slots=True)
class Context:
    """A context for a model. messages: for the OpenAI chat API, system prompt first; budget: tokens for the tiers.

    receipt: pass it to `Thread.add` with the answer, so that the log records what the answer was made from. degraded:
    why older turns were searched without vectors.
    """

    messages: list[dict[str, Any]]
    tiers: tuple[Tier, ...]
    budget: int
    receipt: AnswerBasis
    degraded: str | None = None

    @property
    def tokens(self) -> int:
        """Returns the number of tokens of the tiers, without the system prompt and the user's memories."""
        return sum(tier.tokens for tier in self.tiers)


class Thread(LoopBound):
    """A conversation of a tenant; `Memory.thread` makes it. user: the user who speaks in it, for turns, memories and
    answers. If a conversation with this id belongs to another user, the id means this user's own conversation of that
    name.

    Nothing is stored before the first turn. Every read waits until this program's appends are in the read models.
    """

    __slots__ = ("_known", "_may", "_runtime", "id", "tenant", "user")

    def __init__(self, runtime: Runtime, tenant: str, id: str, user: str | None = None) -> None:
        self._runtime, self.tenant, self.id, self.user = runtime, tenant, id, user
        self._known: str | None = id if user is None else None
        self._may: Sequence[ParticipantRole] = ROLES if user is None else ()

    def __repr__(self) -> str:
        return f"<turnlog thread {self.id!r} of user {self.user!r}>"

    async def add(
        self,
        role: str,
        content: Content = None,
        *,
        receipt: AnswerBasis | None = None,
        name: str | None = None,
        tool_calls: Sequence[Mapping[str, Any]] = (),
        tool_call_id: str | None = None,
        model: str | None = None,
        tokens_in: int | None = None,
        tokens_out: int | None = None,
        latency_ms: float | None = None,
        time: datetime | None = None,
        event_id: UUID | None = None,
        expected: int | None = None,
        usage: UsageMetered | None = None,
        origin: TurnOrigin | None = None,
    ) -> Appended:
        """Appends a turn, and returns its sequence and event id. It is on disk when this returns.

        role: "user", "assistant", "tool" or "system". content: text, or blocks as OpenAI, Anthropic or turnlog write
        them. receipt: of the context that an assistant's turn answers; both are stored together, after the query if
        that is not on the log yet. event_id: repeated calls with the same id store one turn. expected: the last
        sequence of the thread as the caller knows it (0: none); raises WrongExpectedVersion if it differs. usage: of
        the model that wrote the turn, for `turnlog usage`. origin: whose words a user's turn contains, such as
        "program" for a text that the application wrote; if it is not given, turnlog decides from name and text.

        Raises InvalidEvent, WrongReceipt, EventTooLarge, LogFull, LogUnavailable, NotFound for a deleted conversation,
        and Forbidden for a participant who is not a member.
        """
        turn = NewTurn(
            role,
            content,
            name=name,
            tool_calls=tool_calls,
            tool_call_id=tool_call_id,
            model=model,
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            latency_ms=latency_ms,
            time=time,
            id=event_id or uuid7(),
            origin=origin,
        )
        return (await self._append([turn], receipt, expected, usage))[0]

    async def extend(
        self, messages: Iterable[Mapping[str, Any]], *, receipt: AnswerBasis | None = None, expected: int | None = None
    ) -> list[Appended]:
        """Appends messages in the form of the OpenAI chat API, in order and together. Raises the errors of `add`."""
        return await self._append([turns.turn_of(message) for message in messages], receipt, expected)

    async def context(
        self,
        query: str | None = None,
        *,
        tokens: int | None = None,
        window: int | None = None,
        hybrid: bool | None = None,
        model: str | None = None,
        system_prompt: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Context:
        """Returns what a model should see now: everything if it fits, otherwise a summary, condensed turns and the
        newest turns in full.

        query: the user's new message, added at the end. tokens: maximum tokens of all messages; window: instead, the
        model's window, part of which is kept for the answer; by default inferred from the model's name. hybrid: if not
        all turns fit, prefer older turns that are relevant to the query; by default as MEMORY_HYBRID_EPISODES says. The
        user's long-term memories come before the question.

        Raises NotFound for a thread without turns and no query, WindowTooSmall.
        """
        asked = {"query": query, "tokens": tokens, "window": window, "hybrid": hybrid, "model": model}
        return await self._context(asked | {"system_prompt": system_prompt, "tools": [dict(tool) for tool in tools]})

    def ask(self, text: str, *, model: str | None = None, agent: str | None = None) -> Answer:
        """Returns the answer of turnlog's own agent, as pieces of text as they arrive. Afterwards the turns and the
        receipt are on the log.

        If a stream breaks and the answer starts again, it continues with the part not yet given; a line says so if the
        text differs. An answer that ended early has a note at its end. agent: the type of the agent to ask; None lets
        the server choose. `suggestions` of the result is available at the end. Iterating raises NoAnswer, whose
        `category` says why; NotFound for an unknown agent, AgentDisabled.
        """
        return Answer(self._answer(text, model, agent))

    async def _answer(self, text: str, model: str | None, agent: str | None) -> AsyncGenerator[asking.AnswerPiece]:
        await check_agent(self._runtime, self.tenant, agent)
        place = (self._runtime, self.tenant, self.id)
        async for piece in asking.ask(*place, text, user=self.user, model=model, agent=agent):
            yield piece

    async def messages(
        self, *, limit: int = 1_000, after_seq: int = 0, before_seq: int | None = None, newest: bool = False
    ) -> list[Message]:
        """Returns the transcript, oldest first: at most `limit` turns between two sequences, either the oldest or the
        newest of them.

        Raises NotFound.
        """
        page = await transcript(
            self._runtime,
            self.tenant,
            await self._own("reader"),
            limit=limit,
            after_seq=after_seq,
            before_seq=before_seq,
            newest=newest,
        )
        return page.turns

    async def info(self) -> ThreadInfo:
        """Returns label, user, number of messages and last activity. Raises NotFound."""
        return await threads.get_thread(self._runtime, self.tenant, await self._own("reader"))

    async def rename(self, label: str) -> None:
        """Changes the label of the conversation. Raises NotFound."""
        await threads.rename_thread(self._runtime, self.tenant, await self._own(), label)

    async def label(self) -> str:
        """Returns the label; a conversation without one is labelled with its user's first words. Raises NotFound."""
        return await labels.label_thread(self._runtime, self.tenant, await self._own())

    async def delete(self) -> None:
        """Removes the conversation from every read model; the log keeps its events. Raises NotFound."""
        await threads.delete_thread(self._runtime, self.tenant, await self._own())

    async def preview_redaction(self, seq: int, words: str | None = None, *, whole: bool = False) -> RedactionPreview:
        """Returns what `redact` would strike, and changes nothing. Raises the errors of `redact`."""
        place, words = (self._runtime, self.tenant, await self._own()), words_to_strike(words, whole)
        return (await plan_redaction(*place, seq, words, self.user)).preview

    async def redact(
        self, seq: int, words: str | None = None, *, whole: bool = False, reason: str | None = None
    ) -> RedactionReceipt:
        """Strikes words of a turn, or the whole turn, from the log and everything made from it, then searches for
        remains. It cannot be undone.

        reason: stored in the receipt. The receipt's `hits` is empty if nothing is left. An interrupted call can be
        repeated. Raises NotFound, InvalidWords, RebuildRunning, and Forbidden for a user in whose conversation
        others speak, too.
        """
        words, reach = words_to_strike(words, whole), erasure_reach(self._runtime.settings)
        place = (self._runtime, self.tenant, await self._own())
        return await redact_turn(*place, seq, reach, words, self.user, reason, self.user)

    async def participants(self) -> list[Participant]:
        """Returns the participants by user, including invitations; the owner only if they have set a name. Raises
        NotFound."""
        return await participants.list_participants(self._runtime, self.tenant, await self._own("reader"))

    async def share(self, user: str, *, name: str | None = None, role: ParticipantRole = "member") -> Participant:
        """Lets another user read the conversation; a member may also append. name: the name of the user's turns, which
        make the user's own memories; by default their id.

        Over HTTP it may be an invitation (`agreed` is false), which the user accepts with `join`. Raises NotFound,
        NameTaken.
        """
        place = (self._runtime, self.tenant, await self._own())
        return await participants.share_thread(*place, user, name=name, role=role)

    async def join(self, *, name: str | None = None) -> Participant:
        """Accepts an invitation to the conversation with this id. name: a name other than the one that the owner chose.
        Raises NotFound if there is no invitation, NameTaken."""
        return await participants.join_thread(self._runtime, self.tenant, self.id, self.user or "", name)

    async def unshare(self, user: str) -> None:
        """Removes another user from the conversation, or the caller. Their turns stay, under their name. Raises
        NotFound.
        """
        thread = self.id if user == self.user else await self._own()
        await participants.unshare_thread(self._runtime, self.tenant, thread, user)

    async def begin_session(
        self, *, window: int | None = None, threshold: float | None = None, recent_turns: int | None = None
    ) -> SessionValue:
        """Begins a session on the turns so far; an existing session begins again. window: size of the model's window in
        tokens. threshold: the share of the window from which a summary is due. recent_turns: the number of newest turns
        that a summary leaves in full.

        Raises NotFound.
        """
        place = (self._runtime, self.tenant, await self._own())
        return await session_calls.create_session(
            *place, self.user, window=window, threshold=threshold, recent_turns=recent_turns
        )

    async def session(self) -> SessionValue:
        """Returns the session of the conversation: slots, intent, pending action, what it knows about the user. Raises
        NotFound if none was begun."""
        return await session_calls.show_session(self._runtime, self.tenant, await self._own())

    async def set_session(
        self,
        *,
        agent: str | None = None,
        global_state: dict[str, Any] | None = None,
        user_snapshot: dict[str, Any] | None = None,
    ) -> SessionValue:
        """Changes the session. agent: the current agent. The other arguments are merged into the stored values; None as
        a value removes a key. Raises NotFound, InvalidMemoryRequest."""
        changes = SessionChanges(current_agent_key=agent, global_state=global_state, user_snapshot=user_snapshot)
        return await session_calls.change_session(self._runtime, self.tenant, await self._own(), changes)

    async def receipts(self) -> list[ReceiptFound]:
        """Returns what the model saw for each answer, oldest first. Raises NotFound."""
        return await list_receipts(self._runtime, self.tenant, await self._own())

    async def fork(self, at_seq: int, *, thread: str | None = None, label: str | None = None) -> "Thread":
        """Begins a conversation with the turns up to a sequence. thread: its id; None generates one.

        Raises NotFound, CutInACall, ThreadExists.
        """
        if thread is not None and self.user is not None:
            thread = await own_thread(self._runtime, self.tenant, thread, self.user, begins=True, or_nobody=True)
        forked = await fork_thread(self._runtime, self.tenant, await self._own(), at_seq, thread, label)
        return Thread(self._runtime, self.tenant, forked.thread, self.user)

    async def _append(
        self,
        made: Sequence[NewTurn],
        receipt: AnswerBasis | None,
        expected: int | None,
        usage: UsageMetered | None = None,
    ) -> list[Appended]:

        async def append(thread: str, version: int | None) -> list[Appended]:
            about: dict[str, Any] = {"user": self.user, "receipt": receipt, "usage": usage}
            about["expected"] = version if expected is None else expected
            added = await turns.add_turns(self._runtime, self.tenant, thread, made, **about)
            self._known, self._may = thread, self._may if "member" in self._may else _MEMBER
            return added.turns

        if "member" not in self._may and self.user is not None:
            place = (self._runtime, self.tenant, self.id)
            return await append_as_owner(*place, self.user, append, or_nobody=True, least="member")
        return await append(await self._own("member"), None)

    async def _own(self, least: ParticipantRole = "owner", *, begins: bool = False) -> str:
        """Returns the id of the conversation. least: the role that the user needs in it. begins: whether it may be
        without events. Raises NotFound, Forbidden."""
        if self._known is not None and least in self._may:
            await check_not_deleted(self._runtime, self.tenant, self._known)
            return self._known
        assert self.user is not None
        about: dict[str, Any] = {"begins": begins, "or_nobody": True, "least": least}
        thread_id = await own_thread(self._runtime, self.tenant, self.id, self.user, **about)
        if not begins:
            self._known, self._may = thread_id, ROLES[: ROLES.index(least) + 1]
        return thread_id

    async def _context(self, asked: dict[str, Any], through: int | None = None) -> Context:
        """Returns the context. asked: arguments of `context`, by name. through: the sequence of the last turn to
        show."""
        prepared = await context_of(
            self._runtime, self.tenant, await self._own("reader", begins=True), user=self.user, through=through, **asked
        )
        made = prepared.context
        return Context(made.messages, made.tiers, made.budget, prepared.receipt, prepared.degraded)

    @contextlib.asynccontextmanager
    async def _turn(self, fork: Callable[[], Awaitable[Any]]) -> "AsyncIterator[Thread | None]":
        """Runs the block after the earlier answers of the conversation, and yields None. If `fork` returns a fork while
        this waits, yields the fork at once. See in_turn."""
        patience_s = self._runtime.settings.answer_timeout_s
        async with in_turn(
            self._runtime, self.tenant, await self._own("member", begins=True), patience_s, fork
        ) as forked:
            yield forked

    async def _tell_waiting(self) -> None:
        await tell_waiting(self._runtime, self.tenant, await self._own("member"))
