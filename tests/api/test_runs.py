"""Runs of agents over HTTP are listed in pages, shown with their steps, and hidden from other users."""

from helpers.api import Serve
from helpers.stage import MemoryServer

LOOK = ("get_profile", {})


async def test_runs_are_listed_by_page_and_shown_with_their_steps(serve: Serve, model: MemoryServer) -> None:
    for text in ("First.", "Second."):
        model.reply("I look.", tool_calls=[LOOK])
        model.reply(text)
    async with serve("agent", api_base_url=model.url, model="m", team="advising") as api, api.client() as ann:
        for thread in ("a", "b"):
            asked = await ann.post(f"/api/threads/{thread}/answers", json={"message": "Hello, who am I?"})
            assert asked.status_code == 201, asked.text
        first = (await ann.get("/api/runs", params={"limit": 1})).json()
        second = (await ann.get("/api/runs", params={"limit": 1, "cursor": first["next"]})).json()
        assert [run["thread"] for page in (first, second) for run in page["items"]] == ["b", "a"]
        assert second["next"] is None
        of_a = (await ann.get("/api/runs", params={"thread": "a"})).json()["items"]
        assert of_a == second["items"] and of_a[0]["status"] == "solved"
        shown = (await ann.get(f"/api/runs/{of_a[0]['run_id']}")).json()
        assert shown["run"] == of_a[0]
        assert [(step["kind"], step["name"]) for step in shown["steps"]] == [
            ("plan", None),
            ("call", "get_profile"),
            ("result", "get_profile"),
            ("end", None),
        ]


async def test_a_run_is_shown_to_its_user_and_to_operators_alone(serve: Serve, model: MemoryServer) -> None:
    model.reply("I look.", tool_calls=[LOOK])
    model.reply("You are Ann.")
    async with (
        serve("agent", api_base_url=model.url, model="m", team="advising") as api,
        api.client() as ann,
        api.client("bob") as bob,
        api.client("root", role="admin") as admin,
        api.client("root", role="admin", tenant="acme") as other,
    ):
        await ann.post("/api/threads/t/answers", json={"message": "Hello, who am I?"})
        [run] = (await ann.get("/api/runs")).json()["items"]
        path, of_ann = f"/api/runs/{run['run_id']}", {"user": "ann"}
        assert (await bob.get("/api/runs")).json()["items"] == []
        assert (await bob.get(path)).status_code == 404
        assert (await bob.get("/api/runs", params=of_ann)).status_code == 403
        assert (await bob.get(path, params=of_ann)).status_code == 403
        assert (await admin.get("/api/runs", params=of_ann)).json()["items"] == [run]
        assert (await admin.get(path, params=of_ann)).json()["run"] == run
        assert (await admin.get(path)).status_code == 404
        assert (await other.get("/api/runs", params=of_ann)).json()["items"] == []
        assert (await other.get(path, params=of_ann)).status_code == 404
        assert (await ann.get("/api/runs/nothing")).status_code == 404


async def test_a_reader_is_told_the_names_of_agents(serve: Serve) -> None:
    async with serve(team="advising") as api, api.client() as ann, api.client("root", role="admin") as admin:
        renamed = await admin.patch("/admin/ai-agent/agents/school", json={"name": "Colleges"})
        assert renamed.status_code == 200, renamed.text
        named = {agent["type"]: agent["name"] for agent in (await ann.get("/api/agents")).json()}
        assert named["school"] == "Colleges" and named["orchestrator"] == "协调者"
