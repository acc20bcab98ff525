"""Two users can both have a conversation "main" on every interface."""

import asyncio
import json
from typing import Any

import httpx2
import pytest
from helpers.api import Api
from helpers.callers import mcp_of, socket
from helpers.faces import Ask, answer, completion, controller, graph, message, response

pytestmark = pytest.mark.slow


async def said(user: httpx2.AsyncClient, thread: str = "main") -> list[str]:
    page = await user.get(f"/api/threads/{thread}/turns")
    assert page.status_code == 200, page.text
    return [turn["content"] for turn in page.json()["items"] if turn["role"] == "user"]


@pytest.mark.parametrize("ask", [completion, response, answer, controller, message, graph])
async def test_two_users_can_use_one_name_for_separate_conversations(api: Api, ask: Ask) -> None:
    async with api.client("ann", role="vip") as ann, api.client("bob", role="vip") as bob:
        first = await asyncio.gather(ask(ann, "main", "Ann one."), ask(bob, "main", "Bob one."))
        second = [await ask(user, "main", text) for user, text in ((ann, "Ann two."), (bob, "Bob two."))]
        assert all(reply.status_code < 300 for reply in (*first, *second)), [reply.text for reply in (*first, *second)]
        assert await said(ann) == ["Ann one.", "Ann two."]
        assert await said(bob) == ["Bob one.", "Bob two."]
        ids = [(await user.get("/api/threads/main")).json()["thread"] for user in (ann, bob)]
        assert "main" in ids and len(set(ids)) == 2
        for user, own, other in ((ann, *ids), (bob, *reversed(ids))):
            assert await said(user, own) == await said(user)
            if other != "main":
                assert (await user.get(f"/api/threads/{other}")).status_code == 404
        history = (await bob.get("/api/chat/history", params={"thread_id": "main"})).json()
        assert [turn["blocks"][0]["text"] for turn in history if turn["role"] == "user"] == ["Bob one.", "Bob two."]


async def test_errors_say_the_name_that_the_caller_used_and_that_it_was_deleted(api: Api) -> None:
    async with api.client("ann", role="vip") as ann, api.client("bob", role="vip") as bob:
        for user in (ann, bob):
            assert (await completion(user, "main", "Hello.")).status_code == 200
            assert (await user.delete("/api/threads/main")).status_code < 300
            for again in (
                await user.get("/api/threads/main"),
                await answer(user, "main", "Again."),
                await message(user, "main", "x"),
            ):
                assert again.status_code == 404
                assert "'main' was deleted" in again.text and "-of-" not in again.text
            refused = (await completion(user, "main", "Again.")).json()["error"]
            assert refused["message"].startswith("the conversation 'main' was deleted. Its name cannot be used again")


async def test_sockets_and_tools_use_the_conversation_of_their_user(api: Api) -> None:
    async def ask(user: str) -> list[Any]:
        async with socket(api, "main", f"?token={api.token(user)}") as ws:
            came: list[Any] = []
            for text in (f"{user} one.", f"{user} two."):
                await ws.send(json.dumps({"message": text}))
                came.append(json.loads(await ws.recv()))
                while came[-1]["type"] not in ("streaming_end", "error"):
                    came.append(json.loads(await ws.recv()))
        return came

    for user in ("ann", "bob"):
        assert [message["type"] for message in await ask(user)].count("streaming_end") == 2
        async with api.client(user) as client:
            assert await said(client) == [f"{user} one.", f"{user} two."]
        async with mcp_of(api, user) as tools:
            seen = str(await tools.call_tool("context", {"thread_id": "main"}))
            assert f"{user} two." in seen
            recalled = await tools.call_tool("recall", {"query": "one", "thread_id": "main"})
            assert not recalled.is_error


async def test_sessions_and_forks_of_the_same_name_belong_to_their_user(api: Api) -> None:
    async with api.client("ann") as ann, api.client("bob") as bob:
        for user, name in ((ann, "ann"), (bob, "bob")):
            made = await user.post("/short-memory/create", json={"conversation_id": "main"})
            assert made.status_code == 201, made.text
            written = await user.post(
                "/short-memory/write", json={"conversation_id": "main", "user_query": f"I am {name}."}
            )
            assert written.status_code == 201, written.text
            query = {"conversation_id": "main", "query": "Who?"}
            assert f"I am {name}." in (await user.post("/short-memory/query", json=query)).text
            assert await said(user) == [f"I am {name}."]
            seq = (await user.get("/api/threads/main/turns")).json()["items"][0]["seq"]
            fork = await user.post("/api/threads/main/forks", json={"at_seq": seq, "thread": "copy"})
            assert fork.status_code == 201, fork.text
            assert await said(user, "copy") == [f"I am {name}."]


async def test_a_version_is_that_of_the_users_own_conversation(api: Api) -> None:
    async with api.client("ann") as ann, api.client("bob") as bob:
        for user in (ann, bob):
            turns = {"turns": [{"role": "user", "content": "one"}], "expected": 0}
            assert (await user.post("/api/threads/main/turns", json=turns)).status_code == 201
            assert (await user.post("/api/threads/main/turns", json=turns)).status_code == 409
            tag = (await user.get("/api/threads/main")).headers["ETag"]
            headers = {"If-Match": tag}
            more = {"turns": [{"role": "user", "content": "two"}]}
            assert (await user.post("/api/threads/main/turns", json=more, headers=headers)).status_code == 201
            stale = await user.post("/api/threads/main/turns", json=more, headers=headers)
            assert (
                stale.status_code == 412
                and stale.headers["ETag"] == (await user.get("/api/threads/main")).headers["ETag"]
            )


async def test_nobody_can_take_the_id_of_another_users_named_conversation(api: Api) -> None:
    async with api.client("ann") as ann, api.client("bob") as bob, api.client("eve") as eve:
        await answer(ann, "main", "Ann.")
        await answer(bob, "main", "Bob.")
        [his] = (await bob.get("/api/threads")).json()["items"]
        await bob.delete("/api/threads/main")
        for name in (his["thread"], "other-of-0123456789abcdef"):
            await eve.post(f"/api/threads/{name}/turns", json={"turns": [{"role": "user", "content": "Eve."}]})
        assert not {his["thread"], "other-of-0123456789abcdef"} & {
            thread["thread"] for thread in (await eve.get("/api/threads")).json()["items"]
        }
        assert (await answer(bob, "main", "Again.")).status_code == 404
