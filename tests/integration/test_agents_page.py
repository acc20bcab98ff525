"""The team that docs/agents.md makes from nothing answers, with its tools."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.markdown_examples import blocks, files
from helpers.openai_server import OpenAIServer
from helpers.questions import Place, pieces_of
from helpers.stage import player

from turnlog.agent.answering.asking import Answered, Solved
from turnlog.agent.team.records import StoredRecords

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
        [block] = blocks(PAGE, "toml", name)
        (folder / name).write_text(block.text, "utf-8")
    (tmp_path / "shop_tools.py").write_text(files(PAGE)["shop_tools.py"], "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    model.reply("I refund it.", tool_calls=[("refund_order", {"number": "A101", "usd": 40})])
    model.reply("40 USD are on their way.")
    given = {"api_base_url": model.url, "api_key": model.key, "model": "m", "team": str(folder)}
    async with player(nats_url, database_url, ("projectors", "agent"), **given)() as stage:
        greeted = await pieces_of(stage.runtime, Place(user="ann"), "Hello!")
        pieces = await pieces_of(stage.runtime, Place(user="ann"), "Please refund my order, I want my money back")
        refunds = await StoredRecords(stage.runtime, "default", "ann", "support").all("refunds")
    assert isinstance(greeted[-1], Answered) and greeted[-1].answer == "Hello! Which order is it about?"
    assert isinstance(pieces[-1], Answered) and pieces[-1].answer == "40 USD are on their way."
    [solved] = [piece for piece in pieces if isinstance(piece, Solved)]
    assert (solved.chain, solved.tools, solved.routed) == (("refunds",), ("refund_order",), True)
    assert refunds == {"A101": {"usd": 40}}
