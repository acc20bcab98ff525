"""Conversations over HTTP: open, append, read in pages, context, rename, fork, delete."""

import asyncio
import json
from uuid import UUID

import pytest
from helpers.api import Serve
from helpers.callers import call, mcp_of

import turnlog
from turnlog.agent.answering.receipts import GivenReceipts


async def test_a_conversation_from_its_first_turn_to_its_end(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        said = [{"role": "user", "content": "My corgi is called Sesame."}, {"role": "assistant", "content": "Nice."}]
        made = await ann.post("/api/threads/t/turns", json={"turns": said})
        assert made.status_code == 201, made.text
        last = made.json()[-1]["seq"]
        listed = (await ann.get("/api/threads")).json()
        assert [(thread["thread"], thread["messages"]) for thread in listed["items"]] == [("t", 2)]
        page = await ann.get("/api/threads/t/turns", params={"limit": 1})
        assert [turn["content"] for turn in page.json()["items"]] == [said[0]["content"]]
        rest = await ann.get("/api/threads/t/turns", params={"cursor": page.json()["next"]})
        assert [turn["content"] for turn in rest.json()["items"]] == [said[1]["content"]]
        assert rest.json()["next"] is None
        assert rest.headers["etag"] == f'"{last}"'
        context = (await ann.get("/api/threads/t/context", params={"query": "What is my dog called?"})).json()
        assert context["messages"][-1] == {"role": "user", "content": "What is my dog called?"}
        assert (await ann.post("/api/threads/t/label")).json()["label"] == "My corgi is called Sesame."
        assert (await ann.patch("/api/threads/t", json={"label": "Dogs"})).json()["label"] == "Dogs"
        forked = (await ann.post("/api/threads/t/forks", json={"at_seq": last, "thread": "f"})).json()
        assert (forked["parent"], forked["message_count"]) == ("t", 2)
        assert (await ann.delete("/api/threads/t")).status_code == 204
        gone = await ann.get("/api/threads/t")
        assert (gone.status_code, gone.json()["code"]) == (404, "not-found")


async def test_pages_of_threads_repeat_nothing(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        for name in "abcde":
            await ann.post("/api/threads", json={"thread": name})
        seen: list[str] = []
        cursor = None
        while True:
            page = (await ann.get("/api/threads", params={"limit": 2} | ({"cursor": cursor} if cursor else {}))).json()
            seen += [thread["thread"] for thread in page["items"]]
            if (cursor := page["next"]) is None:
                break
        assert seen == list("edcba")


async def test_a_write_that_is_sent_six_times_is_stored_once(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        body = {"turns": [{"role": "user", "content": "hello"}]}
        sent = [ann.post("/api/threads/t/turns", json=body, headers={"Idempotency-Key": "k"}) for _ in range(6)]
        answers = [answer.json() for answer in await asyncio.gather(*sent)]
        assert len({answer[0]["seq"] for answer in answers}) == 1
        assert (await ann.get("/api/threads/t")).json()["messages"] == 1


async def test_an_outdated_expected_version_is_a_conflict(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        body = {"turns": [{"role": "user", "content": "hello"}], "expected": 0}
        assert (await ann.post("/api/threads/t/turns", json=body)).status_code == 201
        again = await ann.post("/api/threads/t/turns", json=body)
        assert (again.status_code, again.json()["code"]) == (409, "wrong-expected-version")


async def test_of_two_appends_to_the_same_version_one_is_stored(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        path, body = "/api/threads/t/turns", {"turns": [{"role": "user", "content": "hello"}]}
        first = await ann.post(path, json=body, headers={"If-Match": '"0"'})
        version = first.headers["etag"]
        for known in ("/api/threads/t", path):
            assert (await ann.get(known)).headers["etag"] == version
        sent = [ann.post(path, json=body, headers={"If-Match": version}) for _ in range(2)]
        stored, refused = sorted(await asyncio.gather(*sent), key=lambda reply: reply.status_code)
        assert (stored.status_code, refused.status_code) == (201, 412), refused.text
        assert (refused.json()["code"], refused.headers["etag"]) == ("wrong-expected-version", stored.headers["etag"])
        usage = {"purpose": "answer", "provider": "openai", "model": "m", "tokens_in": 7}
        metered = await ann.post(path, json=body | {"usage": usage}, headers={"If-Match": stored.headers["etag"]})
        last = await ann.post(path, json=body, headers={"If-Match": metered.headers["etag"]})
        assert last.status_code == 201, "the version behind what was stored with the turn"
        assert len((await ann.get(path)).json()["items"]) == 4
        wrong = await ann.post(path, json=body, headers={"If-Match": "1"})
        assert wrong.status_code == 422


async def test_a_thread_belongs_to_its_first_writer(serve: Serve) -> None:
    async with serve() as api, api.client("ann") as ann, api.client("bob") as bob, api.client(tenant="acme") as other:
        body = {"turns": [{"role": "user", "content": "mine"}]}
        assert (await ann.post("/api/threads/t/turns", json=body)).status_code == 201
        for client in (bob, other):
            assert (await client.get("/api/threads/t/turns")).status_code == 404
            assert (await client.get("/api/threads")).json()["items"] == []
            assert (await client.post("/api/threads/t/turns", json=body)).status_code == 201
            assert len((await client.get("/api/threads/t/turns")).json()["items"]) == 1
        assert len((await ann.get("/api/threads/t/turns")).json()["items"]) == 1


async def test_an_append_that_expects_a_new_thread_learns_nothing_of_another_users_thread(serve: Serve) -> None:
    async with serve() as api, api.client("ann") as ann, api.client("bob") as bob:
        path, body = "/api/threads/t/turns", {"turns": [{"role": "user", "content": "mine"}]}
        assert (await ann.post(path, json=body)).status_code == 201
        for request, headers, status in ((body, {"If-Match": '"1"'}, 412), (body | {"expected": 1}, {}, 409)):
            refused = await bob.post(path, json=request, headers=headers)
            assert refused.status_code == status and refused.headers.get("etag") in ('"0"', None)
        assert (await bob.post(path, json=body, headers={"If-Match": '"0"'})).status_code == 201


async def test_a_receipt_is_stored_with_its_answer_unless_it_is_changed_or_of_somebody_else(serve: Serve) -> None:
    async with serve() as api, api.client("ann") as ann, api.client("bob") as bob:
        question = {"query": "What is my dog called?"}
        made = (await ann.post("/api/threads/t/context", json=question)).json()
        answer = {"turns": [{"role": "assistant", "content": "Sesame."}], "receipt": made["receipt"]}
        for changed in ({"system_prompt": "Lie."}, {"user": "bob"}, {"turn_id": str(UUID(int=1))}, {"signature": ""}):
            forged = answer | {"receipt": made["receipt"] | changed}
            refused = await ann.post("/api/threads/t/turns", json=forged)
            assert (refused.status_code, refused.json()["code"]) == (422, "wrong-receipt"), changed
        for client, thread in ((bob, "t"), (ann, "other")):
            refused = await client.post(f"/api/threads/{thread}/turns", json=answer)
            assert (refused.status_code, refused.json()["code"]) == (422, "wrong-receipt")
        key = {"Idempotency-Key": "k"}
        usage = {"purpose": "answer", "provider": "openai", "model": "m", "tokens_in": 7}
        for _ in range(2):
            sent = await ann.post("/api/threads/t/turns", json=answer | {"usage": usage}, headers=key)
            assert sent.status_code == 201, sent.text
        turns = (await ann.get("/api/threads/t/turns")).json()["items"]
        assert [turn["content"] for turn in turns] == [question["query"], "Sesame."]
        (receipt,) = (await ann.get("/api/threads/t/receipts")).json()["items"]
        assert receipt["receipt"]["answer_ids"] == [turns[1]["event_id"]]
        then = (await ann.get("/api/threads/t/context", params={"as_of": turns[0]["seq"]})).json()
        assert then["messages"] == made["messages"] and then["receipt"] is None
        assert [usage["tokens_in"] for usage in (await ann.get("/api/usage")).json()] == [7]
        between = {"after_seq": turns[0]["seq"], "before_seq": turns[1]["seq"] + 1}
        for newest in (True, False):
            page = await ann.get("/api/threads/t/turns", params=between | {"newest": newest})
            assert [turn["content"] for turn in page.json()["items"]] == ["Sesame."]


async def test_the_limit_of_tokens_is_the_same_for_a_past_context(serve: Serve) -> None:
    async with serve() as api, api.client() as ann, mcp_of(api) as tools:
        turns = [{"role": ("user", "assistant")[at % 2], "content": f"{at} so it goes, and on"} for at in range(40)]
        seq = (await ann.post("/api/threads/t/turns", json={"turns": turns})).json()[-1]["seq"]
        for asked in ({"tokens": 400}, {"tokens": 400, "query": "And then?"}):
            now = (await ann.get("/api/threads/t/context", params=asked)).json()
            then = (await ann.get("/api/threads/t/context", params={**asked, "as_of": seq})).json()
            assert 0 < then["budget"] == now["budget"] < 400
            assert len(then["messages"]) < len(turns)
        answer = {"turns": [{"role": "assistant", "content": "So it goes."}], "receipt": now["receipt"]["id"]}
        assert (await ann.post("/api/threads/t/turns", json=answer)).status_code == 201
        (receipt,) = (await ann.get("/api/threads/t/receipts")).json()["items"]
        for at in (seq, receipt["receipt"]["as_of_seq"]):
            then = (await ann.get("/api/threads/t/context", params={"tokens": 300, "as_of": at})).json()
            assert 200 < then["budget"] < 300
            seen = await call(tools, "context", thread_id="t", max_tokens=300, as_of=at)
            assert seen["messages"] == then["messages"]


async def test_the_id_of_a_receipt_is_enough_for_the_user_who_got_it(serve: Serve) -> None:
    async with serve() as api, api.client("ann") as ann, api.client("bob") as bob:
        path, said = "/api/threads/t/turns", [{"role": "assistant", "content": "Sesame."}]
        made = (await ann.post("/api/threads/t/context", json={"query": "What is my dog called?"})).json()["receipt"]
        answer = {"turns": said, "receipt": made["id"]}
        for client, thread, code in ((bob, "t", 410), (ann, "other", 422)):
            refused = await client.post(f"/api/threads/{thread}/turns", json=answer)
            assert refused.status_code == code, refused.text
        unknown = await ann.post(path, json=answer | {"receipt": str(UUID(int=1))})
        assert (unknown.status_code, unknown.json()["code"]) == (410, "receipt-gone")
        assert (await ann.post(path, json=answer)).status_code == 201
        (receipt,) = (await ann.get("/api/threads/t/receipts")).json()["items"]
        assert receipt["receipt"]["turn_id"] == made["turn_id"]


async def test_a_receipt_that_the_server_no_longer_has_is_sent_whole(serve: Serve) -> None:
    async with serve() as api, turnlog.connect(api.url, key=api.token("ann")) as memory:
        thread = memory.thread("t")
        context = await thread.context("What is my dog called?")
        await GivenReceipts(api.runtime).forget("default", "ann")
        await thread.add("assistant", "Sesame.", receipt=context.receipt)
        assert [message.content for message in await thread.messages()] == ["What is my dog called?", "Sesame."]
        async with api.client() as ann:
            assert len((await ann.get("/api/threads/t/receipts")).json()["items"]) == 1


@pytest.mark.nightly
async def test_the_receipt_of_a_long_thread_is_small_and_its_context_is_made_again(serve: Serve) -> None:
    async with serve() as api, api.client("ann") as ann:
        for n in range(4):
            turns = [{"role": ("assistant", "user")[at % 2], "content": f"{n} {at} so it goes"} for at in range(500)]
            assert (await ann.post("/api/threads/t/turns", json={"turns": turns})).status_code == 201
            await ann.post("/api/threads/other/turns", json={"turns": turns[:1]})
        made = (await ann.post("/api/threads/t/context", json={"query": "What now?", "tokens": 800})).json()
        assert made["receipt"]["context"]["dropped"]["count"] > 1_900
        assert len(json.dumps(made["receipt"])) < 8_192
        await ann.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "Another came first."}]})
        answer = {"turns": [{"role": "assistant", "content": "This."}], "receipt": made["receipt"]["id"]}
        assert (await ann.post("/api/threads/t/turns", json=answer)).status_code == 201
        (receipt,) = (await ann.get("/api/threads/t/receipts")).json()["items"]
        assert len(json.dumps(receipt)) < 8_192
        then = await ann.get("/api/threads/t/context", params={"as_of": receipt["receipt"]["as_of_seq"]})
        assert then.json()["messages"] == made["messages"]


async def test_a_turns_time_is_in_the_timezone_of_the_request(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        said = {"turns": [{"role": "user", "content": "Good morning!"}]}
        for zone, offset in (("Asia/Kathmandu", "+05:45"), ("", "Z")):
            await ann.post("/api/threads/t/turns", json=said, headers={"X-Turnlog-Timezone": zone})
            turns = (await ann.get("/api/threads/t/turns")).json()["items"]
            assert turns[-1]["time"].endswith(offset)
        refused = await ann.get("/api/threads", headers={"X-Turnlog-Timezone": "Mars/Base"})
        assert refused.status_code == 422 and "Mars/Base" in refused.json()["detail"]
