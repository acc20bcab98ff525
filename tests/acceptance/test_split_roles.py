"""With each role in a separate process, one scrape, one view of traces and one view of breakers show all of them."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from helpers.api import Serve
from helpers.cli_process import environment
from helpers.key_rings import KEK
from helpers.openai_server import Step
from helpers.preloaded_cli import begin_command
from helpers.servers import eventually
from helpers.stage import MemoryServer
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.slow

ADMIN = "/admin/ai-agent"


def by_role(page: str, name: str, **labels: str) -> dict[str, float]:
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    return {
        sample.labels.get("role", ""): sample.value
        for sample in samples
        if sample.name == name and labels.items() <= sample.labels.items()
    }


async def test_the_api_shows_the_work_of_an_agent_in_another_process(
    serve: Serve, nats_url: str, database_url: str, tmp_path: Path
) -> None:
    with MemoryServer() as model, ExitStack() as stack:
        where = {"NATS_URL": nats_url, "DATABASE_URL": database_url, "TURNLOG_KEK": KEK}
        variables = environment(tmp_path, **where, API_BASE_URL=model.url, TURNLOG_MODEL="m")
        output = tmp_path / "agent.log"
        agent = begin_command("worker", "agent", environment=variables, output=output)
        stack.callback(agent.kill)
        async with (
            serve(api_base_url=model.url, model="m") as api,
            api.client() as ann,
            api.client("root", role="admin") as admin,
        ):

            async def runs() -> bool:
                return "worker agent runs" in output.read_text()

            await eventually(runs)
            before = (await admin.get(f"{ADMIN}/metrics/prometheus")).text
            assert (await ann.post("/api/threads/t/answers", json={"message": "hello"})).status_code == 201
            model.first["answer"] = [Step(status=400)]
            assert (await ann.post("/api/threads/t/answers", json={"message": "again"})).status_code == 502
            page = (await admin.get("/metrics")).text
            for status in ("success", "error"):
                ended = {"agent": "orchestrator", "status": status}
                counts = by_role(page, "ai_agent_requests_total", **ended)
                others = by_role(before, "ai_agent_requests_total", **ended)
                assert counts == {**others, "agent": 1}, status
            assert by_role(page, "turnlog_http_request_seconds_count", method="POST", status="201")["projectors+api"]
            assert by_role(page, "turnlog_projection_stalled", projection="messages") == {"": 0}
            bad, good = (await admin.get(f"{ADMIN}/traces/recent")).json()[:2]
            assert [(trace["role"], trace["status"]) for trace in (bad, good)] == [("agent", "error"), ("agent", "ok")]
            assert {"chat m", "memory retrieve"} <= {span["name"] for span in good["spans"]}
            assert (await admin.get(f"{ADMIN}/traces/errors")).json()[0] == bad
            assert (await admin.get(f"{ADMIN}/metrics")).json()["llm"]["calls"]["m"] >= 1
            circuits: list[dict[str, Any]] = (await admin.get(f"{ADMIN}/circuit-breakers")).json()
            [llm] = [circuit for circuit in circuits if circuit["service"] == "llm"]
            assert llm["roles"]["agent"] == "closed" and llm["processes"] >= 1
