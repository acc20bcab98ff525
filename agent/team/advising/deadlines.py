"""Tools about dates: deadlines of the sample data, the applicant's own events, and a timeline of both."""

from datetime import date, timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from turnlog.agent.team.advising.applicant import profile_of
from turnlog.agent.team.advising.sample import NOTE, Deadline, Round, deadlines, find_school
from turnlog.agent.team.tools import Mistake, Use, tool

EVENTS, TIMELINES = "events", "timelines"
EventKind = Literal["application", "test", "contest", "activity", "task", "other"]
# Steps towards a deadline, by its kind: number of days before the deadline at which to begin, and the step.
LEAD_DAYS = {
    "application": (
        (75, "begin the essays"),
        (35, "ask for letters of recommendation"),
        (7, "check everything and submit"),
    ),
    "contest": ((90, "begin to practise"), (21, "register and check the rules")),
    "test": ((60, "begin to practise"), (30, "register")),
    "summer school": ((45, "begin the application"), (7, "check everything and submit")),
    "financial aid": ((21, "collect the papers"),),
}


@tool
def get_deadlines(
    use: Use,
    school_ids: Annotated[list[str] | None, Field(max_length=20, description="ids or names of schools")] = None,
    kind: Literal["application", "test", "contest", "summer school", "financial aid"] | None = None,
    round: Round | None = None,
    until: Annotated[date | None, Field(description="YYYY-MM-DD, the last day to include")] = None,
    limit: Annotated[int, Field(ge=1, le=60)] = 20,
) -> dict[str, Any]:
    """Returns deadlines from today on, earliest first: of schools by round, of tests, contests, summer schools and aid.
    ED and ED2 bind the applicant."""
    chosen = None if school_ids is None else {find_school(wanted).id for wanted in school_ids}
    today = use.now.date()
    fitting = [
        deadline
        for deadline in _coming(today)
        if (chosen is None or deadline.school_id in chosen)
        and (kind is None or deadline.kind == kind)
        and (round is None or deadline.round == round)
        and (until is None or deadline.date <= until)
    ]
    return {
        "today": today,
        "deadlines": [_shown(deadline, today) for deadline in fitting[:limit]],
        "found": len(fitting),
        "note": NOTE,
    }


@tool
async def get_personal_events(
    use: Use,
    since: Annotated[date | None, Field(description="YYYY-MM-DD; today if not given")] = None,
    until: Annotated[date | None, Field(description="YYYY-MM-DD")] = None,
) -> dict[str, Any]:
    """Returns the applicant's own events and tasks in a span of time, in order."""
    first = since or use.now.date()
    events = [event | {"id": key} for key, event in (await use.records.all(EVENTS)).items()]
    chosen = [event for event in events if first.isoformat() <= event["date"] <= (until or date.max).isoformat()]
    return {"events": sorted(chosen, key=lambda event: (event["date"], event["title"]))}


@tool(writes=True)
async def create_personal_event(
    use: Use,
    title: Annotated[str, Field(min_length=1, max_length=200)],
    on: Annotated[date, Field(description="YYYY-MM-DD")],
    kind: EventKind = "task",
    notes: Annotated[str | None, Field(max_length=1000)] = None,
) -> dict[str, Any]:
    """Adds an event or a task to the applicant's calendar, unless it has one with the same title and day."""
    if on < use.now.date():
        raise Mistake(f"{on} is past; today is {use.now.date()}")
    for key, event in (await use.records.all(EVENTS)).items():
        if (event["title"], event["date"]) == (title, on.isoformat()):
            return {"event": event | {"id": key}, "created": False}
    key = use.effect.hex[:12]
    event = {"title": title, "date": on.isoformat(), "kind": kind} | ({"notes": notes} if notes else {})
    await use.records.put(EVENTS, key, event, use.effect)
    return {"event": event | {"id": key}, "created": True}


@tool(writes=True)
async def create_timeline(
    use: Use,
    school_ids: Annotated[list[str], Field(min_length=1, max_length=12, description="ids or names of schools")],
    round: Annotated[
        Round | None, Field(description="only this round; if not given, the earliest that is open")
    ] = None,
) -> dict[str, Any]:
    """Makes and saves a timeline for applications: each school's deadline and, before it, when to begin essays, ask for
    letters and check. Steps whose time has passed are marked as late; the applicant's own events are included."""
    today, steps, closed = use.now.date(), list[dict[str, Any]](), list[str]()
    targets = list({target.id: target for target in map(find_school, school_ids)}.values())
    for target in targets:
        open_ = [
            deadline
            for deadline in _coming(today)
            if deadline.school_id == target.id and deadline.kind == "application"
        ]
        if not (chosen := [deadline for deadline in open_ if round in (None, deadline.round)]):
            closed.append(target.name)
            continue
        steps += planned(chosen[0], today)
    if not steps:
        raise Mistake(f"no deadline of {', '.join(closed)} is still open" + (f" in round {round}" if round else ""))
    events = [event for event in (await use.records.all(EVENTS)).values() if event["date"] >= today.isoformat()]
    steps += [{"on": event["date"], "do": event["title"], "for": "own event", "late": False} for event in events]
    profile = await profile_of(use.records)
    timeline = {
        "made_on": today.isoformat(),
        "steps": sorted(steps, key=lambda step: (step["on"], step["for"], step["do"])),
        "closed": closed,
        "missing_in_profile": profile.missing,
    }
    key = use.effect.hex[:12]
    await use.records.put(TIMELINES, key, timeline, use.effect)
    return {"id": key, **timeline, "note": NOTE}


def planned(deadline: Deadline, today: date) -> list[dict[str, Any]]:
    """Returns the steps towards a deadline with their dates. A step that should already have begun is due today, and
    marked as late.
    """
    steps = list[dict[str, Any]]()
    for days, what in LEAD_DAYS[deadline.kind]:
        due = deadline.date - timedelta(days=days)
        steps.append({"on": max(due, today).isoformat(), "do": what, "for": deadline.name, "late": due < today})
    binding = " (binding)" if deadline.binding else ""
    return [*steps, {"on": deadline.date.isoformat(), "do": f"deadline{binding}", "for": deadline.name, "late": False}]


def _coming(today: date) -> list[Deadline]:
    return sorted(
        (deadline for deadline in deadlines() if deadline.date >= today),
        key=lambda deadline: (deadline.date, deadline.id),
    )


def _shown(deadline: Deadline, today: date) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": deadline.id, "kind": deadline.kind, "name": deadline.name, "date": deadline.date}
    if deadline.round is not None:
        shown |= {"school_id": deadline.school_id, "round": deadline.round, "binding": deadline.binding}
    return shown | {"days_left": (deadline.date - today).days}
