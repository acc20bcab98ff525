"""Events of a conversation: threads, turns, forks and requests for answers."""

from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

from pydantic import Field

from turnlog.events.contracts.base import ERASED, EventContract, Frozen
from turnlog.events.contracts.origin import TurnOrigin, origin_of


class TextBlock(Frozen):
    type: Literal["text"] = "text"
    text: str


class ThinkingBlock(Frozen):
    """Reasoning of a model. Contexts contain it only with the setting keep_thinking."""

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str | None = None


class ImageBlock(Frozen):
    """An image, given by its URL, which may be a data: URL."""

    type: Literal["image"] = "image"
    url: str
    media_type: str | None = None


class ToolUseBlock(Frozen):
    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any] = Field(default_factory=dict)


class ToolResultBlock(Frozen):
    type: Literal["tool_result"] = "tool_result"
    tool_use_id: str
    content: str | tuple[TextBlock | ImageBlock, ...] = ""
    is_error: bool = False


Block = Annotated[TextBlock | ThinkingBlock | ImageBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]


Content = str | tuple[Block, ...]


Role = Literal["system", "user", "assistant", "tool"]
ParticipantRole = Literal["reader", "member", "owner"]


class ToolCall(Frozen):
    """A call as the OpenAI chat API writes it; `arguments` is the JSON text the model produced."""

    id: str
    name: str
    arguments: str = "{}"


class ThreadOpened(EventContract):
    """A conversation begins, or its label or metadata changes. metadata: data of the client's own. It replaces the
    earlier metadata; None leaves that unchanged."""

    VERSION: ClassVar[int] = 2
    PERSONAL: ClassVar[dict[str, Any]] = {"label": ERASED, "metadata": None}
    MIXES_SPEAKERS: ClassVar[bool] = False
    CONVERSES: ClassVar[bool] = True
    type: Literal["thread_opened"] = "thread_opened"
    label: str | None = None
    metadata: dict[str, Any] | None = None


class ThreadRenamed(EventContract):
    PERSONAL: ClassVar[dict[str, Any]] = {"label": ERASED}
    MIXES_SPEAKERS: ClassVar[bool] = False
    CONVERSES: ClassVar[bool] = True
    type: Literal["thread_renamed"] = "thread_renamed"
    label: str


class ThreadDeleted(EventContract):
    """The user deleted the conversation: every read model drops its rows; the log keeps the events."""

    PERSONAL: ClassVar[dict[str, Any]] = {}
    REMOVES: ClassVar[bool] = True
    type: Literal["thread_deleted"] = "thread_deleted"


class ParticipantSet(EventContract):
    """The event's user takes part in a conversation, usually of another user, or no longer does if role is None.

    name: the speaker name of the user's turns there; None only without a role, or if the user was erased.
    role: a member may read and append, a reader may only read; the owner's own entry gives the owner a name.
    agreed: True if the user, or a program that acts for the user, agreed; an open invitation has no effect.
    """

    PERSONAL: ClassVar[dict[str, Any]] = {"name": None}
    MIXES_SPEAKERS: ClassVar[bool] = False
    CONVERSES: ClassVar[bool] = True
    type: Literal["participant_set"] = "participant_set"
    name: str | None = Field(default=None, max_length=255)
    role: ParticipantRole | None = None
    agreed: bool = False


class TurnRecorded(EventContract):
    """One message of a conversation. v1 had `text` instead of `content` and one number `tokens`; v2 had no `origin`.

    source_id: the id under which an importer found the turn (LoCoMo's dia_id, a message id).
    name: the speaker, if the role alone does not tell. tokens_*: as the provider counted them.
    origin: whose words the turn contains. None only until the turn is put into an Event, which sets it (origin.py).
    """

    VERSION: ClassVar[int] = 3
    PERSONAL: ClassVar[dict[str, Any]] = {"content": ERASED, "name": None, "tool_calls": ()}
    MIXES_SPEAKERS: ClassVar[bool] = False
    CONVERSES: ClassVar[bool] = True
    type: Literal["turn_recorded"] = "turn_recorded"
    role: Role
    content: Content = ""
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    agent: str | None = None
    model: str | None = None
    tokens_in: int | None = Field(default=None, ge=0)
    tokens_out: int | None = Field(default=None, ge=0)
    latency_ms: float | None = Field(default=None, ge=0)
    source_id: str | None = None
    origin: TurnOrigin | None = None

    def of(self, user: str | None) -> "TurnRecorded":
        """Returns the turn with its origin set, assuming that the event is of this user."""
        if self.origin is not None:
            return self
        return self.model_copy(update={"origin": origin_of(self.role, _said(self.content), self.name, user)})


def _said(content: Content) -> str | None:
    """Returns the text of a turn without tool results; None if it contains only tool results."""
    if isinstance(content, str):
        return content
    if content and all(isinstance(block, ToolResultBlock) for block in content):
        return None
    return "\n".join(block.text for block in content if isinstance(block, TextBlock))


class ForkedSummary(Frozen):
    """The rolling summary that a fork begins with."""

    summary: str
    message_count: int
    covered_seq: int
    model: str


class ThreadForked(EventContract):
    """This thread begins with the turns of `parent` up to at_seq; they are not copied.

    The fields after label are the parent's state at at_seq: numbers of turns, summary, topics with their numbers of
    mentions, the last turn that was searched for topics (tagged_through), and the last pruned turn (pruned_through).
    """

    PERSONAL: ClassVar[dict[str, Any]] = {"label": ERASED, "summary": None, "topics": {}}
    MIXES_SPEAKERS: ClassVar[bool] = False
    CONVERSES: ClassVar[bool] = True
    type: Literal["thread_forked"] = "thread_forked"
    parent: str
    at_seq: int = Field(ge=1)
    label: str | None = None
    message_count: int = Field(default=0, ge=0)
    user_message_count: int = Field(default=0, ge=0)
    assistant_message_count: int = Field(default=0, ge=0)
    summary: ForkedSummary | None = None
    topics: dict[str, int] = Field(default_factory=dict)
    tagged_through: int = Field(default=0, ge=0)
    pruned_through: int = Field(default=0, ge=0)


class AnswerRequested(EventContract):
    """Requests an answer to the user turn `turn_id`; the agent consumer answers it once.

    agent: type of the tenant's agent that answers; None means the default agent.
    """

    VERSION: ClassVar[int] = 2
    PERSONAL: ClassVar[dict[str, Any]] = {"system_prompt": None}
    MIXES_SPEAKERS: ClassVar[bool] = False
    UNSEARCHED: ClassVar[frozenset[str]] = frozenset({"system_prompt"})
    CONVERSES: ClassVar[bool] = True
    type: Literal["answer_requested"] = "answer_requested"
    turn_id: UUID
    model: str | None = None
    system_prompt: str | None = None
    agent: str | None = Field(default=None, max_length=64)
