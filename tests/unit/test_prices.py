"""Prices of models are bundled with date and source, or read from a user's file."""

from datetime import date
from pathlib import Path

import pytest

from turnlog.agent.models.factory import make_models
from turnlog.agent.models.pricing import Cost, load_prices
from turnlog.agent.settings import InvalidSetting, Settings

OWN = """
dated = "2026-11-20"
source = "our contract"
[models]
"our-model" = { input = 3, output = 6 }
"at-home" = { input = 0 }
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "prices.toml"
    file.write_text(text)
    return file


def test_the_bundled_table_names_date_and_source_of_its_prices() -> None:
    prices = load_prices()
    assert prices.dated >= date(2026, 11, 1) and "OpenAI" in prices.source
    assert prices.cost_of("gpt-4o-mini", 1_000_000, 1_000_000) == Cost(0.75, known=True)
    for name, price in prices.models.items():
        assert price.source and price.source.startswith("https://") and price.compared, name


def test_a_users_file_replaces_the_bundled_one(tmp_path: Path) -> None:
    prices = load_prices(written(tmp_path, OWN))
    assert prices.cost_of("our-model", 1_000, 1_000) == Cost(0.009, known=True)
    assert prices.cost_of("gpt-4o-mini", 1_000) == Cost(0.0, known=False)
    assert prices.cost_of("at-home", 1_000) == Cost(0.0, known=True)
    assert prices.cost_of("offline-planner", 1_000) == Cost(0.0, known=True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (OWN.replace("3", "-3"), "models.our-model.input: input should be greater than or equal to 0"),
        (OWN.replace("input = 3", "in = 3"), "models.our-model"),
        (OWN.replace('source = "our contract"', ""), "source: field required"),
        ("[models", "is not TOML"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path, text: str, says: str) -> None:
    settings = Settings(api_base_url="http://127.0.0.1:9/v1", prices=written(tmp_path, text), home=tmp_path)
    with pytest.raises(InvalidSetting, match="TURNLOG_PRICES") as refused:
        make_models(settings)
    assert says in str(refused.value)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"nothing\.toml cannot be read"):
        load_prices(tmp_path / "nothing.toml")
