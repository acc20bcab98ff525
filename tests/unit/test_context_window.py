"""The window determines the budget of a context."""

import pytest

from turnlog.agent.context.window import WindowTooSmall, budget_for, window_for


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("gpt-4o-mini", 128_000),
        ("gpt-4.1-mini", 1_047_576),
        ("gpt-4", 8_192),
        ("gpt-4-turbo-preview", 128_000),
        ("gpt-5-mini", 400_000),
        ("o3-mini", 200_000),
        ("claude-sonnet-4", 200_000),
        ("us.anthropic.claude-3-5-sonnet", 200_000),
        ("openai/gpt-4o", 128_000),
        ("ft:gpt-4o:acme::abc", 128_000),
        ("deepseek-chat", 128_000),
        ("deepseek-v2-chat", 64_000),
        ("GLM-4-Plus", 128_000),
        ("glm-4.6", 200_000),
        ("gemini-2.0-flash", 1_000_000),
        ("meta-llama/Llama-3.1-8B-Instruct", 128_000),
        ("llama3.1:8b", 128_000),
        ("llama3:8b", 8_192),
        ("a-model-nobody-knows", 128_000),
        ("", 128_000),
    ],
)
def test_the_window_follows_from_the_models_name(model: str, window: int) -> None:
    assert window_for(model) == window


def test_the_budget_of_128k_is_the_one_of_the_design_example() -> None:
    budget = budget_for("gpt-4o", 0, system=4_200, tools=0)
    assert (budget.safety, budget.reserve, budget.budget) == (12_800, 16_000, 95_000)


def test_an_explicit_window_wins_over_the_models_name() -> None:
    assert budget_for("gpt-4o", 64_000, 0, 0).budget == 64_000 - 6_400 - 16_000


@pytest.mark.parametrize("window", [2_000, 4_000, 8_000, 16_000, 32_000])
def test_small_windows_reserve_at_most_a_quarter_for_the_answer(window: int) -> None:
    budget = budget_for("gpt-4o", window, 0, 0)
    assert budget.reserve == min(16_000, window // 4)
    assert budget.budget == window - window // 10 - budget.reserve


def test_tools_are_taken_from_the_budget() -> None:
    assert budget_for("gpt-4o", 0, 0, 0).budget - budget_for("gpt-4o", 0, 0, 900).budget == 900


def test_a_prompt_larger_than_the_window_names_cause_and_fix() -> None:
    with pytest.raises(WindowTooSmall, match=r"system prompt takes 5,000.*MEMORY_CONTEXT_WINDOW"):
        budget_for("gpt-4o", 4_000, system=5_000, tools=0)


def test_an_answer_that_may_be_longer_than_the_reserve_gets_its_room() -> None:
    assert budget_for("gpt-4o", 0, 0, 0, answer=40_000).budget == 128_000 - 12_800 - 40_000
    assert budget_for("gpt-4o", 0, 0, 0, answer=100) == budget_for("gpt-4o", 0, 0, 0)
    with pytest.raises(WindowTooSmall, match="a shorter answer"):
        budget_for("gpt-4o", 0, 0, 0, answer=128_000)
