"""The base of every contract: immutable, and with no field that it does not know."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

# What stands in place of a text whose key was destroyed (M9).
ERASED = "[erased]"


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EventContract(Frozen):
    """The data of one event type. VERSION and PERSONAL: contracts.py."""

    VERSION: ClassVar[int]
    PERSONAL: ClassVar[dict[str, Any]]


class Derivation(Frozen):
    """How a model's result came about (L7): enough to audit it and to know when it must be made again."""

    provider: str
    model: str
    prompt_hash: str
    from_seq: int
    through_seq: int
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float = 0.0
