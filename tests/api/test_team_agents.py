"""Agents of a team are listed, changed and switched at run time, and unusable agents are refused."""

import json
from pathlib import Path

from helpers.api import Serve
from helpers.stage import MemoryServer

AGENTS = "/admin/ai-agent/agents"


async def test_the_agents_of_a_team_are_listed_as_they_are_used(serve: Serve, model: MemoryServer) -> None:
    async with (
        serve(api_base_url=model.url, model="m", team="advising") as api,
        api.client("root", role="admin") as root,
    ):
        agents = {agent["type"]: agent for agent in (await root.get(AGENTS)).json()}
        assert list(agents) == ["essay", "orchestrator", "profile", "school", "timeline"]
        assert "polish_essay" in agents["essay"]["tools"] and agents["essay"]["name"]
        assert "essay" in agents["orchestrator"]["delegates"] and agents["essay"]["systemPrompt"]
        change = {"name": "Writing coach", "tools": ["get_profile"], "delegates": ["profile"], "maxTokens": 500}
        changed = (await root.put(f"{AGENTS}/essay", json=change)).json()
        assert changed == agents["essay"] | change | {"updatedAt": changed["updatedAt"]}
        assert (await root.get(f"{AGENTS}/essay")).json() == changed
        patched = (await root.patch(f"{AGENTS}/essay", json={"maxTokens": None, "name": "Coach"})).json()
        assert patched == changed | {
            "maxTokens": agents["essay"]["maxTokens"],
            "name": "Coach",
            "updatedAt": patched["updatedAt"],
        }
        assert (await root.put(f"{AGENTS}/essay/toggle", json={})).json()["enabled"] is False


async def test_unknown_fields_tools_and_delegates_are_refused_by_name(serve: Serve) -> None:
    async with serve(team="advising") as api, api.client("root", role="admin") as root:
        for body, named in (
            ({"toolz": []}, "toolz"),
            ({"tools": ["get_profile", "fly"]}, "'fly' is not the name of a tool; there are "),
            ({"delegates": ["nobody"]}, "'nobody' is not the name of another agent; there are orchestrator, "),
            ({"delegates": ["essay"]}, "'essay' is not the name of another agent"),
        ):
            for method in ("PUT", "PATCH"):
                refused = await root.request(method, f"{AGENTS}/essay", json=body)
                assert refused.status_code == 422 and named in refused.text, refused.text
        made = await root.put(f"{AGENTS}/visas", json={"systemPrompt": "You know visas.", "delegates": ["essay"]})
        assert made.json()["delegates"] == ["essay"]
        assert (await root.put(f"{AGENTS}/essay", json={"delegates": ["visas"]})).status_code == 200


async def test_tools_without_a_team_are_refused(serve: Serve) -> None:
    async with serve() as api, api.client("root", role="admin") as root:
        for body in ({"tools": ["get_profile"]}, {"delegates": ["orchestrator"]}):
            refused = await root.put(f"{AGENTS}/essay", json=body)
            assert (refused.status_code, refused.json()["code"]) == (422, "invalid-agent")
        assert "TURNLOG_TEAM" in refused.json()["detail"]


async def test_a_changed_agent_answers_with_its_new_tools_and_prompt(serve: Serve, model: MemoryServer) -> None:
    async with (
        serve("agent", api_base_url=model.url, model="m", team="advising") as api,
        api.client() as ann,
        api.client("root", role="admin") as root,
    ):
        change = {"systemPrompt": "You are brief.", "tools": ["get_profile"], "delegates": []}
        assert (await root.put(f"{AGENTS}/essay", json=change)).status_code == 200
        answer = await ann.post("/ai-agent/agent", json={"message": "Hello", "agentType": "essay"})
        assert answer.status_code == 200, answer.text
        [body] = model.asked("answer")
        assert [tool["function"]["name"] for tool in body["tools"]] == ["get_profile"]
        assert json.dumps(body["messages"]).count("You are brief.") == 1


async def test_unknown_fields_of_limits_and_switches_are_refused(serve: Serve) -> None:
    async with serve(team="advising") as api, api.client("root", role="admin") as root:
        for url, body in (
            (f"{AGENTS}/essay/toggle", {"enable": False}),
            ("/admin/ai-agent/config/quota", {"tokensPerDay": 5}),
            ("/admin/ai-agent/config/rate-limit/user", {"limit": 3, "window": 60}),
        ):
            refused = await root.put(url, json=body)
            assert refused.status_code == 422 and list(body)[-1] in refused.text, refused.text
        assert (await root.get(f"{AGENTS}/essay")).json()["enabled"] is True


async def test_a_question_without_an_agent_is_the_entry_agents(
    serve: Serve, model: MemoryServer, tmp_path: Path
) -> None:
    (tmp_path / "team.toml").write_text('name = "shop"\nentry = "desk"\n')
    for name in ("desk", "refunds"):
        (tmp_path / f"{name}.toml").write_text(f'name = "{name}"\nprompt = "Be kind."\n')
    async with (
        serve("agent", api_base_url=model.url, model="m", team=str(tmp_path)) as api,
        api.client() as ann,
        api.client("root", role="admin") as root,
    ):
        for agent, switched in (("desk", []), ("refunds", ['data: {"from":"desk","to":"refunds"}'])):
            asked = {"message": "Where is it?", "agentType": agent, "stream": True}
            streamed = (await ann.post("/ai-agent/chat", json=asked)).text.splitlines()
            assert "event: done" in streamed
            switches = [streamed[at + 1] for at, line in enumerate(streamed) if line == "event: agent_switch"]
            assert switches == switched
        assert (await ann.post("/api/threads/t/answers", json={"message": "Where is it?"})).status_code == 201
        for params, count in (({}, 2), ({"agentType": "refunds"}, 1)):
            limits = (await ann.get("/ai-agent/rate-limit", params=params)).json()
            assert [limit["used"] for limit in limits if limit["name"] == "agent_per_minute"] == [count]
        await root.put(f"{AGENTS}/desk/toggle", json={"enabled": False})
        assert (await ann.post("/api/threads/off/answers", json={"message": "Hello"})).status_code == 409
        await api.runtime.wait_until_projected()
        [run] = (await ann.get("/api/runs", params={"thread": "off"})).json()["items"]
        assert run["agent"] == "desk"
