"""Any conversation id can be used in a path when percent-encoded."""

import asyncio
from uuid import uuid4

import pytest
from helpers.api import Serve
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import turnlog
from turnlog.events.subjects import OWN_THREADS

pytestmark = pytest.mark.slow

ODD = [
    "对话",
    "🦊",
    "a/b",
    "trail/",
    "/lead",
    "a/turns",
    "a//b",
    "/",
    "..",
    ".",
    "a/../b",
    "%2F",
    "%252F",
    "?x=1",
    "#",
    "a b",
]
ODD += [" ", "a\\b", "\x1b", "\x1bs", "\x1be/", "a;b", "a+b", "a:b", "a\nb", "e\u0301"]
IDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20).filter(
    lambda id_: not id_.startswith(OWN_THREADS)
)


@pytest.mark.parametrize("kept", ["%2F", "%2f"])
async def test_an_encoded_slash_is_part_of_the_id(serve: Serve, kept: str) -> None:
    async with serve() as api, api.client() as ann:
        body = {"turns": [{"role": "user", "content": "hello"}]}
        assert (await ann.post(f"/api/threads/2026{kept}turns/turns", json=body)).status_code == 201
        assert (await ann.get(f"/api/threads/2026{kept}turns")).json()["thread"] == "2026/turns"
        assert (await ann.get("/api/threads/2026/turns")).status_code == 404
        assert (await ann.get(f"/api/threads%2F2026{kept}turns")).status_code == 404
        assert (await ann.get("/v1/models/org%2Fname")).json()["error"]["message"].count("'org/name'") == 1


async def test_every_id_works_through_the_client(serve: Serve) -> None:
    async with serve() as api, turnlog.connect(api.url, key=api.token()) as memory:
        for id_ in ODD:
            thread = memory.thread(id_)
            await thread.add("user", f"in {id_}")
            assert [message.content for message in await thread.messages()] == [f"in {id_}"], repr(id_)
            assert (await thread.info()).thread == id_
        assert {info.thread for info in await memory.threads()} == set(ODD)
        for id_ in ODD:
            await memory.thread(id_).delete()
        assert await memory.threads() == []


@pytest.mark.nightly
async def test_no_two_ids_are_the_same_conversation(serve: Serve) -> None:
    """Tests random ids; each example uses separate names with a prefix."""
    async with serve() as api:
        token = api.token()

        @settings(
            max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
        )
        @given(IDS, IDS)
        @example("a/b", "a%2Fb")
        @example("a\x1bs", "a/")
        def check(first: str, second: str) -> None:
            mark = uuid4().hex[:8]
            with turnlog.connect(api.url, key=token) as memory:
                names = {f"{first}{mark}", f"{second}{mark}"}
                for name in names:
                    memory.thread(name).add("user", name)
                for name in names:
                    assert [message.content for message in memory.thread(name).messages()] == [name]

        await asyncio.to_thread(check)
