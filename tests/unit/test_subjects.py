"""Each thread has one safe subject token, and no two threads share a token."""

import re
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.events.errors import InvalidToken
from turnlog.events.subjects import (
    access_thread,
    check_id,
    check_tenant,
    memory_thread,
    parse_stored,
    present_thread,
    progress_subject,
    publish_subject,
    session_key,
    session_key_of,
    stored_transform,
    tenant_filter,
    thread_filter,
    thread_token,
    watch_subject,
    watch_type,
)

THREADS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=120)


@given(THREADS)
def test_any_thread_id_becomes_one_safe_token(thread: str) -> None:
    assert re.fullmatch(r"[~=A-Za-z0-9_-]{1,160}", thread_token(thread))
    assert publish_subject("acme", thread, "turn_recorded").count(".") == 3


@given(st.lists(THREADS, unique=True, max_size=20))
def test_no_two_threads_share_a_token(threads: list[str]) -> None:
    assert len({thread_token(thread) for thread in threads}) == len(threads)


@given(THREADS)
def test_no_thread_can_be_named_like_the_token_of_another(thread: str) -> None:
    token = thread_token(thread)
    assert token == thread or thread_token(token) != token


@pytest.mark.parametrize("thread", ["plain-1_A", "a" * 100])
def test_a_plain_id_stays_readable(thread: str) -> None:
    assert thread_token(thread) == thread


@pytest.mark.parametrize(
    "thread", ["a.b", "*", ">", "a b", "线", "🎓", "~YQ", "~~", "tab\t", "line\n", "\x7f", "x" * 512, "线" * 170]
)
def test_everything_else_is_encoded(thread: str) -> None:
    assert thread_token(thread) != thread
    assert thread_token(thread).startswith("~")
    assert len(thread_token(thread)) <= 160


@pytest.mark.parametrize(
    ("thread", "reason"),
    [
        ("x" * 10_000, "10000 bytes of UTF-8, more than 512; use a shorter id"),
        ("线" * 171, "513 bytes"),
        ("a\0b", "NUL character, which Postgres cannot store; remove it"),
        ("", "is empty"),
        ("\ud800", "lone surrogate"),
    ],
)
def test_an_id_that_cannot_be_stored_is_refused_with_the_reason(thread: str, reason: str) -> None:
    with pytest.raises(InvalidToken, match=reason):
        thread_token(thread)


@pytest.mark.parametrize("tenant", ["", "a.b", "*", ">", "a b", "线", "x" * 65, "a\n", "a\0"])
def test_a_tenant_is_a_plain_name(tenant: str) -> None:
    with pytest.raises(InvalidToken, match="no valid name"):
        check_tenant(tenant)
    with pytest.raises(InvalidToken):
        publish_subject(tenant, "t", "x")
    with pytest.raises(InvalidToken):
        thread_filter(tenant, "t")
    with pytest.raises(InvalidToken):
        tenant_filter(tenant)


@pytest.mark.parametrize("token", ["a.b", "*", ">", "", "a b"])
def test_no_type_or_request_can_widen_a_subject(token: str) -> None:
    with pytest.raises(InvalidToken):
        publish_subject("acme", "t", token)
    with pytest.raises(InvalidToken):
        progress_subject("acme", "t", token)


def test_a_stored_subject_is_read_back() -> None:
    stored = parse_stored("turnlog.log.3.acme.~YS5i.turn_recorded")
    assert (stored.partition, stored.tenant, stored.thread_token, stored.type) == (
        3,
        "acme",
        "~YS5i",
        "turn_recorded",
    )


@pytest.mark.parametrize("subject", ["turnlog.acme.t.x", "turnlog.log.x.acme.t.type", "a.b.c.d.e.f.g"])
def test_a_subject_that_is_not_the_streams_is_refused(subject: str) -> None:
    with pytest.raises(InvalidToken, match="does not belong to this stream"):
        parse_stored(subject)


def test_tenant_and_thread_choose_the_partition() -> None:
    assert stored_transform(8) == (
        "turnlog.*.*.*",
        "turnlog.log.{{partition(8,1,2)}}.{{wildcard(1)}}.{{wildcard(2)}}.{{wildcard(3)}}",
    )


@given(st.lists(THREADS, unique=True, max_size=20))
def test_every_thread_has_a_unique_key_that_is_valid_in_a_bucket(threads: list[str]) -> None:
    keys = {session_key("acme", thread) for thread in threads}
    assert len(keys) == len(threads)
    assert all(re.fullmatch(r"acme\.[-/_=a-zA-Z0-9]+", key) for key in keys)
    assert keys == {session_key_of("acme", thread_token(thread)) for thread in threads}


@pytest.mark.parametrize("thread", ["plain-1_A", "a.b", ">", "线"])
def test_a_watcher_of_a_thread_receives_only_messages_of_that_thread(thread: str) -> None:
    published = publish_subject("acme", thread, "turn_recorded")
    assert watch_subject("acme", thread) == published.removesuffix("turn_recorded") + "*"
    assert watch_type("acme", "erased") == "turnlog.acme.*.erased"
    with pytest.raises(InvalidToken):
        watch_subject("*", thread)
    with pytest.raises(InvalidToken):
        watch_type("acme", "*")


LENGTHS = st.sampled_from((1, 3, 384, 385, 512))


@given(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), LENGTHS)
def test_a_user_named_like_the_thread_or_hash_of_another_has_a_different_thread(character: str, length: int) -> None:
    user = (character * length).encode()[:length].decode(errors="ignore") or "u"
    for thread_of, prefix in ((memory_thread, "memories/"), (access_thread, "access/")):
        name = thread_of(user).removeprefix(prefix)
        others = {name, name.lstrip("~"), sha256(user.encode()).hexdigest(), f"~{name}", name[:384], name[-384:]}
        for other in others - {user, ""}:
            assert thread_of(other) != thread_of(user)
        check_id("thread", memory_thread(user, "s" * 64))


@given(THREADS, THREADS)
def test_two_users_have_two_threads(first: str, second: str) -> None:
    long = [f"{first}{'x' * 400}"[:480], f"{second}{'x' * 400}"[:480]]
    users = {user for user in (first, second, *long) if len(user.encode()) <= 512}
    assert len({memory_thread(user) for user in users}) == len(users)
    assert all(present_thread(memory_thread(user), user) == memory_thread(user) for user in users)
