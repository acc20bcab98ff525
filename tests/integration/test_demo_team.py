"""`turnlog demo` shows a run of a team with a language model."""

import pytest
from helpers.stage import MemoryServer, player

from turnlog.consumers.cli.demo import TEAM_QUESTION, Demonstration

HANDED = ("delegate_to_agent", {"agent_type": "school", "task_description": "Which schools fit?"})
TOOLS = [("get_profile", {}), ("recommend_schools", {"count": 3})]


@pytest.mark.parametrize("hands_on", [True, False])
async def test_the_demo_shows_the_run_that_a_model_planned(
    nats_url: str, database_url: str, model: MemoryServer, hands_on: bool
) -> None:
    """A model may plan differently than the rules; the demo shows its plan."""
    if hands_on:
        model.reply("The school agent knows.", tool_calls=[HANDED])
        model.reply("I look.", tool_calls=TOOLS)
    model.reply("Larkfield fits.\nIt is a match.")
    said = list[str]()
    play = player(nats_url, database_url, ("projectors",), api_base_url=model.url, api_key=model.key, model="m")
    async with play() as stage:
        demo = Demonstration(stage.runtime, said.append)
        await demo.run_of_a_team()
    shown = [" ".join(line.split()) for line in said]
    assert demo.report["ok"] and f"> {TEAM_QUESTION}" in shown and "Larkfield fits." in shown
    assert model.bodies("chat")[0]["messages"][-1]["content"] == TEAM_QUESTION
    if hands_on:
        assert "orchestrator delegation school" in shown and "school plan get_profile, recommend_schools" in shown
        assert sum(line.startswith("school result get_profile after ") for line in shown) == 1
        assert shown[-1] == "✓ 8 steps, 2 tools, one hand-over"
    else:
        assert shown[-1] == "✓ 2 steps, 0 tools"
