"""The team that docs/agents.md creates step by step answers with its tools."""

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from helpers.http_shop import TOKEN, Warehouse, served
from helpers.markdown_examples import blocks, files
from helpers.openai_server import OpenAIServer
from helpers.questions import Place, pieces_of
from helpers.stage import player

from turnlog.agent.answering.asking import Answered, Solved
from turnlog.agent.operations.checkup import checkup
from turnlog.agent.team import tool_registry
from turnlog.agent.team.records import StoredRecords
from turnlog.agent.team.runs import list_runs, show_run
from turnlog.agent.team.teams import InvalidTeam

PAGE = "docs/agents.md"


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


async def test_the_team_of_the_page_answers_with_its_tools(
    nats_url: str, database_url: str, model: OpenAIServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "support"
    folder.mkdir()
    for name in ("team.toml", "desk.toml", "refunds.toml"):
        more = blocks(PAGE, "toml", "suggestions.toml") if name == "desk.toml" else []
        (folder / name).write_text("\n".join(block.text for block in (*blocks(PAGE, "toml", name), *more)), "utf-8")
    for name in ("shop_orders.py", "shop_refunds.py"):
        (tmp_path / name).write_text(files(PAGE)[name], "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    model.reply("I refund it.", tool_calls=[("refund_order", {"number": "A101", "usd": 40})])
    model.reply("40 USD are on their way.")
    settings = {"api_base_url": model.url, "api_key": model.key, "model": "m", "team": str(folder)}
    async with player(nats_url, database_url, ("projectors", "agent"), **settings)() as stage:
        greeted = await pieces_of(stage.runtime, Place(user="ann"), "Hello!")
        pieces = await pieces_of(stage.runtime, Place(user="ann"), "Please refund my order, I want my money back")
        model.reply(
            "I look.", tool_calls=[("find_order", {"number": "A101"}), ("search_articles", {"words": "returns"})]
        )
        model.reply("It is on its way.")
        answer = (await pieces_of(stage.runtime, Place(user="ann"), "Where is A101?"))[-1]
        [run, *_] = await list_runs(stage.runtime, "default", "ann")
        steps = (await show_run(stage.runtime, "default", run.run_id)).steps
        refunds = await StoredRecords(stage.runtime, "default", "ann", "support").all("refunds")
    assert isinstance(greeted[-1], Answered) and greeted[-1].answer == "Hello! Which order is it about?"
    assert isinstance(pieces[-1], Answered) and pieces[-1].answer == "40 USD are on their way."
    [solved] = [piece for piece in pieces if isinstance(piece, Solved)]
    assert (solved.chain, solved.tools, solved.routed) == (("refunds",), ("refund_order",), True)
    assert refunds == {"A101": {"usd": 40}}
    assert isinstance(answer, Answered) and answer.suggestions == ("Can I return the blue bicycle?",)
    [articles] = [json.loads(step.text) for step in steps if (step.kind, step.name) == ("result", "search_articles")]
    assert articles == ["Within 30 days, unused."]


async def test_the_support_team_is_served_from_its_folder(
    nats_url: str, database_url: str, model: OpenAIServer
) -> None:
    folder = Path(__file__).parents[1] / "teams" / "support"
    model.reply("I look.", tool_calls=[("find_order", {"number": "A101"}), ("search_articles", {"words": "returns"})])
    model.reply("Within 30 days.")
    model.reply("I refund it.", tool_calls=[("refund_order", {"number": "A101", "usd": 40})])
    model.reply("40 USD are on their way.")
    settings = {"api_base_url": model.url, "api_key": model.key, "model": "m", "team": str(folder)}
    async with player(nats_url, database_url, ("projectors", "agent"), **settings)() as stage:
        asked = [
            await pieces_of(stage.runtime, Place(user="ann"), question)
            for question in ("Where is A101?", "Please refund my order, I want my money back")
        ]
        refunds = await StoredRecords(stage.runtime, "default", "ann", "support").all("refunds")
    chains = [(piece.chain, set(piece.tools)) for pieces in asked for piece in pieces if isinstance(piece, Solved)]
    assert chains == [(("desk",), {"find_order", "search_articles"}), (("refunds",), {"refund_order"})]
    assert refunds == {"A101": {"usd": 40}}


async def test_the_servers_of_the_page_give_their_tools_to_the_team(
    nats_url: str, database_url: str, model: OpenAIServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings are those of the page, except the address of the warehouse and the path of Python."""
    monkeypatch.setenv("WAREHOUSE_TOKEN", TOKEN)
    monkeypatch.setattr(tool_registry, "CONNECT_S", 60.0)
    (tmp_path / "parts_server.py").write_text(files(PAGE)["parts_server.py"], "utf-8")
    warehouse, calls = Warehouse(), [("find_parts", {"bicycle": "Dart"}), ("list_parts", {"shelf": "a", "most": 1})]
    model.reply("I look.", tool_calls=calls)
    model.reply("There is a bell.")
    with served(warehouse.app) as url:
        servers = [blocks(PAGE, "toml", name)[0].text for name in ("parts.toml", "warehouse.toml")]
        text = "".join(servers).replace("http://127.0.0.1:8900", url).replace('"python"', f'"{sys.executable}"')
        (tmp_path / "team.toml").write_text(f'name = "parts"\nentry = "desk"\n{text}', "utf-8")
        (tmp_path / "desk.toml").write_text(
            'name = "Desk"\nprompt = "Find parts."\ntools = ["find_parts", "list_parts"]\n'
        )
        settings = {"api_base_url": model.url, "api_key": model.key, "model": "m", "team": str(tmp_path)}
        settings |= {"answer_timeout_s": "180"}  # starting the tool server may take long
        async with player(nats_url, database_url, ("projectors", "agent"), **settings)() as stage:
            pieces = await pieces_of(stage.runtime, Place(user="ann"), "A bell for my Dart, please")
            [run] = await list_runs(stage.runtime, "default", "ann")
            steps = (await show_run(stage.runtime, "default", run.run_id)).steps
    assert isinstance(pieces[-1], Answered) and pieces[-1].answer == "There is a bell."
    results = {step.name: json.loads(step.text) for step in steps if step.kind == "result"}
    assert results["find_parts"] == ["bell for a Dart", "rear light for a Dart"]
    assert results["list_parts"] == {"shelf": "a", "parts": [{"name": "part 0"}]}
    offered = {tool["function"]["name"]: tool["function"]["description"] for tool in model.bodies("chat")[0]["tools"]}
    assert offered == {"find_parts": "Finds the spare parts of a bicycle.", "list_parts": "Lists the parts on a shelf."}


async def test_a_server_does_not_start_without_its_teams_secrets_and_doctor_names_unavailable_servers(
    nats_url: str, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WAREHOUSE_TOKEN", raising=False)
    [block] = blocks(PAGE, "toml", "warehouse.toml")
    text = block.text.replace(":8900", ":9")
    (tmp_path / "team.toml").write_text(f'name = "parts"\nentry = "desk"\n{text}', "utf-8")
    (tmp_path / "desk.toml").write_text('name = "Desk"\nprompt = "p"\n')
    async with player(nats_url, database_url, (), team=str(tmp_path))() as stage:
        for secret, said in ((None, "the environment variable WAREHOUSE_TOKEN is not set"), ("x", "cannot be fetched")):
            if secret:
                monkeypatch.setenv("WAREHOUSE_TOKEN", secret)
            findings = await checkup(stage.runtime.settings, lambda: nullcontext(stage.runtime))
            [finding] = [finding for finding in findings if finding.check == "team"]
            assert not finding.ok and said in finding.detail
        monkeypatch.delenv("WAREHOUSE_TOKEN")
    play = player(nats_url, database_url, ("agent",), team=str(tmp_path))
    with pytest.raises(InvalidTeam, match=r"http.warehouse: the environment variable WAREHOUSE_TOKEN is not set"):
        async with play():
            pass
