"""Tests memories, recall, entities, preferences and sessions over HTTP."""

from uuid import UUID

import pytest
from helpers.api import Serve

import turnlog
from turnlog.agent.memory.memories import AmbiguousMemory

pytestmark = pytest.mark.slow


async def test_a_memory_from_remembering_to_forgetting(serve: Serve) -> None:
    async with serve() as api, api.client() as ann, api.client("bob") as bob:
        key = {"Idempotency-Key": "one"}
        made = [await ann.post("/api/memories", json={"content": "Ann likes tea."}, headers=key) for _ in range(2)]
        assert [answer.status_code for answer in made] == [201, 201], made[0].text
        memory = made[0].json()["memory_id"]
        assert made[1].json() == made[0].json()
        listed = (await ann.get("/api/memories")).json()["items"]
        assert [memory["content"] for memory in listed] == ["Ann likes tea."]
        recalled = (await ann.post("/api/recall", json={"query": "tea", "explain": True})).json()
        assert [memory["content"] for memory in recalled["memories"]] == ["Ann likes tea."]
        assert "similarity" in recalled["memories"][0]["explain"]
        edited = await ann.put(f"/api/memories/{memory}/content", json={"content": "Ann likes green tea."})
        newer = edited.json()["memory"]
        rated = await ann.put(f"/api/memories/{newer}/importance", json={"importance": 0.9})
        assert rated.json()["importance"] == 0.9
        assert len((await ann.get(f"/api/memories/{newer}/history")).json()["history"]) == 2
        assert (await bob.get("/api/memories")).json()["items"] == []
        for path in (f"/api/memories/{newer}", f"/api/memories/{newer}/history"):
            assert (await bob.get(path)).status_code == 404
        assert (await bob.delete(f"/api/memories/{newer}")).status_code == 404
        assert (await bob.post("/api/memories/forget", json={"memory": "green"})).status_code == 404
        assert (await ann.delete(f"/api/memories/{newer}")).json() == {"forgotten": [memory, newer], "newer": None}
        gone = await ann.get(f"/api/memories/{newer}")
        assert (gone.status_code, gone.json()["status"], gone.json()["closed_reason"]) == (200, *["forgotten"] * 2)
        assert gone.json()["valid_to"] and "tea" not in gone.text
        assert (await ann.get("/api/memories")).json()["items"] == []
        assert (await ann.post("/api/recall", json={"query": "green tea"})).json()["memories"] == []
        old, new = [
            (await ann.post("/api/memories", json={"content": f"I live in {city}."})).json()["memory_id"]
            for city in ("Hanoi", "Ghent")
        ]
        assert (await ann.delete(f"/api/memories/{old}")).json() == {"forgotten": [old], "newer": new}


async def test_words_of_several_memories_forget_none_and_list_them(serve: Serve) -> None:
    async with serve() as api, api.client() as ann, turnlog.connect(api.url, key=api.token()) as memory:
        for content in ("Ann likes tea.", "Ann drinks tea at five."):
            await ann.post("/api/memories", json={"content": content})
        there = {item["id"]: item["content"] for item in (await ann.get("/api/memories")).json()["items"]}
        refused = await ann.post("/api/memories/forget", json={"memory": "tea"})
        assert (refused.status_code, refused.json()["code"]) == (409, "ambiguous-memory")
        assert {candidate["id"]: candidate["content"] for candidate in refused.json()["candidates"]} == there
        with pytest.raises(AmbiguousMemory) as said:
            await memory.forget("ann", "tea")
        assert {candidate["id"]: candidate["content"] for candidate in said.value.candidates} == there
        assert (await ann.post("/api/memories/forget", json={"memory": "a"})).json()["code"] == "ambiguous-memory"
        assert (await ann.post("/api/memories/forget", json={"memory": "te"})).status_code == 404
        assert len((await ann.get("/api/memories")).json()["items"]) == 2


async def test_memories_are_counted_by_tier_for_their_user_and_for_an_operator_of_the_tenant(serve: Serve) -> None:
    async with (
        serve() as api,
        api.client() as ann,
        api.client("bob") as bob,
        api.client("root", role="admin") as admin,
        api.client("root", role="admin", tenant="acme") as other,
    ):
        for client in (ann, bob):
            await client.post("/api/memories", json={"content": "I like tea.", "importance": 0.9})
        await ann.post("/api/memories", json={"content": "I have a corgi.", "importance": 0.1})
        own = (await ann.get("/api/memory-stats")).json()
        assert (own["total_memories"], sum(own["by_tier"].values()), own["archived"]) == (2, 2, 0)
        assert own["scheduled_for_archive"] == 1 and 0.4 < own["average_importance"] < 0.6
        whole = "/api/operations/memory-stats"
        counted = [(await client.get(whole)).json()["total_memories"] for client in (admin, other)]
        assert counted == [3, 0]


async def test_wrong_input_names_the_field_and_has_an_id(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        wrong = await ann.post("/api/memories", json={"content": "x", "importance": 2})
        assert (wrong.status_code, wrong.headers["content-type"]) == (422, "application/problem+json")
        assert len(wrong.json()["id"]) == 16
        assert "importance" in wrong.json()["detail"]
        unknown = await ann.get(f"/api/memories/{UUID(int=0)}")
        assert unknown.json()["code"] == "not-found"


async def test_an_unknown_field_is_refused_by_its_name_with_the_form_of_the_body(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        refused = await ann.patch("/api/preferences", json={"retention_days": 30})
        assert refused.status_code == 422 and refused.json()["detail"] == (
            "the request cannot be used: body.retention_days: there is no such field; "
            'a body has {"set": {…}, "clear": […]}'
        )
        typo = await ann.post("/api/entities", json={"type": "PERSON", "name": "Mia", "desc": "a friend"})
        assert typo.json()["errors"][0]["message"].startswith("there is no such field; a body has {"), typo.text
        nested = await ann.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "a", "txt": "b"}]})
        assert "body.turns.0.txt: there is no such field" in nested.json()["detail"]


async def test_entities_preferences_sessions_and_usage(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        entity = {"type": "PERSON", "name": "Mia", "relations": [["friend_of", "Ann"]]}
        assert (await ann.post("/api/entities", json=entity)).status_code == 201
        assert (await ann.post("/api/entities", json=entity)).json()["code"] == "entity-exists"
        changed = await ann.patch("/api/entities", json=entity | {"attributes": {"city": "Lima"}})
        assert changed.json()["attributes"] == {"city": "Lima"}
        assert [entity["name"] for entity in (await ann.get("/api/entities")).json()["items"]] == ["Mia"]
        preferences = await ann.patch("/api/preferences", json={"set": {"enable_memory": False}})
        assert (preferences.status_code, preferences.json()["enable_memory"]) == (200, False), preferences.text
        await ann.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "hello"}]})
        session = await ann.put("/api/threads/t/session")
        assert session.json()["meta"]["conversation_id"] == "t", session.text
        assert (await ann.get("/api/threads/t/session/context")).status_code == 200
        assert (await ann.get("/api/usage")).json() == []


async def test_a_chinese_reader_reads_why_a_preference_is_refused(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        for preferences, why in (
            ({"color": "red"}, "没有名为 'color' 的偏好；可用的有 communication_style、"),
            ({"response_length": "endless"}, "偏好 response_length 的值应为 brief、moderate、detailed 之一"),
        ):
            for languages, is_chinese in (("zh-CN,zh;q=0.9", True), ("en", False)):
                headers = {"Accept-Language": languages}
                refused = await ann.patch("/api/preferences", json={"set": preferences}, headers=headers)
                assert refused.status_code == 422
                assert refused.json()["detail"].startswith(why) is is_chinese, refused.text
