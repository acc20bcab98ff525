"""Lone surrogates and NUL become U+FFFD in texts from every interface; an id with NUL is refused."""

import json
from typing import Any

from helpers.api import Api, Serve
from helpers.callers import socket
from helpers.openai_server import OpenAIServer

import turnlog
from turnlog.events.texts import storable

BAD, GOOD = "caf\ud83d ol\0é \ud83e\udd8a", "caf\ufffd ol\ufffdé \U0001f98a"


def sent(**body: Any) -> bytes:
    return json.dumps(body).encode()


async def contents(api: Api, thread: str) -> list[Any]:
    async with api.client() as ann:
        return [turn["content"] for turn in (await ann.get(f"/api/threads/{thread}/turns")).json()["items"]]


async def test_texts_from_every_interface_are_stored_the_same(serve: Serve) -> None:
    async with serve("agent") as api, api.client() as ann:
        ann.headers["Content-Type"] = "application/json"
        said = [{"role": "user", "content": BAD}, {"role": "user", "content": [{"type": "text", "text": BAD}]}]
        called = {"id": "c", "name": "search", "arguments": f'{{"q": "{BAD}"}}'}
        said += [{"role": "assistant", "content": None, "tool_calls": [called]}]
        said += [{"role": "tool", "tool_call_id": "c", "content": BAD}]
        answer = await ann.post("/api/threads/http/turns", content=sent(turns=said))
        assert answer.status_code == 201, answer.text
        texts = await contents(api, "http")
        assert texts == [GOOD, [{"type": "text", "text": GOOD}], "", GOOD]

        raw = json.dumps({"turns": said[:1]}, ensure_ascii=False).encode("utf-8", "surrogatepass")
        assert (await ann.post("/api/threads/bytes/turns", content=raw)).status_code == 201
        assert await contents(api, "bytes") == [GOOD]

        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": BAD}], "metadata": {"thread": "chat"}}),
            ("/v1/responses", {"input": BAD, "instructions": BAD, "metadata": {"thread": "responses"}}),
        ):
            answer = await ann.post(path, content=sent(model="m", **body))
            assert answer.status_code == 200, answer.text

        async with socket(api, "socket", f"?token={api.token()}") as ws:
            await ws.send(json.dumps({"message": BAD}))
            while json.loads(await ws.recv())["type"] not in ("streaming_end", "error"):
                pass
        assert (await contents(api, "socket"))[0] == GOOD

        answer = await ann.patch("/api/threads/http", content=sent(label=BAD))
        assert (answer.status_code, answer.json()["label"]) == (200, GOOD)
        answer = await ann.post("/api/memories", content=sent(content=f"{BAD} likes tea", metadata={BAD: BAD}))
        assert answer.status_code == 201, answer.text
        assert (await ann.post("/api/recall", content=sent(query=BAD, thread="http"))).json()["items"]
        answer = await ann.post("/api/threads/http/context", content=sent(query=BAD))
        assert answer.json()["messages"][-1]["content"] == GOOD

        named = {"name": "remember", "arguments": {"text": f"{BAD} drinks coffee"}}
        asked = sent(jsonrpc="2.0", id=1, method="tools/call", params=named)
        accepts = {"Accept": "application/json, text/event-stream"}
        assert "result" in (await ann.post("/mcp", content=asked, headers=accepts)).json()
        memories = [memory["content"] for memory in (await ann.get("/api/memories")).json()["items"]]
        assert memories == [f"{GOOD} drinks coffee", f"{GOOD} likes tea"]
        answer = await ann.post("/api/threads", content=sent(thread="a\0b"))
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid-id")


async def test_a_model_reads_whole_texts_and_a_resent_history_goes_on(serve: Serve) -> None:
    with OpenAIServer() as model:
        model.reply(BAD)
        async with serve("agent", api_base_url=model.url, api_key=model.key, model="m") as api, api.client() as ann:
            ann.headers["Content-Type"] = "application/json"
            asked = [{"role": "system", "content": BAD}, {"role": "user", "content": BAD}]
            first = await ann.post("/v1/chat/completions", content=sent(model="m", messages=asked))
            answer = first.json()["choices"][0]["message"]["content"]
            asked += [{"role": "assistant", "content": answer}, {"role": "user", "content": "and\0now"}]
            second = await ann.post("/v1/chat/completions", content=sent(model="m", messages=asked))
            assert first.headers["X-Turnlog-Thread"] == second.headers["X-Turnlog-Thread"]
            assert answer == GOOD == (await contents(api, first.headers["X-Turnlog-Thread"]))[1]
        read = [message["content"] for body in model.bodies("chat") for message in body["messages"]]
        assert read and storable(read) == read


async def test_texts_of_a_program_are_stored_the_same(serve: Serve) -> None:
    async with serve("agent") as api:
        settings = {name: getattr(api.runtime.settings, name) for name in ("nats_url", "database_url", "home", "kek")}
        opened = turnlog.open(**settings, roles=["projectors"]), turnlog.connect(api.url, key=api.token("bob"))
        for opening, user in zip(opened, ("ann", "bob"), strict=True):
            async with opening as memory:
                thread = memory.thread(f"of-{user}", user=user)
                await thread.add("user", BAD, name=BAD)
                assert "".join([piece async for piece in thread.ask(BAD)])
                await thread.rename(BAD)
                await memory.remember(user, BAD)
                context = await thread.context(BAD)
                await thread.add("assistant", BAD, receipt=context.receipt)
                assert (await memory.recall(BAD, user=user)).turns
                turns = await thread.messages()
                assert {turn.content for turn in turns if turn.role == "user"} == {GOOD}
                assert (turns[0].name, turns[-1].content, await thread.label()) == (GOOD, GOOD, GOOD)
                assert [recorded.content for recorded in await memory.memories(user)] == [GOOD]
