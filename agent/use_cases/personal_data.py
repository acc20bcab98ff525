"""All that there is of a person: as one document, and erased with a receipt (M9, E 13.4); a transcript, masked."""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from turnlog.agent.archive.restoring import restored_of_user
from turnlog.agent.privacy import erase
from turnlog.agent.privacy.erase import Plan, Step, Surroundings
from turnlog.agent.privacy.export import clean_messages, user_export
from turnlog.agent.privacy.receipt import Receipt
from turnlog.agent.privacy.sanitise import SanitiseLevel
from turnlog.agent.privacy.traces import person_of
from turnlog.agent.progress import OnProgress, no_progress
from turnlog.agent.runtime import Runtime
from turnlog.agent.use_cases.turns import transcript
from turnlog.events.errors import NotFound
from turnlog.projectors.models.message import Message

_ALL = 2**62


@contextmanager
def silent_step(label: str) -> Iterator[OnProgress]:
    yield no_progress


@dataclass(frozen=True, slots=True)
class ErasureReach:
    """What an erasure needs and a runtime does not have; consumers/erasing.py composes it.

    files: (kind, path) of the servers' and the archive's files, which are searched and not changed. step: shows how
    far a named step is.
    """

    files: Callable[[], Iterable[tuple[str, Path]]]
    step: Step = silent_step


async def export_person(
    runtime: Runtime,
    tenant: str,
    user: str,
    level: SanitiseLevel | None = SanitiseLevel.MODERATE,
    on_progress: OnProgress = no_progress,
) -> AsyncGenerator[str]:
    """The document as pieces of JSON text, one conversation at most in memory. level: what is masked; None: nothing.

    Brings archived conversations of the user back. Raises InvalidToken, ArchiveDamaged.
    """
    person, regions = person_of(tenant, user), runtime.settings.phone_regions.split(",")
    await runtime.settle()
    async with runtime.pool.connection() as conn:
        await restored_of_user(runtime, conn, tenant, user)
        async for piece in user_export(conn, runtime.log, person, level, regions, on_progress):
            yield piece


async def plan_erasure(
    runtime: Runtime,
    tenant: str,
    user: str,
    reach: ErasureReach,
    namespaces: Iterable[str] = (),
    strings: Sequence[str] = (),
) -> Plan:
    """What there is of a person; changes nothing. namespaces: of LangGraph's store that are the person's too, labels
    joined by dots. strings: to be searched for afterwards beside the person's own words.

    Raises InvalidToken, StringsTooShort, NotFound when there is nothing, and no strings to search for after an earlier
    erasure.
    """
    plan = await erase.planned(_surroundings(runtime, reach), person_of(tenant, user, namespaces), strings)
    if plan.is_empty and not (plan.last and strings):
        raise NotFound(f"there is nothing of user {user!r} in tenant {tenant!r}{_known(plan)}")
    return plan


def _known(plan: Plan) -> str:
    if plan.last is None or not plan.found_before:
        return ""
    where = ", ".join(plan.found_before)
    return (
        f"; the erasure at sequence {plan.last.seq} found their words in: {where}. `--strings FILE` with the words "
        "searches for them again"
    )


async def erase_person(
    runtime: Runtime, plan: Plan, reach: ErasureReach, reason: str | None = None, full: bool = False
) -> Receipt:
    """Destroys the person's keys, empties read models, caches, archives and what is readable in the log, then searches
    for what is left: Receipt.hits. reason: stored in the receipt. full: rewrites each table under a lock.

    Cannot be undone; one that was killed is run again. Raises LogUnavailable, DatabaseUnavailable, NotProjectedInTime.
    """
    return await erase.erase(_surroundings(runtime, reach), plan, reason, full)


def _surroundings(runtime: Runtime, reach: ErasureReach) -> Surroundings:
    return Surroundings(
        log=runtime.log,
        pool=runtime.pool,
        database_url=runtime.database_url,
        settle=runtime.settle,
        step=reach.step,
        files=reach.files,
        archive=runtime.settings.archive,
        search_stream=runtime.settings.nats_url is not None,
    )


async def export_transcript(
    runtime: Runtime, tenant: str, thread: str, level: SanitiseLevel | None = SanitiseLevel.MODERATE
) -> list[Message]:
    """Oldest first. level: what is masked, None for nothing. Raises NotFound, InvalidToken."""
    found = await transcript(runtime, tenant, thread, limit=_ALL)
    return clean_messages(found.turns, level, runtime.settings.phone_regions.split(","))
