"""The chat stream sends the result of every step as it comes, and the context of the model."""

from typing import Any

from helpers.api import Serve, server_events
from helpers.openai_bodies import Step
from helpers.stage import MemoryServer

CHAT = "/api/chat/stream"


async def test_every_step_streams_its_result(serve: Serve) -> None:
    with MemoryServer() as model:
        async with (
            serve("agent", api_base_url=model.url, model="m") as api,
            api.client() as ann,
            api.client("bob") as bob,
        ):
            memory = (await ann.post("/api/memories", json={"content": "Ann has a corgi."})).json()["memory_id"]
            model.first["answer"] = [Step(tool_calls=[("recall_memory", {"query": "dog"})]), Step(text="A corgi.")]
            asked: dict[str, Any] = {"message": "What is my corgi?", "user_id": "ann", "session_id": "s", "debug": True}
            async with ann.stream("POST", CHAT, json=asked | {"conversation_id": "t"}) as response:
                assert response.headers["content-type"].startswith("text/event-stream")
                events = [event async for event in server_events(response)]
            nodes = dict.fromkeys(event["event"] for event in events)
            assert list(nodes) == ["route", "recall", "retrieve", "content", "generate", "persist"]
            result = {event["event"]: event["data"] for event in events}
            assert (result["route"]["agent_type"], result["route"]["conversation_id"]) == ("orchestrator", "t")
            assert result["recall"]["memories"] == [memory] and result["recall"]["dropped"] == 0
            assert result["recall"]["tiers"][0]["turns"] == 1 and result["recall"]["tiers"][0]["tokens"] > 0
            assert (result["retrieve"]["arguments"], result["retrieve"]["is_error"]) == ({"query": "dog"}, False)
            assert result["generate"] == {"message": "A corgi.", "model": "m", "finish_reason": "stop"}
            assert result["persist"]["messages"] == model.asked("answer")[0]["messages"]
            receipts = api.runtime.log.read_thread("default", "t", types=("answer_receipt",))
            assert [str(receipt.event.id) async for receipt in receipts] == [result["persist"]["receipt_id"]]
            rest = await ann.get(f"/api/threads/t/answers/{result['route']['seq']}")
            assert "event: done" in rest.text and "event: context" in rest.text
            plain = await ann.post(CHAT, json={"message": "And now?", "conversation_id": "t", "session_id": "s"})
            for client, thread in ((ann, '"conversation_id":"s"'), (bob, '"conversation_id":"')):
                of_session = await client.post(CHAT, json={"message": "Hello", "session_id": "s"})
                assert thread in of_session.text.replace(": ", ":") and "event: persist" in of_session.text
            assert '"conversation_id":"s"' not in of_session.text.replace(": ", ":"), "it is ann's"
            assert "event: persist" in plain.text and '"messages"' not in plain.text
            assert (await ann.post(CHAT, json={"message": "hello", "user_id": "bob"})).status_code == 404
            asked = await bob.post(CHAT, json={"message": "hello", "conversation_id": "t"})
            assert '"t"' not in asked.text and "event: persist" in asked.text
