"""If the stream is full, writes are refused with a reason and an id, reads continue, and writes work again when there
is room."""

import contextlib
import secrets

from helpers.api import Api, Serve, openai_client
from helpers.callers import mcp_of
from nats.js.api import StreamConfig
from openai import InternalServerError

from turnlog.events.stream import StreamOptions, stream_config
from turnlog.events.subjects import STREAM

FACT = "Ann has a corgi called Sesame."
ROOM = 1024
LONG = secrets.token_hex(2 * ROOM)  # compression cannot make it much shorter


async def bytes_allowed(api: Api, more: int | None) -> None:
    """Sets the stream's size limit. more: bytes above the current size; None removes the limit, as an operator does."""
    js = api.runtime.log.nc.jetstream()
    used = (await js.stream_info(STREAM)).state.bytes
    config: StreamConfig = stream_config(StreamOptions(max_bytes=-1 if more is None else used + more))
    await js.update_stream(config)


async def test_a_full_log_refuses_writes_and_serves_reads_until_there_is_room(serve: Serve) -> None:
    async with serve() as api, api.client() as ann, mcp_of(api) as tools, openai_client(api) as openai:
        turns = {"turns": [{"role": "user", "content": FACT}]}
        assert (await ann.post("/api/threads/t/turns", json=turns)).status_code == 201
        assert (await ann.post("/api/memories", json={"content": FACT})).status_code == 201
        await bytes_allowed(api, ROOM)
        long = {"turns": [{"role": "user", "content": LONG}]}
        key = {"Idempotency-Key": "again"}
        refused = await ann.post("/api/threads/t/turns", json=long, headers=key)
        problem = refused.json()
        assert (refused.status_code, problem["code"], bool(problem["id"])) == (503, "log-full", True)
        assert refused.headers["Retry-After"] and "TURNLOG_STREAM_MAX_BYTES" in problem["detail"]
        for path, body in (
            ("/api/memories", {"content": LONG}),
            ("/api/threads/t/answers", {"message": LONG}),
        ):
            refused = await ann.post(path, json=body)
            assert (refused.status_code, refused.json()["code"]) == (503, "log-full"), refused.text
        with contextlib.suppress(InternalServerError):
            await openai.chat.completions.create(model="m", messages=[{"role": "user", "content": LONG}])
            raise AssertionError("the question cannot be on the log")
        assert (await tools.call_tool("remember", {"text": LONG})).is_error
        assert [turn["content"] for turn in (await ann.get("/api/threads/t/turns")).json()["items"]] == [FACT]
        assert (await ann.get("/api/threads/t/context")).status_code == 200
        recalled = (await ann.post("/api/recall", json={"query": "Who is Sesame?"})).json()
        assert [memory["content"] for memory in recalled["memories"]] == [FACT] and recalled["items"]
        await bytes_allowed(api, None)
        assert (await ann.post("/api/threads/t/turns", json=long, headers=key)).status_code == 201
        assert (await ann.post("/api/threads/t/turns", json=long, headers=key)).status_code == 201
        assert len((await ann.get("/api/threads/t/turns")).json()["items"]) == 2
