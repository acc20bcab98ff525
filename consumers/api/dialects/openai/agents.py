"""Agents of the server's team as models: `turnlog/essay` runs the agent `essay`, whose answer is the content."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from uuid import uuid5

from turnlog.agent.answering.asking import (
    AgentSwitched,
    Answered,
    Continued,
    PlanShown,
    QuestionStored,
    ToolReturned,
    ToolUsed,
    ask,
)
from turnlog.agent.answering.completions import (
    AnswerIds,
    CompletionPiece,
    CompletionRequest,
    Reasoned,
    Text,
    label_first,
)
from turnlog.agent.answering.pieces import Shown
from turnlog.agent.answering.request import answer_id
from turnlog.agent.answering.turns import add_turns, turn_of
from turnlog.agent.context.plain_text import content_text
from turnlog.agent.context.wire import with_tool_calls
from turnlog.agent.conversations.forks import fork_thread
from turnlog.agent.conversations.ownership import append_as_owner
from turnlog.agent.conversations.transcript_matching import RequestPlace, place_behind, place_of, split_prompt
from turnlog.agent.models.protocol import Completion
from turnlog.agent.runtime import Runtime
from turnlog.agent.team.agents import check_agent, list_agents
from turnlog.agent.team.configured import server_team
from turnlog.consumers.api.dialects.openai.errors import Unusable
from turnlog.consumers.api.principal import Principal
from turnlog.consumers.api.streams import throttled
from turnlog.events.contracts import UsageMetered
from turnlog.events.errors import InvalidEvent, NotFound
from turnlog.events.texts import storable
from turnlog.projectors.models.conversation.message import message_by_event

PREFIX = "turnlog/"
STARTS_AGAIN = "\n\n"


def agent_of(runtime: Runtime, model: str | None) -> str | None:
    """Returns the agent that a model's name stands for; None for a model of the model server. Raises NotFound if the
    server has no team."""
    if model is None or not model.startswith(PREFIX):
        return None
    if server_team(runtime) is None:
        raise NotFound(f"{model!r} is an agent of a team, and this server has no team; set TURNLOG_TEAM")
    return model.removeprefix(PREFIX).lower()


async def agent_models(runtime: Runtime, tenant: str) -> list[str]:
    """Returns the names of the team's agents as models, without those that are switched off."""
    if server_team(runtime) is None:
        return []
    return [PREFIX + agent.type for agent in await list_agents(runtime, tenant) if agent.enabled]


async def complete_by_agent(
    caller: Principal, wanted: CompletionRequest, agent: str
) -> AsyncGenerator[CompletionPiece]:
    """Yields the pieces of an agent's answer, as `complete` does for a model. The last message is the question.

    Earlier messages that the conversation lacks are stored before it. The agent has its own prompt and tools, so the
    client's system messages are left out. Raises Unusable, and the errors of `ask` and `complete`.
    """
    if wanted.chat.tools:
        raise Unusable("tools", f"the agent {agent!r} has tools of its own; send no tools, or name a model")
    if wanted.memory != "full":
        raise Unusable("store", "a run of an agent is always stored; name a model for an answer that is not stored")
    wanted = replace(wanted, messages=with_tool_calls(storable(wanted.messages)))
    _, messages = split_prompt(wanted.messages)
    if not messages or messages[-1].get("role") != "user":
        raise InvalidEvent("an agent answers a question, so the last message must be a user's")
    await check_agent(caller.runtime, caller.tenant, agent)
    thread = await _thread_with_earlier(caller, wanted)
    question = content_text(messages[-1].get("content") or "")
    turn_id = uuid5(wanted.id, "question")
    asked = ask(
        *(caller.runtime, caller.tenant, thread, question),
        user=caller.user,
        agent=agent,
        turn_id=turn_id,
        admission=throttled(caller, thread, agent),
    )
    text, steps = Continued(STARTS_AGAIN), _Steps()
    request = answer_id(turn_id, "request")
    async with aclosing(asked) as pieces:
        async for piece in pieces:
            if isinstance(piece, QuestionStored):
                yield AnswerIds(answer_id(request, "answer"), piece.thread, answer_id(request, "receipt"))
            for step in steps.said(piece):
                yield Reasoned(step)
            if said := text.said(piece):
                yield Text(said)
            if isinstance(piece, Answered):
                await label_first(caller.runtime, caller.tenant, piece.thread)
                yield await _completion(caller, piece, PREFIX + agent)


class _Steps:
    """Describes the steps of a run in words. The thought of a plan is shown with its calls; without calls it is the
    answer.
    """

    def __init__(self) -> None:
        self._thought = ""

    def said(self, piece: Shown | QuestionStored | Answered) -> list[str]:
        """Returns the lines that describe this piece; those of a plan come with its first step."""
        match piece:
            case PlanShown(agent=agent, thought=thought):
                self._thought = f"{agent}: {thought}" if thought.strip() else ""
                return []
            case AgentSwitched(agent=agent, to=to, task=task):
                step = f"{agent} hands over to {to}: {task}"
            case ToolUsed(name=name, arguments=arguments):
                step = f"{name} {arguments}"
            case ToolReturned(name=name, latency_ms=took, is_error=failed):
                step = f"{name} {'failed' if failed else 'answered'} after {took:,} ms"
            case _:
                return []
        thought, self._thought = self._thought, ""
        return [thought, step] if thought else [step]


async def _thread_with_earlier(caller: Principal, wanted: CompletionRequest) -> str:
    """Returns the conversation of the request, after storing the messages before the question in it. Returns a fork if
    the conversation already has other turns after them."""
    place = await _place(caller, wanted)
    thread = place.thread or str(uuid5(wanted.id, "thread"))
    if place.after is not None:
        thread = (await fork_thread(caller.runtime, caller.tenant, thread, place.after)).thread
    turns = [
        replace(turn_of(message), id=uuid5(wanted.id, f"message {at}")) for at, message in enumerate(place.new[:-1])
    ]
    if not turns:
        return thread

    async def append(thread: str, expected: int | None) -> str:
        await add_turns(caller.runtime, caller.tenant, thread, turns, user=caller.user, expected=expected)
        return thread

    return await append_as_owner(caller.runtime, caller.tenant, thread, caller.user, append)


async def _place(caller: Principal, wanted: CompletionRequest) -> RequestPlace:
    """Returns the request's place in a conversation. Raises NotFound."""
    _, messages = split_prompt(wanted.messages)
    if wanted.behind is None or wanted.thread is None:
        return await place_of(*caller.person, wanted.thread, messages, history=wanted.history, own_tools=True)
    async with caller.runtime.reading("messages", of=(caller.tenant, wanted.thread)) as conn:
        answer = await message_by_event(conn, caller.tenant, wanted.thread, wanted.behind)
    if answer is None:
        raise NotFound("the previous response does not exist")
    return await place_behind(*caller.person, wanted.thread, answer.seq, messages)


async def _completion(caller: Principal, answered: Answered, model: str) -> Completion:
    """Returns the answer with the tokens and cost of all model calls of the run."""
    request = answer_id(answered.question_id, "request")
    tokens_in, tokens_out, cost_usd = 0, 0, 0.0
    usages = caller.runtime.log.read_thread(caller.tenant, answered.thread, answered.seq, types=("usage_metered",))
    async for recorded in usages:
        data = recorded.event.data
        if recorded.event.causation == request and isinstance(data, UsageMetered):
            tokens_in, tokens_out = tokens_in + data.tokens_in, tokens_out + data.tokens_out
            cost_usd += data.cost_usd
    reason = answered.finish_reason or "stop"
    return Completion(
        *(answered.answer, (), tokens_in, tokens_out, cost_usd, model, "turnlog", 0.0),
        finish_reason=reason,
        suggestions=answered.suggestions,
    )
