"""Reads plans of tool calls (ReWOO) from a model's answer, orders the calls by dependency, and fills in results.

A model that can call tools writes its whole plan as the tool calls of one answer; any other model writes it as JSON
text. The calls are the steps #E1, #E2 … in their order. An argument may name the result of another step, all of it
(`#E1`) or a part (`#E1.schools[0].id`). Source of the form: ReWOO (Xu et al., 2023, arXiv:2305.18323).
"""

import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from turnlog.agent.team.teams import DELEGATE_TOOL, Agent, Team
from turnlog.events.contracts import ToolCall

MAX_STEPS, MAX_NESTING = 16, 32
MOST_CHARS = 20_000  # maximum characters of a result as JSON
CUT = "... (truncated: there were too many results)"
REFERENCE = re.compile(r"#E([1-9]\d{0,2})((?:\.[A-Za-z_]\w*|\[\d{1,4}\])*)")
_PART = re.compile(r"\.([A-Za-z_]\w*)|\[(\d+)\]")
_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)
Why = Literal["repeated", "too many"]


@dataclass(frozen=True, slots=True)
class Step:
    """A tool call of a plan. number: 1 is #E1. call_id: the model's id of the call. arguments: with references.

    error: why the step cannot run, if that is known in advance; the step then counts as failed.
    """

    number: int
    tool: str
    arguments: Mapping[str, Any]
    call_id: str
    error: str | None = None

    @property
    def needs(self) -> frozenset[int]:
        """Returns the numbers of the steps whose results its arguments name."""
        return frozenset(int(match[1]) for text in _texts(self.arguments) for match in REFERENCE.finditer(text))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A call of the model that is not a step of the plan."""

    tool: str
    why: Why


@dataclass(frozen=True, slots=True)
class Delegation:
    """A request that another agent answers. context: what the model adds for that agent. call_id: the model's id of the
    call.
    """

    agent: str
    task: str
    context: Mapping[str, Any]
    call_id: str = field(default="delegation", compare=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """A model's plan. thought: the text beside the calls; without steps and delegation it is the answer. If there is a
    delegation, no step runs."""

    thought: str
    steps: tuple[Step, ...] = ()
    delegation: Delegation | None = None
    left_out: tuple[LeftOut, ...] = ()

    @property
    def is_answer(self) -> bool:
        return not self.steps and self.delegation is None


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a step: a JSON value or an error."""

    value: Any
    is_error: bool = False


def bounded(value: Any) -> Any:
    """Returns the JSON value; if its text is longer than MOST_CHARS, its beginning with a note for the model."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) <= MOST_CHARS:
        return value
    size = f"the result has {len(text):,} characters; these are the first {MOST_CHARS:,}"
    return {"cut": f"{size}: ask for less if you need the rest", "beginning": text[:MOST_CHARS]}


def fitted(messages: Sequence[dict[str, Any]], most: int, size: Callable[[str], int] = len) -> list[dict[str, Any]]:
    """Returns the messages of earlier rounds. The longest results are cut, so that all results together have at most
    `most` characters, or tokens as counted by `size`, besides the note CUT at the end of each cut result."""
    sizes = [size(message["content"]) if message["role"] == "tool" else 0 for message in messages]
    limit, left, results = 0, most, sorted(size for size in sizes if size)
    for at, each in enumerate(results):
        limit = left // (len(results) - at)
        if each > limit:
            break
        left -= each
    else:
        return list(messages)
    return [
        {**message, "content": f"{message['content'][: len(message['content']) * limit // each]}{CUT}"}
        if each > limit
        else message
        for message, each in zip(messages, sizes, strict=True)
    ]


def read_plan(text: str, calls: Sequence[ToolCall], tools: Collection[str] = (), first: int = 1) -> Plan:
    """Returns the plan of a model's answer. tools: the names that a plan in JSON text may use. first: the number of its
    first step.

    Without calls, a text that is a JSON plan is read as one; any other text is the answer. A call of the delegating
    tool makes the whole plan a delegation. A call that repeats another one with the same arguments is left out. A call
    without an id gets one. Arguments that are not a JSON object make a step that has already failed.
    """
    wanted, thought = [_Call(call.name, call.id, call.arguments) for call in with_own_ids(calls)], text
    if not wanted and (written := _written_plan(text, tools)) is not None:
        thought, wanted = written
    for call in wanted:
        if call.tool == DELEGATE_TOOL and (delegation := _delegation(call)) is not None:
            return Plan(thought, delegation=delegation)
    steps, left_out, same = dict[tuple[str, str], Step](), list[LeftOut](), dict[int, int]()
    for number, call in enumerate(wanted, first):
        step = _step(number, call)
        key = (call.tool, json.dumps([step.arguments, step.error], sort_keys=True))
        if key in steps:
            left_out.append(LeftOut(call.tool, "repeated"))
            same[number] = steps[key].number
        elif len(steps) == MAX_STEPS:
            left_out.append(LeftOut(call.tool, "too many"))
        else:
            steps[key] = step
    return Plan(thought, tuple(_renumbered(step, same) for step in steps.values()), left_out=tuple(left_out))


def with_own_ids(calls: Sequence[ToolCall], taken: Collection[str] = ()) -> tuple[ToolCall, ...]:
    """Returns the calls, each with a unique id. taken: ids of earlier calls."""
    ids, named = set(taken), list[ToolCall]()
    for call in calls:
        id_, number = call.id, len(ids)
        while not id_ or id_ in ids:
            number += 1
            id_ = f"call_{number}"
        ids.add(id_)
        named.append(call if id_ == call.id else call.model_copy(update={"id": id_}))
    return tuple(named)


def levels(steps: Sequence[Step], before: Collection[int] = ()) -> tuple[tuple[Step, ...], ...]:
    """Returns the steps in groups that run one after another; steps of a group do not depend on each other.

    before: numbers of steps of earlier plans, which have results. A step that names a result that cannot exist is in
    the first group; steps that wait for each other, and steps that depend on these, are in the last one. Each has the
    reason as its error.
    """
    numbers = {*before, *(step.number for step in steps)}
    checked = [_with_missing(step, numbers) for step in steps]
    groups, done = list[tuple[Step, ...]](), set(before)
    waiting = checked
    while waiting:
        ready = [step for step in waiting if step.error is not None or step.needs <= done]
        if not ready:
            circle = ", ".join(f"#E{step.number}" for step in waiting)
            ready = [replace(step, error=f"the steps {circle} wait for each other") for step in waiting]
        groups.append(tuple(ready))
        done |= {step.number for step in ready}
        waiting = [step for step in waiting if step.number not in done]
    return tuple(groups)


def filled(step: Step, results: Mapping[int, Result]) -> Step:
    """Returns the step with references replaced by results. References inside a result's own text are not replaced.

    An argument that is only a reference becomes the value itself; a reference within a text becomes the value as text.
    If the result failed, or lacks the named part, the step gets an error.
    """
    if step.error is not None:
        return step
    try:
        return replace(step, arguments=_filled(step.arguments, results))
    except LookupError as error:
        return replace(step, error=str(error.args[0]))


def handed_on(team: Team, chain: Sequence[str], delegation: Delegation) -> Agent | str:
    """Returns the agent that takes over, or the reason why none does, as text for a model.

    chain: the types of the agents that had the question, the current one last. A question is handed on at most
    `team.depth` times in total, and never twice from one agent to the same other agent.
    """
    current, target = team.agents[chain[-1]], delegation.agent
    if target not in current.delegates:
        allowed = ", ".join(current.delegates) or "nobody"
        return f"{current.type} cannot hand over to {target!r}; it can to {allowed}"
    if not team.agents[target].enabled:
        return f"{target} is switched off"
    if len(chain) - 1 >= team.depth:
        return f"the question was handed on {len(chain) - 1} times already, which is the most; answer it"
    if (current.type, target) in itertools.pairwise(chain):
        return f"{current.type} has already handed this question to {target}; answer it"
    return team.agents[target]


@dataclass(frozen=True, slots=True)
class _Call:
    """A call in a plan. arguments: JSON text if the model made a tool call; the value itself if the model wrote the
    plan as JSON text."""

    tool: str
    id: str
    arguments: Any

    @property
    def parsed(self) -> Any:
        """Returns the arguments as a value; text that is not JSON stays as it is."""
        if not isinstance(self.arguments, str):
            return self.arguments
        try:
            return json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            return self.arguments


def _step(number: int, call: _Call) -> Step:
    arguments = call.parsed
    if isinstance(arguments, Mapping) and _is_shallow(arguments):
        return Step(number, call.tool, arguments, call.id)
    return Step(number, call.tool, {}, call.id, f"the arguments are not a JSON object: {str(call.arguments)[:200]}")


def _is_shallow(value: Any) -> bool:
    """Returns whether the value is nested at most MAX_NESTING times."""
    inside = [value]
    for _ in range(MAX_NESTING):
        inside = [
            part
            for outer in inside
            if isinstance(outer, Mapping | list)
            for part in (outer.values() if isinstance(outer, Mapping) else outer)
        ]
    return not inside


def _written_plan(text: str, tools: Collection[str]) -> tuple[str, list[_Call]] | None:
    """Returns the thought and the calls of a plan written as JSON text: {"thought"?, "steps": [{"tool",
    "arguments"?}]}.

    The JSON may be fenced. Anything else is not a plan, because an answer could be JSON too.
    """
    fenced = _FENCED.search(text)
    try:
        document = json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        return None
    steps = document.get("steps") if isinstance(document, Mapping) else None
    if not isinstance(steps, list) or not all(
        isinstance(step, Mapping) and step.get("tool") in tools for step in steps
    ):
        return None
    calls = [_Call(step["tool"], f"plan_{at}", step.get("arguments") or {}) for at, step in enumerate(steps, 1)]
    thought = document.get("thought")
    return thought if isinstance(thought, str) else "", calls


def _delegation(call: _Call) -> Delegation | None:
    """Returns the delegation; None if the call lacks the agent or the task. The call then runs as a step, whose result
    is an error."""
    arguments = call.parsed
    if not isinstance(arguments, Mapping):
        return None
    agent, task, context = (arguments.get(name) for name in ("agent_type", "task_description", "context"))
    if not isinstance(agent, str) or not isinstance(task, str) or not task.strip():
        return None
    return Delegation(agent.strip().lower(), task, context if isinstance(context, Mapping) else {}, call.id)


def _renumbered(step: Step, same: Mapping[int, int]) -> Step:
    """Returns the step with references to repeated calls turned into references to the first one."""

    def renumber(match: re.Match[str]) -> str:
        number = int(match[1])
        return f"#E{same.get(number, number)}{match[2]}"

    return replace(step, arguments=_mapped(step.arguments, lambda text: REFERENCE.sub(renumber, text)))


def _with_missing(step: Step, numbers: Collection[int]) -> Step:
    missing = sorted(step.needs - set(numbers))
    if step.error is not None or not missing:
        return step
    named = ", ".join(f"#E{number}" for number in missing)
    return replace(step, error=f"the arguments name the result of {named}, which the plan does not have")


def _filled(value: Any, results: Mapping[int, Result]) -> Any:
    def fill(text: str) -> Any:
        if alone := REFERENCE.fullmatch(text):
            return _value(alone, results)
        return REFERENCE.sub(lambda match: _as_text(_value(match, results)), text)

    return _mapped(value, fill)


def _value(match: re.Match[str], results: Mapping[int, Result]) -> Any:
    """Returns the part of the results that a reference names. Raises LookupError with an explanation."""
    number, path = int(match[1]), match[2]
    if number not in results:
        raise LookupError(f"#E{number} has no result")
    if results[number].is_error:
        raise LookupError(f"it needs the result of #E{number}, which failed")
    try:
        return value_at(results[number].value, path)
    except LookupError:
        raise LookupError(f"the result of #E{number} has no {path.lstrip('.')}") from None


def value_at(value: Any, path: str) -> Any:
    """Returns the part of a JSON value at a path such as `.schools[0].id`. Raises LookupError."""
    for name, index in _PART.findall(path):
        try:
            value = value[int(index)] if index else value[name]
        except TypeError:
            raise LookupError(path) from None
    return value


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _mapped(value: Any, change: Callable[[str], Any]) -> Any:
    """Returns the JSON value with the function applied to each text in it, but not to keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(part, change) for key, part in value.items()}
    if isinstance(value, list):
        return [_mapped(part, change) for part in value]
    return value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
