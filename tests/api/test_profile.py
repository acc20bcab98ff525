"""A person's profile can be read in one call over HTTP, as an MCP resource, from Python and by a command."""

import json
from datetime import UTC, datetime, timedelta

from helpers.api import Serve
from helpers.callers import mcp_of
from pydantic import TypeAdapter

import turnlog
from turnlog.agent.counting import counted
from turnlog.agent.memory.extraction.extract_now import extract_memories
from turnlog.agent.recall.profile import Profile, profile
from turnlog.consumers.cli.remembering import profile_lines

SAID = "I live in Berlin. I work at Siemens. I like tea."


async def test_each_line_has_its_quote_and_turn_and_is_the_same_on_every_interface(serve: Serve) -> None:
    async with serve() as api, api.client() as http, mcp_of(api) as mcp, mcp_of(api, "bob") as bob:
        await http.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": SAID}]})
        await extract_memories(api.runtime, api.runtime.settings.tenant, user="ann")
        shown = (await http.get("/api/profile")).json()
        assert shown["written"] is None, "no language model is configured"
        assert shown["text"].startswith("[PROFILE]\nWho they are:\n- ") and shown["tokens"] <= 400
        lines = [line for group in shown["groups"] for line in group["lines"]]
        assert len(lines) == 3 and all(line["text"] in shown["text"] for line in lines)
        for line in lines:
            (source,) = line["sources"]
            assert source["quote"] in SAID and source["thread"] == "t" and source["seq"] > 0
        async with turnlog.connect(api.url, key=api.token()) as memory:
            assert TypeAdapter(Profile).dump_python(await memory.profile("ann"), mode="json") == shown
        (read,) = (await mcp.read_resource("turnlog://profile/now")).contents
        assert json.loads(read.text) == shown
        (listed,) = (await bob.list_resources()).resources
        (of_bob,) = (await bob.read_resource(listed.uri)).contents
        assert json.loads(of_bob.text)["text"] == ""


async def test_a_past_profile_contains_the_memories_valid_then(serve: Serve) -> None:
    async with serve() as api, api.client() as http, mcp_of(api) as mcp:
        before = datetime.now(UTC) - timedelta(days=1)
        for city in ("Berlin", "Rome"):
            await http.post("/api/memories", json={"content": f"I live in {city}."})
        now, then = [
            (await http.get("/api/profile", params=params)).json()["text"]
            for params in ({}, {"as_of": before.isoformat()})
        ]
        assert "Rome" in now and "Berlin" not in now and then == ""
        await http.patch("/api/preferences", json={"set": {"enable_memory": False}})
        (read,) = (await mcp.read_resource("turnlog://profile/now")).contents
        assert json.loads(read.text)["text"] == "", "the client is a model"
        few = await http.get("/api/profile", params={"max_tokens": 1})
        assert few.status_code == 422


async def test_a_profile_has_as_many_lines_as_fit_the_most_important_first(serve: Serve) -> None:
    async with serve() as api, api.client() as http:
        for number, importance in enumerate((0.2, 0.9, 0.5)):
            content = f"Fact number {number} of a person who says a great deal about very little."
            await http.post("/api/memories", json={"content": content, "importance": importance})
        of_ann = (api.runtime, api.runtime.settings.tenant, "ann")
        whole, part = await profile(*of_ann), await profile(*of_ann, max_tokens=50)
        assert [line.text[12] for group in whole.groups for line in group.lines] == ["1", "2", "0"]
        assert part.tokens <= 50 and part.left_out == 3 - len(part.groups[0].lines) > 0
        assert part.groups[0].lines[0] == whole.groups[0].lines[0]
        assert profile_lines(part)[-1] == f"{counted(part.left_out, 'memory', 'memories')} of less importance left out"
