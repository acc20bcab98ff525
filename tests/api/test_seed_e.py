"""The interface of seed E: its paths and field names."""

from helpers.api import Serve
from helpers.stage import MemoryServer

AGENT, ADMIN = "/ai-agent", "/admin/ai-agent"


async def test_a_conversation_in_the_words_of_the_seed(serve: Serve) -> None:
    with MemoryServer() as model:
        async with (
            serve("agent", api_base_url=model.url, model="m") as api,
            api.client() as ann,
            api.client("bob") as bob,
            api.client("root", role="admin") as admin,
        ):
            made = (await ann.post(f"{AGENT}/conversations", json={"title": "Dogs"})).json()
            assert (made["title"], made["userId"]) == ("Dogs", "ann")
            path = f"{AGENT}/conversations/{made['id']}"
            added = await ann.post(f"{path}/messages", json={"role": "user", "content": "I have a corgi."})
            assert (added.status_code, added.json()["conversationId"]) == (201, made["id"]), added.text
            asked = {"message": "hello", "conversationId": made["id"]}
            answer = (await ann.post(f"{AGENT}/chat", json=asked)).json()
            assert (answer["message"], answer["conversationId"]) == ("echo: hello", made["id"])
            for where in (f"{AGENT}/chat", f"{path}/stream"):
                streamed = await ann.post(where, json=asked | {"stream": True})
                assert streamed.headers["content-type"].startswith("text/event-stream")
                assert "event: content" in streamed.text and "event: done" in streamed.text
            messages = (await ann.get(f"{path}/messages", params={"limit": 2})).json()
            assert [one["role"] for one in messages] == ["user", "assistant"]
            assert (await ann.get(f"{AGENT}/history", params={"conversationId": made["id"]})).json()[-2:] == messages
            assert (await bob.get(path)).status_code == 404
            assert (await ann.get(f"{ADMIN}/config")).status_code == 403
            await admin.put(f"{ADMIN}/config/quota", json={"dailyTokens": 5})
            config = await admin.put(f"{ADMIN}/config/rate-limit/user", json={"limit": 3})
            assert (config.json()["user"]["tokens_per_day"], config.json()["user"]["user_per_minute"]) == (5, 3)
            assert [one["limit"] for one in (await ann.get(f"{AGENT}/quota")).json()] == [5, 20]
            assert (await ann.post(f"{AGENT}/chat", json=asked)).status_code == 429
            assert (await admin.delete(f"{ADMIN}/users/ann/rate-limit")).status_code == 204
            assert {one["name"]: one["used"] for one in (await ann.get(f"{AGENT}/rate-limit")).json()}[
                "user_per_minute"
            ] == 0
            assert (await admin.get(f"{ADMIN}/users/ann/usage")).json()[0]["calls"] == 3
            assert (await ann.delete(path)).status_code == 204
            assert (await ann.get(f"{AGENT}/conversations")).json() == []


async def test_memories_entities_and_the_way_out(serve: Serve) -> None:
    async with serve() as api, api.client() as ann, api.client("bob") as bob:
        given = {"type": "FACT", "content": "Ann has a corgi.", "importance": 0.4, "metadata": {"a": 1}}
        memory = (await ann.post(f"{AGENT}/memories", json=given)).json()
        assert (memory["type"], memory["metadata"], memory["accessCount"]) == ("FACT", {"a": 1}, 0)
        path = f"{AGENT}/memories/{memory['id']}"
        assert (await bob.patch(f"{path}/importance", json={"importance": 1})).status_code == 404
        assert (await ann.patch(f"{path}/importance", json={"importance": 0.9})).json()["importance"] > 0.89
        assert len((await ann.get(f"{AGENT}/memories", params={"type": "FACT", "minImportance": 0.5})).json()) == 1
        school = {"type": "SCHOOL", "name": "MIT", "relations": [{"type": "applied_to", "targetName": "Ann"}]}
        entity = (await ann.post(f"{AGENT}/entities", json=school)).json()
        assert entity["relations"] == school["relations"]
        change = {"attributes": {"round": "ED"}}
        assert (await bob.put(f"{AGENT}/entities/{entity['id']}", json=change)).status_code == 404
        changed = (await ann.put(f"{AGENT}/entities/{entity['id']}", json=change)).json()
        assert (changed["id"], changed["attributes"]) == (entity["id"], {"round": "ED"})
        cleared = (await ann.delete(f"{AGENT}/user-data", params={"includeEntities": True})).json()
        assert (cleared["entities"], cleared["memories"]) == (1, 0)
        assert (await ann.delete(path)).status_code == 204
        assert (await ann.get(f"{AGENT}/memories")).json() == []
