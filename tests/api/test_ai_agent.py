"""Tests the paths and field names of /ai-agent."""

from typing import Any

import pytest
from helpers.api import Serve
from helpers.stage import MemoryServer

from turnlog.agent.answering.asking import NoAnswer, follow
from turnlog.agent.answering.request import Question, question_events
from turnlog.agent.answering.request import ask as append_question
from turnlog.agent.answering.turns import NewTurn, add_turn
from turnlog.agent.team.agents import switch_agent
from turnlog.events.subjects import publish_subject
from turnlog.projectors.models.operations.agents import AGENTS_THREAD
from turnlog.projectors.models.operations.limits import LIMITS_THREAD

pytestmark = pytest.mark.slow

AGENT, ADMIN = "/ai-agent", "/admin/ai-agent"
# These paths never change; the parameter names are turnlog's.
ENDPOINTS = """
GET /api/conversations
GET /api/chat/history
POST /ai-agent/chat
POST /ai-agent/agent
GET /ai-agent/history
DELETE /ai-agent/conversation
POST /ai-agent/refresh-context
GET /ai-agent/usage
GET /ai-agent/rate-limit
GET /ai-agent/quota
GET /ai-agent/health
GET /admin/ai-agent/config
PUT /admin/ai-agent/config/quota
PUT /admin/ai-agent/config/rate-limit/{type}
GET /admin/ai-agent/agents
GET /admin/ai-agent/agents/{type}
PUT /admin/ai-agent/agents/{type}
PUT /admin/ai-agent/agents/{type}/toggle
GET /admin/ai-agent/users/{user}/usage
DELETE /admin/ai-agent/users/{user}/rate-limit
GET /admin/ai-agent/metrics
GET /admin/ai-agent/metrics/prometheus
GET /admin/ai-agent/traces/recent
GET /admin/ai-agent/traces/errors
GET /admin/ai-agent/circuit-breakers
DELETE /admin/ai-agent/circuit-breakers/{service}
POST /ai-agent/conversations
GET /ai-agent/conversations
GET /ai-agent/conversations/{id}
DELETE /ai-agent/conversations/{id}
POST /ai-agent/conversations/{id}/messages
GET /ai-agent/conversations/{id}/messages
POST /ai-agent/conversations/{id}/stream
GET /ai-agent/memories
POST /ai-agent/memories
DELETE /ai-agent/memories/{id}
PATCH /ai-agent/memories/{id}/importance
GET /ai-agent/entities
POST /ai-agent/entities
PUT /ai-agent/entities/{id}
GET /ai-agent/user-data/export
DELETE /ai-agent/user-data
"""


async def test_every_endpoint_is_served_and_admin_endpoints_only_to_admins(serve: Serve) -> None:
    async with serve() as api, api.client() as ann, api.client("root", role="admin") as admin:
        paths = (await ann.get("/openapi.json")).json()["paths"]
        named = [line.split() for line in ENDPOINTS.strip().splitlines()]
        assert [endpoint for endpoint in named if endpoint[0].lower() not in paths.get(endpoint[1], {})] == []
        for method, path in named:
            if path.startswith(ADMIN):
                refused = await ann.request(method, path.replace("{", "").replace("}", ""), json={})
                assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), path
        assert (await admin.get(f"{ADMIN}/agents")).status_code == 200


async def test_a_conversation_in_the_fields_of_ai_agent(serve: Serve) -> None:
    with MemoryServer() as model:
        async with (
            serve("agent", api_base_url=model.url, model="m") as api,
            api.client() as ann,
            api.client("bob") as bob,
            api.client("root", role="admin") as admin,
        ):
            made = (await ann.post(f"{AGENT}/conversations", json={"title": "Dogs", "metadata": {"a": [1]}})).json()
            assert (made["title"], made["userId"], made["metadata"]) == ("Dogs", "ann", {"a": [1]})
            assert (made["summary"], made["createdAt"] <= made["updatedAt"]) == (None, True)
            path = f"{AGENT}/conversations/{made['id']}"
            added = await ann.post(
                f"{path}/messages", json={"role": "user", "content": "I have a corgi.", "tokensUsed": 7}
            )
            assert (added.status_code, added.json()["conversationId"]) == (201, made["id"]), added.text
            assert (added.json()["tokensUsed"], added.json()["latencyMs"]) == (7, None)
            asked = {"message": "hello", "conversationId": made["id"]}
            answer = (await ann.post(f"{AGENT}/chat", json=asked)).json()
            assert (answer["message"], answer["conversationId"]) == ("echo: hello", made["id"])
            about = {"agentType": "orchestrator", "delegatedTo": None, "suggestions": []}
            about |= {"data": {"fastRoute": False, "finishReason": "stop"}}
            assert about.items() <= answer.items()
            for where in (f"{AGENT}/chat", f"{path}/stream"):
                streamed = await ann.post(where, json=asked | {"stream": True})
                assert streamed.headers["content-type"].startswith("text/event-stream")
                assert "event: content" in streamed.text and "event: done" in streamed.text
            messages = (await ann.get(f"{path}/messages", params={"limit": 2})).json()
            assert [message["role"] for message in messages] == ["user", "assistant"]
            assert messages[1]["agentType"] == "orchestrator"
            assert messages[1]["tokensUsed"] > 0 and messages[1]["latencyMs"] > 0
            assert (await ann.get(f"{AGENT}/history", params={"conversationId": made["id"]})).json()[-2:] == messages
            assert (await bob.get(path)).status_code == 404
            assert (await ann.get(f"{ADMIN}/config")).status_code == 403
            await admin.put(f"{ADMIN}/config/quota", json={"dailyTokens": 5})
            config = await admin.put(f"{ADMIN}/config/rate-limit/user", json={"limit": 3})
            assert (config.json()["user"]["tokens_per_day"], config.json()["user"]["user_per_minute"]) == (5, 3)
            await admin.put(f"{ADMIN}/config/rate-limit/user", json={"limit": 70, "window": "hour"})
            await admin.put(f"{ADMIN}/config/rate-limit/concurrent", json={"limit": 4})
            wrong = await admin.put(f"{ADMIN}/config/rate-limit/agent", json={"limit": 4, "window": "hour"})
            assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid-limit")
            whole = (await admin.get(f"{ADMIN}/config")).json()
            assert (whole["user"]["user_per_hour"], whole["user"]["concurrent"], whole["vip"]["concurrent"]) == (
                70,
                4,
                5,
            )
            assert whole["agents"] == (await admin.get(f"{ADMIN}/agents")).json() and whole["models"]["chat"]
            assert [limit["limit"] for limit in (await ann.get(f"{AGENT}/quota")).json()] == [5, 20, 1_000_000]
            assert [limit["name"] for limit in (await ann.get(f"{AGENT}/rate-limit")).json()] == [
                "concurrent",
                "user_per_minute",
                "user_per_hour",
                "agent_per_minute",
            ]
            refused = await ann.post(f"{AGENT}/chat", json=asked)
            assert (refused.status_code, refused.json()["category"]) == (429, "rate_limit")
            assert refused.json()["message"] == "请求过于频繁，请稍等片刻后再试。"
            refused = await ann.post(f"{AGENT}/chat", json=asked | {"locale": "en"})
            assert refused.json()["message"].startswith("There were too many requests")
            assert (await ann.get(f"{AGENT}/health")).json()["state"] == "up"
            assert (await admin.delete(f"{ADMIN}/users/ann/rate-limit")).status_code == 204
            assert {limit["name"]: limit["used"] for limit in (await ann.get(f"{AGENT}/rate-limit")).json()}[
                "user_per_minute"
            ] == 0
            refused = await ann.post(f"{AGENT}/chat", json=asked)
            assert (refused.status_code, refused.json()["category"]) == (402, "quota")
            assert int(refused.headers["retry-after"]) > 0 and refused.json()["action"] == "upgrade"
            assert refused.json()["shouldRetry"] is False
            days = (await admin.get(f"{ADMIN}/users/ann/usage")).json()  # two days around midnight
            assert sum(day["calls"] for day in days) == 3
            await ann.post(f"{path}/messages", json={"role": "user", "content": "I am at ann@example.com."})
            export = (await ann.get(f"{AGENT}/user-data/export")).json()
            assert (export["userId"], export["sanitizeLevel"], export["memories"]) == ("ann", "MODERATE", [])
            told = export["conversations"][0]
            assert (told["id"], told["title"], told["metadata"]) == (made["id"], "Dogs", {"a": [1]})
            assert told["messages"][-2] == (await ann.get(f"{path}/messages", params={"limit": 2})).json()[0]
            assert "ann@example.com" not in told["messages"][-1]["content"]
            theirs = NewTurn("user", "I am Bob.")
            await add_turn(api.runtime, "default", made["id"], theirs, user="bob")
            shared = (await ann.get(f"{AGENT}/user-data/export")).json()["conversations"][0]
            assert "corgi" in str(shared) and "Bob" not in str(shared)
            assert (await ann.delete(path)).status_code == 204
            assert (await ann.get(f"{AGENT}/conversations")).json() == []


async def test_memories_and_entities_are_managed_and_cleared(serve: Serve) -> None:
    async with serve() as api, api.client() as ann, api.client("bob") as bob:
        new_memory = {"type": "FACT", "content": "Ann has a corgi.", "importance": 0.4, "metadata": {"a": 1}}
        memory = (await ann.post(f"{AGENT}/memories", json=new_memory)).json()
        assert (memory["type"], memory["metadata"]["a"], memory["accessCount"]) == ("FACT", 1, 0)
        assert (memory["metadata"]["source"], memory["metadata"]["pendingConflict"]) == ("user_input", False)
        assert memory["metadata"]["updatedAt"] == memory["createdAt"] and memory["metadata"]["rawMatch"] is None
        shown = {name: memory["metadata"][name] for name in ("archived", "archivedAt", "merged", "summarized")}
        assert shown == {"archived": False, "archivedAt": None, "merged": False, "summarized": False}
        assert memory["metadata"]["tier"] == memory["metadata"]["scoreTier"]
        path = f"{AGENT}/memories/{memory['id']}"
        assert (await bob.patch(f"{path}/importance", json={"importance": 1})).status_code == 404
        assert (await ann.patch(f"{path}/importance", json={"importance": 0.9})).json()["importance"] > 0.89
        assert len((await ann.get(f"{AGENT}/memories", params={"type": "FACT", "minImportance": 0.5})).json()) == 1
        school = {"type": "SCHOOL", "name": "MIT", "relations": [{"type": "applied_to", "targetName": "Ann"}]}
        entity = (await ann.post(f"{AGENT}/entities", json=school)).json()
        assert entity["relations"] == [{"type": "applied_to", "targetName": "Ann", "targetId": None}]
        at = {"type": "at", "targetId": entity["id"], "targetName": "?"}
        linked = {"type": "PERSON", "name": "Ann", "relations": [at]}
        person = (await ann.post(f"{AGENT}/entities", json=linked)).json()
        assert person["relations"] == [{"type": "at", "targetName": "MIT", "targetId": entity["id"]}]
        unknown = linked | {"name": "B", "relations": [at | {"targetId": memory["id"]}]}
        assert (await ann.post(f"{AGENT}/entities", json=unknown)).status_code == 404
        change = {"attributes": {"round": "ED"}}
        assert (await bob.put(f"{AGENT}/entities/{entity['id']}", json=change)).status_code == 404
        changed = (await ann.put(f"{AGENT}/entities/{entity['id']}", json=change)).json()
        assert (changed["id"], changed["attributes"]) == (entity["id"], {"round": "ED"})
        assert changed["relations"][0]["targetId"] == person["id"]
        await ann.patch("/api/preferences", json={"set": {"response_length": "brief"}})
        known = (await ann.post(f"{AGENT}/refresh-context")).json()
        assert (known["userId"], known["preferences"]) == ("ann", {"responseLength": "brief"})
        assert ([item["id"] for item in known["memories"]], len(known["entities"])) == ([memory["id"]], 2)
        cleared = (await ann.delete(f"{AGENT}/user-data", params={"includeEntities": True})).json()
        assert (cleared["entities"], cleared["memories"]) == (2, 0)
        assert (await ann.delete(path)).status_code == 204
        assert (await ann.get(f"{AGENT}/memories")).json() == []


async def test_an_agent_is_configured_switched_off_and_on_at_run_time(serve: Serve) -> None:
    with MemoryServer() as model:
        async with (
            serve("agent", api_base_url=model.url, model="m") as api,
            api.client() as ann,
            api.client("root", role="admin") as admin,
            api.client("root", role="admin", tenant="acme") as other,
        ):
            essay = f"{ADMIN}/agents/ESSAY"
            assert [agent["type"] for agent in (await admin.get(f"{ADMIN}/agents")).json()] == ["orchestrator"]
            call = {"agentType": "essay", "message": "hello", "conversationId": "c"}
            unknown = await ann.post(f"{AGENT}/agent", json=call)
            assert (unknown.status_code, unknown.json()["shouldRetry"]) == (404, False)
            assert "retry-after" not in unknown.headers
            for wrong in ("a\0b", "é", ""):
                assert (await ann.post(f"{AGENT}/agent", json=call | {"agentType": wrong})).status_code == 422
                assert (await ann.get(f"{AGENT}/rate-limit", params={"agentType": wrong})).status_code == 422
            assert (await ann.get(f"{AGENT}/conversations")).json() == []
            set_ = {"systemPrompt": "You review essays.", "temperature": 0.7, "maxTokens": 123, "model": "essays"}
            made = await admin.put(essay, json=set_)
            assert (set_ | {"type": "essay", "enabled": True}).items() <= made.json().items(), made.text
            answer = (await ann.post(f"{AGENT}/agent", json=call)).json()
            assert (answer["message"], answer["agentType"]) == ("echo: hello", "essay")
            sent = model.asked("answer")[-1]
            assert (sent["model"], sent["temperature"], sent["max_tokens"]) == ("essays", 0.7, 123)
            assert sent["messages"][0]["content"].startswith("You review essays.")
            streamed = await ann.post(f"{AGENT}/conversations/c/stream", json=call)
            assert 'event: agent_switch\ndata: {"from":"orchestrator","to":"essay"}' in streamed.text
            spoken = (await ann.get(f"{AGENT}/history", params={"conversationId": "c"})).json()
            assert {message["agentType"] for message in spoken if message["role"] == "assistant"} == {"essay"}
            off = await admin.put(f"{essay}/toggle", json={"enabled": False})
            assert (off.json()["enabled"], off.json()["temperature"]) == (False, 0.7)
            refused = await ann.post(f"{AGENT}/agent", json=call)
            assert (refused.status_code, refused.json()["code"]) == (409, "agent-disabled")
            assert (await ann.post(f"{AGENT}/chat", json={"message": "hello"})).status_code == 200
            assert (await admin.put(f"{essay}/toggle")).json()["enabled"]
            assert (await ann.post(f"{AGENT}/agent", json=call)).status_code == 200
            assert (await other.get(essay)).status_code == 404
            assert (await ann.put(essay, json={})).status_code == 403
            assert (await admin.put(f"{ADMIN}/agents/1x", json={})).status_code == 422


async def test_context_and_answer_of_an_agent_fit_into_the_window_together(serve: Serve) -> None:
    window, answer = 4_000, 3_000
    with MemoryServer() as model:
        async with (
            serve("agent", api_base_url=model.url, model="m", context_window=window) as api,
            api.client() as ann,
            api.client("root", role="admin") as admin,
        ):
            await admin.put(f"{ADMIN}/agents/essay", json={"maxTokens": answer, "systemPrompt": "Be brief."})
            for number in range(10):
                await add_turn(api.runtime, "default", "c", NewTurn("user", f"{number} " + "word " * 150), user="ann")
            call = {"agentType": "essay", "message": "hello", "conversationId": "c"}
            assert (await ann.post(f"{AGENT}/agent", json=call)).status_code == 200
            sent = model.asked("answer")[-1]
            words = sum(len(message["content"].split()) for message in sent["messages"])
            assert sent["max_tokens"] == answer and words + answer < window
            await admin.put(f"{ADMIN}/agents/orchestrator", json={"maxTokens": window})
            zh = {"Accept-Language": "zh"}
            refused = await ann.post("/api/threads/c/answers", json={"message": "hello"}, headers=zh)
            problem = refused.json()
            assert (refused.status_code, problem["shouldRetry"]) == (422, False)
            assert "retry-after" not in refused.headers
            assert problem["message"].startswith("无法完成这个请求") and "a shorter answer" in problem["detail"]


async def test_lists_continue_after_a_cursor_in_a_header(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        for number in range(3):
            assert (await ann.post(f"{AGENT}/conversations", json={"title": f"talk {number}"})).status_code == 201
            said = {"role": "user", "content": f"message {number}"}
            assert (await ann.post(f"{AGENT}/conversations/c/messages", json=said)).status_code == 201
            memory = {"type": "FACT", "content": f"Ann knows fact {number}."}
            assert (await ann.post(f"{AGENT}/memories", json=memory)).status_code == 201
            entity = {"type": "SCHOOL", "name": f"School {number}"}
            assert (await ann.post(f"{AGENT}/entities", json=entity)).status_code == 201
        for path, count in (("conversations", 4), ("conversations/c/messages", 3), ("memories", 3), ("entities", 3)):
            whole = (await ann.get(f"{AGENT}/{path}")).json()
            ids: list[str] = []
            parameters: dict[str, Any] = {"limit": 2}
            for _ in range(2):
                page = await ann.get(f"{AGENT}/{path}", params=parameters)
                ids += [item["id"] for item in page.json()]
                parameters["cursor"] = page.headers.get("x-next-cursor")
            assert parameters["cursor"] is None, path
            assert (len(ids), sorted(ids)) == (count, sorted(item["id"] for item in whole)), path
            assert (await ann.get(f"{AGENT}/{path}", params={"cursor": "x"})).status_code in (400, 422), path


async def test_agents_and_limits_after_a_parked_event_cannot_be_changed_and_the_cause_is_named(serve: Serve) -> None:
    async with serve() as api, api.client("root", role="admin") as admin:
        for thread, type_ in ((AGENTS_THREAD, "agent_configured"), (LIMITS_THREAD, "limits_changed")):
            await api.runtime.log.nc.jetstream().publish(publish_subject("default", thread, type_), b"{")
        for path, body in (
            ("agents/essay", {"temperature": 0.5}),
            ("agents/orchestrator/toggle", {}),
            ("config/quota", {"dailyTokens": 5}),
        ):
            refused = await admin.put(f"{ADMIN}/{path}", json=body)
            assert (refused.status_code, refused.json()["code"]) == (409, "thread-parked"), refused.text
        assert await api.runtime.log.head() == 2


async def test_a_published_request_for_an_impossible_agent_ends(serve: Serve) -> None:
    async with serve("agent", api_base_url="http://127.0.0.1:9/v1", model="m") as api:
        question = question_events(Question("default", "t", "hello", "ann", agent="a\0b"))
        seq = await append_question(api.runtime.log, question)
        with pytest.raises(NoAnswer, match="there is no agent"):
            async for _ in follow(api.runtime, "default", "t", seq):
                pass


async def test_a_request_for_an_agent_that_was_switched_off_meanwhile_is_not_answered(serve: Serve) -> None:
    async with serve("agent", api_base_url="http://127.0.0.1:9/v1", model="m") as api, api.client() as ann:
        await switch_agent(api.runtime, "default", "orchestrator", False)
        question = question_events(Question("default", "late", "hello", "ann"))
        seq = await append_question(api.runtime.log, question)
        with pytest.raises(NoAnswer, match="switched off"):
            async for _ in follow(api.runtime, "default", "late", seq):
                pass
        asked = await ann.post("/api/threads/late/answers", json={"message": "hello"})
        assert (asked.status_code, asked.json()["code"]) == (409, "agent-disabled")
