"""No conversation can have the name of turnlog's own threads, because deleting it would delete a user's memories."""

import pytest
from helpers.every_contract import EVERY_CONTRACT
from helpers.sample_events import event

from turnlog.agent.operations.jobs.job_states import all_jobs
from turnlog.agent.privacy.erasure.erasure_receipt import receipt_thread
from turnlog.agent.privacy.erasure.event_scan import Person
from turnlog.agent.settings import Settings
from turnlog.events.codec import decode, encode
from turnlog.events.contracts import EventData
from turnlog.events.errors import InvalidToken
from turnlog.events.publish import outgoing
from turnlog.events.subjects import OWN_THREADS, access_thread, check_conversation, memory_thread
from turnlog.projectors.models.operations.agents import AGENTS_THREAD
from turnlog.projectors.models.operations.limits import LIMITS_THREAD
from turnlog.projectors.models.store.projection import store_thread

OWN = [
    memory_thread("ann"),
    memory_thread("ann", "new-1"),
    access_thread("ann"),
    store_thread(("users", "ann")),
    all_jobs(Settings())[0].thread,
    LIMITS_THREAD,
    AGENTS_THREAD,
    receipt_thread(Person("default", "ann", ())),
]
REFUSED = {
    "thread_opened",
    "thread_renamed",
    "thread_forked",
    "participant_set",
    "turn_recorded",
    "answer_requested",
    "session_created",
    "session_updated",
    "checkpoint_saved",
    "checkpoint_writes_saved",
}


def is_published(data: EventData, thread: str) -> bool:
    try:
        outgoing(event(data, thread), None, 8_000_000)
    except InvalidToken:
        return False
    return True


def test_every_internal_thread_has_a_listed_prefix() -> None:
    assert sorted(thread.partition("/")[0] + "/" for thread in OWN) == sorted(OWN_THREADS)


@pytest.mark.parametrize("thread", OWN)
def test_no_conversation_can_have_an_internal_name(thread: str) -> None:
    with pytest.raises(InvalidToken, match=r"names that begin with memories/, .* are turnlog's own; choose another"):
        check_conversation(thread)


@pytest.mark.parametrize("thread", ["memories", "my/memories/ann", "Jobs/decay", "storefront/1", "线"])
def test_a_conversation_may_have_a_similar_name(thread: str) -> None:
    assert check_conversation(thread) == thread
    assert all(is_published(data, thread) for data in EVERY_CONTRACT)


@pytest.mark.parametrize("thread", OWN)
def test_events_of_conversations_are_not_published_on_internal_threads(thread: str) -> None:
    assert {data.type for data in EVERY_CONTRACT if not is_published(data, thread)} == REFUSED


@pytest.mark.parametrize("thread", OWN)
def test_existing_events_on_internal_threads_can_be_read(thread: str) -> None:
    for data in EVERY_CONTRACT:
        stored = event(data, thread)
        assert decode(encode(stored)) == stored
