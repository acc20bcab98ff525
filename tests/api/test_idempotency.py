"""Every writing route accepts an Idempotency-Key: a repeated write happens once and gets the same response."""

import asyncio
import threading
from typing import Any
from uuid import UUID

import httpx2
import pytest
from helpers.api import Api, Serve
from helpers.servers import eventually, rows
from helpers.stage import MemoryServer

from turnlog.agent.access.idempotency import KEPT
from turnlog.agent.operations.jobs.caches import clean_caches
from turnlog.consumers.api.idempotency import HEADERS
from turnlog.events.progress import no_progress
from turnlog.events.subjects import publish_subject

pytestmark = pytest.mark.slow

Request = tuple[str, str, dict[str, Any] | None]
WITHOUT_KEY = {
    "POST /api/recall": "reads; its question is too long for a URL",
    "POST /api/threads/{thread}/context": "reads; its question is too long for a URL",
    "POST /api/threads/{thread}/answers/{seq}/cancel": "sent again, it finds no answer under way",
    "POST /v1/embeddings": "stores nothing",
    "POST /v1/responses/compact": "stores nothing",
    "POST /api/sign-in": "a ticket is good once; a second answer would be a second token",
    "POST /short-memory/query": "reads; the session memory names it so",
    "POST /ai-agent/refresh-context": "reads again; ai-agent names it so",
}
# Only the document of these operations is checked, because they call the same functions as others.
OTHER_NAMES = ("/ai-agent/", "/admin/ai-agent/", "/short-memory/")
KEY = {"Idempotency-Key": "k"}
HOOK = "http://127.0.0.1:9/hook"


def answering_by(model: MemoryServer) -> dict[str, str]:
    return {"api_base_url": model.url, "model": "m", "webhook_networks": "127.0.0.0/8"}


async def writes_of(client: httpx2.AsyncClient) -> dict[str, dict[str, Any]]:
    paths = (await client.get("/openapi.json")).json()["paths"]
    return {
        f"{name.upper()} {path}": operations[name]
        for path, operations in paths.items()
        for name in operations
        if name != "get"
    }


async def test_every_write_documents_its_key(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        writes = await writes_of(ann)
        without = {
            name
            for name, operation in writes.items()
            if "idempotency-key" not in {parameter["name"] for parameter in operation.get("parameters", [])}
        }
        assert without == WITHOUT_KEY.keys()
        reads = [
            operations["get"]
            for operations in (await ann.get("/openapi.json")).json()["paths"].values()
            if "get" in operations
        ]
        assert not any(
            parameter["name"] == "idempotency-key" for read in reads for parameter in read.get("parameters", [])
        )


async def examples(api: Api, ann: httpx2.AsyncClient) -> dict[str, Request]:
    """Returns for each operation a request that succeeds when it is sent once, in the order of sending."""
    turns = {"turns": [{"role": "user", "content": "hello"}]}
    for thread in ("t", "gone"):
        await ann.post(f"/api/threads/{thread}/turns", json=turns)
    seq = (await ann.get("/api/threads/t/turns")).json()["items"][0]["seq"]
    await ann.put("/api/threads/t/participants/cy", json={})
    memories = {}
    for name in ("green", "black", "white", "red"):
        made = await ann.post("/api/memories", json={"content": f"Ann likes {name} tea.", "category": name})
        memories[name] = f"/api/memories/{made.json()['memory_id']}"
    for city in ("Oslo", "Lima"):
        await ann.post("/api/memories", json={"content": f"I live in {city}.", "importance": 0.5})
    key = (await ann.post("/api/operations/keys", json={"user": "ann"})).json()["id"]
    assert (await ann.post("/api/operations/webhooks", json={"name": "a", "url": HOOK})).status_code == 201
    letters = [await broken(api, f"broken-{number}") for number in range(2)]
    await api.runtime.wait_until_projected()
    answer = {"messages": [{"role": "user", "content": "hello"}], "model": "m"}
    conversation = (await ann.post("/v1/conversations", json={})).json()["id"]
    response = (await ann.post("/v1/responses", json={"input": "a single question"})).json()["id"]
    item = {"type": "message", "role": "user", "content": "hello"}
    entity = {"type": "PERSON", "name": "Mia"}
    return {
        "POST /api/threads": ("POST", "/api/threads", {"label": "Dogs"}),
        "PUT /api/threads/{thread}/participants/{user}": ("PUT", "/api/threads/t/participants/bob", {"role": "reader"}),
        "DELETE /api/threads/{thread}/participants/{user}": ("DELETE", "/api/threads/t/participants/cy", None),
        "PATCH /api/threads/{thread}": ("PATCH", "/api/threads/t", {"label": "Cats"}),
        "POST /api/threads/{thread}/label": ("POST", "/api/threads/t/label", None),
        "POST /api/threads/{thread}/forks": ("POST", "/api/threads/t/forks", {"at_seq": seq}),
        "POST /api/threads/{thread}/turns": ("POST", "/api/threads/t/turns", turns),
        "POST /api/threads/{thread}/answers": ("POST", "/api/threads/t/answers", {"message": "hello"}),
        "POST /api/threads/{thread}/answers/stream": ("POST", "/api/threads/t/answers/stream", {"message": "hello"}),
        "POST /api/chat/stream": ("POST", "/api/chat/stream", {"message": "hello", "conversation_id": "t"}),
        "POST /api/threads/{thread}/turns/{seq}/redact/preview": (
            "POST",
            f"/api/threads/t/turns/{seq}/redact/preview",
            {"words": "hello"},
        ),
        "DELETE /api/threads/{thread}": ("DELETE", "/api/threads/gone", None),
        "POST /api/memories": ("POST", "/api/memories", {"content": "Ann has a corgi."}),
        "PUT /api/memories/{memory}/content": ("PUT", f"{memories['green']}/content", {"content": "Ann likes mint."}),
        "POST /api/memories/{memory}/revert": ("POST", f"{memories['green']}/revert", None),
        "PUT /api/memories/{memory}/importance": ("PUT", f"{memories['black']}/importance", {"importance": 0.2}),
        "POST /api/memories/{memory}/archive": ("POST", f"{memories['white']}/archive", {"reason": "old"}),
        "DELETE /api/memories/{memory}": ("DELETE", memories["red"], None),
        "POST /api/memories/forget": ("POST", "/api/memories/forget", {"memory": "black tea"}),
        "POST /api/entities": ("POST", "/api/entities", entity),
        "PATCH /api/entities": ("PATCH", "/api/entities", entity | {"description": "a friend"}),
        "PATCH /api/preferences": ("PATCH", "/api/preferences", {"set": {"enable_memory": True}}),
        "PUT /api/threads/{thread}/session": ("PUT", "/api/threads/t/session", {}),
        "PATCH /api/threads/{thread}/session": ("PATCH", "/api/threads/t/session", {"current_agent_key": "desk"}),
        "POST /api/threads/{thread}/session/checkpoints": (
            "POST",
            "/api/threads/t/session/checkpoints",
            {"summary": "They said hello."},
        ),
        "POST /api/threads/{thread}/session/reset": ("POST", "/api/threads/t/session/reset", None),
        "PUT /api/operations/limits/{plan}": ("PUT", "/api/operations/limits/vip", {"user_per_minute": 500}),
        "DELETE /api/operations/users/{user}/rate": ("DELETE", "/api/operations/users/ann/rate", None),
        "POST /api/operations/dead-letters/retry": ("POST", "/api/operations/dead-letters/retry", {"seq": letters[0]}),
        "POST /api/operations/dead-letters/{seq}/drop": (
            "POST",
            f"/api/operations/dead-letters/{letters[1]}/drop",
            {},
        ),
        "POST /api/operations/rebuild": ("POST", "/api/operations/rebuild", {"projection": "limits"}),
        "POST /api/operations/keys": ("POST", "/api/operations/keys", {"user": "ann"}),
        "DELETE /api/operations/keys/{key_id}": ("DELETE", f"/api/operations/keys/{key}", None),
        "POST /api/operations/webhooks": ("POST", "/api/operations/webhooks", {"name": "b", "url": HOOK}),
        "DELETE /api/operations/webhooks/{name}": ("DELETE", "/api/operations/webhooks/a", None),
        "POST /api/tickets": ("POST", "/api/tickets", None),
        "POST /v1/chat/completions": ("POST", "/v1/chat/completions", answer | {"stream": True}),
        "POST /v1/responses": ("POST", "/v1/responses", {"input": "hello", "model": "m"}),
        "DELETE /v1/responses/{response}": ("DELETE", f"/v1/responses/{response}", None),
        "POST /v1/conversations": ("POST", "/v1/conversations", {"items": [item]}),
        "POST /v1/conversations/{thread}/items": (
            "POST",
            f"/v1/conversations/{conversation}/items",
            {"items": [item]},
        ),
        "POST /api/export": ("POST", "/api/export", {}),
        "DELETE /api/user-data": ("DELETE", "/api/user-data?includeEntities=true", None),
    }


async def broken(api: Api, thread: str) -> int:
    published = await api.runtime.log.nc.jetstream().publish(publish_subject("default", thread, "turn_recorded"), b"{")
    return int(published.seq)


# These have separate tests, because their preconditions would disturb the others.
ELSEWHERE = {
    "POST /api/operations/webhooks/{name}/failures/{seq}/retry",
    "POST /api/operations/webhooks/{name}/failures/{seq}/drop",
    "POST /api/conflicts/{conflict}/answer",
    "POST /api/erase",
    "POST /api/threads/{thread}/turns/{seq}/redact",
    "POST /api/import",
}


async def test_every_write_sent_three_times_is_one_and_answers_the_same(serve: Serve, model: MemoryServer) -> None:
    async with (
        serve("agent", **answering_by(model)) as api,
        api.client(role="admin") as ann,
    ):
        known = await examples(api, ann)
        own = {name for name in await writes_of(ann) if not name.split(" ")[1].startswith(OTHER_NAMES)}
        assert own - WITHOUT_KEY.keys() - ELSEWHERE == known.keys(), "a new write needs an example here"
        for name, (method, path, body) in known.items():
            at_once = (ann.request(method, path, json=body, headers=KEY) for _ in range(2))
            answers = [*await asyncio.gather(*at_once), await ann.request(method, path, json=body, headers=KEY)]
            assert answers[0].is_success, f"{name}: {answers[0].text}"
            assert {answer.status_code for answer in answers} == {answers[0].status_code}, name
            if not name.endswith("/answers/stream"):  # a joined stream numbers its events by connection
                assert {answer.content for answer in answers} == {answers[0].content}, name
            other = await ann.request(method, path, json=(body or {}) | {"other": 1}, headers=KEY)
            assert other.status_code == (400 if path.startswith("/v1/") else 422), f"{name}: {other.text}"
            assert "this Idempotency-Key came with another body before" in other.text, name


async def test_an_import_sent_again_with_its_key_is_one_job(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        file = b'{"role": "user", "content": "hello"}\n'
        sent = [await ann.post("/api/import", content=file, headers=KEY) for _ in range(2)]
        assert [answer.status_code for answer in sent] == [202, 202], sent[1].text
        assert sent[0].json()["id"] == sent[1].json()["id"]
        other = await ann.post("/api/import", content=file + file, headers=KEY)
        assert other.status_code == 422
        assert "another body" in other.text


async def test_the_answer_to_a_question_is_given_once(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        question = await conflict(ann)
        path = f"/api/conflicts/{question}/answer"
        sent = [await ann.post(path, json={"answer": "new"}, headers=KEY) for _ in range(2)]
        assert [answer.status_code for answer in sent] == [200, 200], sent[1].text
        assert sent[0].json() == sent[1].json()
        assert sent[1].headers["idempotent-replayed"] == "true"


async def conflict(client: httpx2.AsyncClient) -> UUID:
    for content in ("My birthday is May 8.", "My birthday is June 9."):
        await client.post("/api/memories", json={"content": content})
    return UUID((await client.get("/api/conflicts")).json()["items"][0]["conflict_id"])


async def test_six_concurrent_repeats_of_a_write_store_one_event(serve: Serve) -> None:
    """Uses writes whose repetition the log itself cannot detect."""
    async with serve() as api, api.client() as ann:
        head = await api.runtime.log.head()
        body = {"set": {"enable_memory": True}}
        sent = [ann.patch("/api/preferences", json=body, headers=KEY) for _ in range(6)]
        assert len({answer.content for answer in await asyncio.gather(*sent)}) == 1
        assert await api.runtime.log.head() == head + 1
        await ann.patch("/api/preferences", json=body)
        assert await api.runtime.log.head() == head + 2


async def test_a_key_is_valid_only_for_its_user_and_tenant(serve: Serve) -> None:
    async with serve() as api, api.client() as ann, api.client("bob") as bob, api.client(tenant="acme") as other:
        for client, content in ((ann, "Ann likes tea."), (bob, "Bob likes tea."), (other, "Ann likes coffee.")):
            made = await client.post("/api/memories", json={"content": content}, headers=KEY)
            assert made.status_code == 201, made.text
            assert [memory["content"] for memory in (await client.get("/api/memories")).json()["items"]] == [content]


async def test_a_write_that_failed_may_be_sent_again_with_its_key(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        path = "/api/threads/t/session"
        assert (await ann.put(path, json={}, headers=KEY)).status_code == 404
        await ann.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "hello"}]})
        assert (await ann.put(path, json={"window": 4_096}, headers=KEY)).status_code == 200


async def test_a_key_does_not_return_the_response_to_a_token_with_other_rights(serve: Serve) -> None:
    async with serve() as api, api.client() as ann, api.client(scopes=["read"]) as reader:
        body = {"content": "Ann likes tea."}
        assert (await ann.post("/api/memories", json=body, headers=KEY)).status_code == 201
        assert (await reader.post("/api/memories", json=body, headers=KEY)).status_code in (403, 422)


@pytest.mark.nightly
async def test_a_key_is_refused_if_a_relevant_header_differs(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        body = {"messages": [{"role": "user", "content": "hello"}], "model": "m"}
        for thread, status in (("t", 200), ("other", 400)):
            sent = await ann.post("/v1/chat/completions", json=body, headers=KEY | {"X-Turnlog-Thread": thread})
            assert sent.status_code == status, sent.text
        paths = (await ann.get("/openapi.json")).json()["paths"].values()
        writes = [operation for path in paths for name, operation in path.items() if name != "get"]
        named = {
            parameter["name"].lower()
            for write in writes
            for parameter in write.get("parameters", [])
            if parameter["in"] == "header"
        }
        assert named == {*HEADERS, "idempotency-key", "x-turnlog-user"}, "a new header belongs into HEADERS"


async def test_a_write_whose_process_died_is_done_by_the_next(serve: Serve) -> None:
    """The lease of the dead process is still in the database."""
    async with serve() as api, api.client() as ann:
        body = {"content": "Ann likes tea."}
        await ann.post("/api/memories", json=body, headers=KEY)
        async with api.runtime.pool.connection() as conn:
            await conn.execute(
                "UPDATE repeatable_writes SET answer = NULL, held_until = now() + make_interval(secs => 0.3)"
            )
        again = await ann.post("/api/memories", json=body, headers=KEY)
        assert again.status_code == 201 and "idempotent-replayed" not in again.headers
        assert len((await ann.get("/api/memories")).json()["items"]) == 1


async def test_a_write_that_takes_longer_than_its_lease_is_done_once(serve: Serve, model: MemoryServer) -> None:
    """Its lease is renewed in time, and a repeat waits for it."""
    go_on = threading.Event()
    model.reply("late", until=go_on)
    async with serve(api_base_url=model.url, model="m") as api, api.client() as ann:

        async def held_until() -> Any:
            async with api.runtime.pool.connection() as conn:
                [(until,)] = await rows(conn, "SELECT held_until FROM repeatable_writes")
            return until

        async def is_renewed() -> bool:
            return bool(await held_until() > begun_until)

        body = {"messages": [{"role": "user", "content": "hello"}], "model": "m"}
        path, headers = "/v1/chat/completions", KEY | {"X-Turnlog-Thread": "t"}
        first = asyncio.create_task(ann.post(path, json=body, headers=headers))
        await eventually(lambda: asked(model))
        begun_until = await held_until()
        await eventually(is_renewed)
        repeat = asyncio.create_task(ann.post(path, json=body, headers=headers))
        go_on.set()
        again = await repeat
        assert again.headers["idempotent-replayed"] == "true"
        assert again.content == (await first).content
        assert (await ann.get("/api/threads/t")).json()["messages"] == 2


async def asked(model: MemoryServer) -> bool:
    return bool(model.asked("answer"))


@pytest.mark.parametrize(
    ("path", "question"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
        ("/v1/responses", {"input": "hello"}),
    ],
)
async def test_a_stream_that_ended_with_an_error_may_be_sent_again_with_its_key(
    serve: Serve, model: MemoryServer, path: str, question: dict[str, Any]
) -> None:
    model.fail(401)
    async with serve(api_base_url=model.url, model="m") as api, api.client() as ann:
        body = question | {"model": "m", "stream": True}
        assert "answered 401" in (await ann.post(path, json=body, headers=KEY)).text
        again = await ann.post(path, json=body, headers=KEY)
        assert "echo:" in again.text and "error" not in again.text.replace('"error": null', "")
        assert "idempotent-replayed" not in again.headers


async def test_stored_responses_are_encrypted_and_deleted_after_two_days_or_by_an_erasure(serve: Serve) -> None:
    async with serve() as api, api.client() as ann, api.client("bob") as bob:
        for client in (ann, bob):
            await client.patch("/api/preferences", json={"set": {"language": "zanzibar"}}, headers=KEY)
            await client.post("/api/threads/" + str(client is ann) + "/turns", json={"turns": [{"role": "user"}]})
        rows = "SELECT user_id, position('zanzibar'::bytea IN answer) FROM repeatable_writes ORDER BY 1"
        async with api.runtime.pool.connection() as conn:
            assert await (await conn.execute(rows)).fetchall() == [("ann", 0), ("bob", 0)]
            job = (await bob.post("/api/erase", json={})).json()["id"]

            async def erased() -> bool:
                return bool((await bob.get(f"/api/jobs/{job}")).json()["state"] == "done")

            await eventually(erased)
            assert await (await conn.execute(rows)).fetchall() == []  # her response could have contained his words
            await ann.patch("/api/preferences", json={"set": {"language": "de"}}, headers=KEY)
            now = (await (await conn.execute("SELECT now()")).fetchall())[0][0]
            for age, left in ((0.9, 1), (1.1, 0)):
                await clean_caches(api.runtime, now + age * KEPT, no_progress)
                assert len(await (await conn.execute(rows)).fetchall()) == left


async def test_the_log_stores_a_write_once_if_its_response_was_lost(serve: Serve) -> None:
    """This happens when the process dies between the append and the response."""
    async with serve() as api, api.client(role="admin") as ann:
        requests = {
            "/api/preferences": ("PATCH", {"set": {"enable_memory": True}}),
            "/api/operations/limits/vip": ("PUT", {"user_per_minute": 500}),
            "/admin/ai-agent/agents/essay": ("PUT", {"temperature": 0.5}),
            "/admin/ai-agent/agents/profile": ("PATCH", {"temperature": 0.5}),
            "/admin/ai-agent/agents/essay/toggle": ("PUT", {}),
        }
        for path, (method, body) in requests.items():
            first = await ann.request(method, path, json=body, headers=KEY)
            head = await api.runtime.log.head()
            async with api.runtime.pool.connection() as conn:
                await conn.execute("DELETE FROM repeatable_writes")
            again = await ann.request(method, path, json=body, headers=KEY)
            assert (again.status_code, again.json()) == (200, first.json())
            assert "idempotent-replayed" not in again.headers
            assert await api.runtime.log.head() == head, path


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_completion_that_failed_and_is_sent_again_stores_its_question_once(
    serve: Serve, model: MemoryServer, goes_on: bool
) -> None:
    async with serve(api_base_url=model.url, model="m") as api, api.client() as ann:
        body: dict[str, Any] = {"model": "m", "input": "first"}
        if goes_on:
            body = {"model": "m", "input": "second", "previous_response_id": (await made(ann, body))["id"]}
        model.fail(401)
        assert (await ann.post("/v1/responses", json=body, headers=KEY)).status_code >= 400
        again = await ann.post("/v1/responses", json=body, headers=KEY)
        assert again.status_code == 200 and "idempotent-replayed" not in again.headers
        threads = (await ann.get("/api/threads")).json()["items"]
        assert [thread["thread"] for thread in threads] == [again.headers["x-turnlog-thread"]]
        turns = (await ann.get(f"/api/threads/{threads[0]['thread']}/turns")).json()["items"]
        said = ["first", "echo: first", "second", "echo: second"]
        assert [turn["content"] for turn in turns] == said[: 4 if goes_on else 2]


async def made(client: Any, body: dict[str, Any]) -> dict[str, Any]:
    response = (await client.post("/v1/responses", json=body)).json()
    assert isinstance(response, dict)
    return response
