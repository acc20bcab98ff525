"""Events of an agent's run: each step of a plan, so that a run can be inspected, rebuilt and continued.

`run_id` is the id of the event that requested the answer. The answer itself is recorded as turns and a receipt, like
every answer.
"""

from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

from pydantic import Field

from turnlog.events.contracts.base import ERASED, Amount, EventContract, Frozen
from turnlog.events.contracts.operations import AgentType

MAX_DEPTH = 3  # the maximum number of delegations in one run; handing a question back counts too
Name = Annotated[str, Field(max_length=200)]
Phase = Literal["PLAN", "EXECUTE", "SOLVE"]


class PlannedCall(Frozen):
    """A tool that the plan calls. after: ids of the calls whose results its arguments need."""

    id: str
    name: Name
    after: tuple[str, ...] = ()


class RunPlanned(EventContract):
    """An agent decided what to do. arguments: the JSON arguments of each call, in the order of `calls`.

    routed_by: what chose the agent. If there are no calls and no delegation follows, the plan is the answer.
    price_known: True if the price of the model was known; None in events of v1.
    """

    VERSION: ClassVar[int] = 2
    PERSONAL: ClassVar[dict[str, Any]] = {"plan": ERASED, "arguments": ()}
    MIXES_SPEAKERS: ClassVar[bool] = True
    type: Literal["run_planned"] = "run_planned"
    run_id: UUID
    agent: AgentType
    depth: int = Field(default=0, ge=0, le=MAX_DEPTH)
    routed_by: Literal["router", "request", "agent"] = "request"
    plan: str = ""
    calls: tuple[PlannedCall, ...] = ()
    arguments: tuple[str, ...] = ()
    model: str = Field(default="", max_length=200)
    tokens_in: Amount = 0
    tokens_out: Amount = 0
    cost_usd: float = Field(default=0.0, ge=0)
    price_known: bool | None = None
    latency_ms: float = Field(default=0.0, ge=0)


class RunToolCalled(EventContract):
    """An agent called a tool. The call of a tool with side effects is recorded before it starts, so that a continued
    run knows of it; other calls are recorded together with their results."""

    PERSONAL: ClassVar[dict[str, Any]] = {"arguments": ERASED}
    MIXES_SPEAKERS: ClassVar[bool] = True
    type: Literal["run_tool_called"] = "run_tool_called"
    run_id: UUID
    agent: AgentType
    depth: int = Field(default=0, ge=0, le=MAX_DEPTH)
    call_id: str
    tool: Name
    arguments: str = "{}"


class RunToolAnswered(EventContract):
    """The result of a tool, as the model gets it. is_error: True if the result is an error message."""

    PERSONAL: ClassVar[dict[str, Any]] = {"result": ERASED}
    MIXES_SPEAKERS: ClassVar[bool] = True
    type: Literal["run_tool_answered"] = "run_tool_answered"
    run_id: UUID
    agent: AgentType
    depth: int = Field(default=0, ge=0, le=MAX_DEPTH)
    call_id: str
    tool: Name
    result: str = ""
    is_error: bool = False
    tries: int = Field(default=1, ge=1)
    latency_ms: float = Field(default=0.0, ge=0)


class RunDelegated(EventContract):
    """An agent handed the question to another agent. depth: that of to_agent."""

    PERSONAL: ClassVar[dict[str, Any]] = {"task": ERASED}
    MIXES_SPEAKERS: ClassVar[bool] = True
    type: Literal["run_delegated"] = "run_delegated"
    run_id: UUID
    from_agent: AgentType
    to_agent: AgentType
    depth: int = Field(ge=1, le=MAX_DEPTH)
    task: str = ""


class RunSolved(EventContract):
    """The run has ended with an answer, or with `code`, which says why there is none.

    agents: all that took part, in order. tools: names of the tools that ran, in order. routed: True if rules chose the
    first agent. milliseconds: the time spent in each phase, over all agents. suggestions: questions that the person may
    ask next. price_known: as in RunPlanned.
    """

    VERSION: ClassVar[int] = 2
    PERSONAL: ClassVar[dict[str, Any]] = {"suggestions": ()}
    MIXES_SPEAKERS: ClassVar[bool] = True
    type: Literal["run_solved"] = "run_solved"
    run_id: UUID
    agent: AgentType
    agents: tuple[AgentType, ...] = ()
    tools: tuple[Name, ...] = ()
    code: str | None = Field(default=None, max_length=100)
    model: str = Field(default="", max_length=200)
    tokens_in: Amount = 0
    tokens_out: Amount = 0
    cost_usd: float = Field(default=0.0, ge=0)
    price_known: bool | None = None
    latency_ms: float = Field(default=0.0, ge=0)
    routed: bool = False
    milliseconds: dict[Phase, Amount] = Field(default_factory=dict)
    suggestions: tuple[str, ...] = ()
