"""Administrators read metrics, traces and circuit breakers under /admin/ai-agent."""

from helpers.api import Serve
from helpers.openai_server import Step
from helpers.stage import MemoryServer

from turnlog.agent.models.calls import ResilientClient

ADMIN = "/admin/ai-agent"
SECRET = "what-nobody-may-read"


async def test_traces_and_metrics_of_a_good_and_a_failed_request_name_no_words(serve: Serve) -> None:
    with MemoryServer() as model:
        async with (
            serve("agent", api_base_url=model.url, model="m") as api,
            api.client() as ann,
            api.client("root", role="admin") as admin,
            api.client("root", role="admin", tenant="acme") as other,
        ):
            before = (await admin.get(f"{ADMIN}/metrics")).json()
            assert (await ann.post("/ai-agent/chat", json={"message": SECRET})).status_code == 200
            model.first["answer"] = [Step(status=400)]
            failed = await ann.post("/ai-agent/chat", json={"message": SECRET, "locale": "en"})
            assert (failed.status_code, failed.json()["category"]) == (502, "unknown")
            assert failed.json()["message"].startswith("This request cannot be fulfilled")
            model.first["answer"] = [Step(status=400, code="content_filter")]
            moderated = (await ann.post("/ai-agent/chat", json={"message": SECRET, "stream": True})).text
            assert '"category":"moderation"' in moderated and "请换一种说法" in moderated
            recent = await admin.get(f"{ADMIN}/traces/recent")
            refused, bad, good = recent.json()[:3]
            assert good["name"] == "invoke_agent orchestrator"
            assert {"chat m", "memory retrieve"} <= {span["name"] for span in good["spans"]}
            chat = next(span for span in good["spans"] if span["name"] == "chat m")
            assert (chat["parentSpanId"], chat["traceId"]) == (good["spans"][0]["spanId"], good["traceId"])
            assert int(chat["tags"]["gen_ai.usage.output_tokens"]) > 0 and good["duration"] >= chat["duration"] > 0
            assert (good["status"], bad["status"], bad["slow"]) == ("ok", "error", False)
            assert bad["spans"][0]["logs"][0]["message"] == "model-refused"
            assert (await admin.get(f"{ADMIN}/traces/errors")).json()[:2] == [refused, bad]
            theirs = {trace["traceId"] for trace in (await other.get(f"{ADMIN}/traces/recent")).json()}
            assert theirs.isdisjoint(trace["traceId"] for trace in recent.json())
            assert SECRET not in recent.text
            after = (await admin.get(f"{ADMIN}/metrics")).json()
            assert after["requests"]["total"] - before["requests"]["total"] == 3
            assert after["llm"]["tokensPrompt"] > before["llm"]["tokensPrompt"]
            assert (await ann.get(f"{ADMIN}/metrics")).status_code == 403


async def test_answers_over_openais_wire_are_counted_and_traced_too(serve: Serve) -> None:
    with MemoryServer() as model:
        async with (
            serve(api_base_url=model.url, model="m") as api,
            api.client() as ann,
            api.client("root", role="admin") as admin,
        ):
            before = (await admin.get(f"{ADMIN}/metrics")).json()["requests"]["byStatus"]
            body = {"messages": [{"role": "user", "content": SECRET}]}
            assert (await ann.post("/v1/chat/completions", json=body)).status_code == 200
            assert (await ann.post("/v1/responses", json={"input": SECRET})).status_code == 200
            model.first["answer"] = [Step(status=400)]
            assert (await ann.post("/v1/chat/completions", json=body)).status_code == 400
            after = (await admin.get(f"{ADMIN}/metrics")).json()["requests"]
            assert after["byStatus"]["success"] - before["success"] == 2
            assert (after["byStatus"]["error"] - before["error"], after["active"]) == (1, 0)
            bad, good, _ = (await admin.get(f"{ADMIN}/traces/recent")).json()[:3]
            assert (bad["name"], bad["status"], good["status"]) == ("invoke_agent openai", "error", "ok")
            assert {"chat m", "memory retrieve"} <= {span["name"] for span in good["spans"]}


async def test_a_breaker_is_listed_and_closed_by_hand_in_another_process_too(serve: Serve) -> None:
    breaker = ResilientClient("http://127.0.0.1:9", secret=None, service="probe").breaker
    async with serve() as api, serve() as second, api.client("root", role="admin") as admin:
        assert second.url != api.url
        for _ in range(5):
            breaker.admit()
            breaker.failed()
        path = f"{ADMIN}/circuit-breakers"
        open_: dict[str, object] = {"service": "probe", "state": "open", "processes": 2}
        open_["roles"] = {"projectors+api": "open"}
        assert open_ in (await admin.get(path)).json()
        health = (await admin.get("/ai-agent/health")).json()
        assert (health["state"], health["parts"][-1]["detail"]) == ("degraded", "left alone: probe")
        assert (await admin.delete(f"{path}/probe")).json() == open_ | {
            "state": "closed",
            "roles": {"projectors+api": "closed"},
        }
        assert breaker.state == "closed"
        assert (await admin.delete(f"{path}/nothing")).status_code == 404
        async with api.client() as ann, api.client("root", role="admin", tenant="acme") as other:
            assert (await ann.delete(f"{path}/probe")).status_code == 403
            assert (await other.get(path)).status_code == 200
            for shared in (other.delete(f"{path}/probe"), other.get("/metrics"), other.get(f"{ADMIN}/metrics")):
                refused = await shared
                assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
                assert "TURNLOG_TENANT" in refused.text
            assert (await other.get(f"{ADMIN}/metrics/prometheus")).status_code == 403
