"""The base of every contract: immutable, unknown fields are refused."""

from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from turnlog.events.local_time import UNDATED_FROM as UNDATED_FROM
from turnlog.events.local_time import is_undated as is_undated

# Replaces a text whose key was destroyed.
ERASED = "[erased]"
FIRST_TIME, END_OF_TIME = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)


def in_calendar(at: datetime) -> datetime:
    """Returns an aware time that every store and computation can hold. Raises ValueError."""
    if not FIRST_TIME <= at < END_OF_TIME:
        raise ValueError(f"{at.isoformat()} is not in the years 1970 to 9998 (UTC)")
    return at


# A year is left on each side, so that time zones and date arithmetic stay within what Python and Postgres can hold.
Moment = Annotated[AwareDatetime, Field(ge=FIRST_TIME, lt=END_OF_TIME)]
# Read models add them up over threads: nine million of the largest ones fit into a bigint.
Amount = Annotated[int, Field(ge=0, le=10**12)]


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class EventContract(Frozen):
    """The data of one event type, and what the type means to the rest of turnlog.

    A contract must declare whose words its personal fields hold and whether it has a field `error`; otherwise
    defining the class fails. So an erasure never misses a new event type.
    """

    VERSION: ClassVar[int] = 1
    """Of the shape; an older one is upcast on read."""
    PERSONAL: ClassVar[dict[str, Any]]
    """Fields with words of or about a person, or a fingerprint of them → the tombstone shown when the key is gone."""
    MIXES_SPEAKERS: ClassVar[bool]
    """In a thread with several people the personal fields hold words of all of them, not only of the event's user."""
    UNSEARCHED: ClassVar[frozenset[str]] = frozenset()
    """Personal fields without words of a person: fingerprints, nested events, and text that an operator wrote."""
    CONVERSES: ClassVar[bool] = False
    """Begins or continues a conversation; refused on threads of turnlog's own."""
    REMOVES: ClassVar[bool] = False
    """Every read model drops what it has of the thread."""
    ARCHIVES: ClassVar[bool] = False
    """Moves a conversation into the archive or back."""
    QUOTES_ERRORS: ClassVar[bool] = False
    """Has a server's error text in clear, which may quote what a person said."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        if cls.PERSONAL and not hasattr(cls, "MIXES_SPEAKERS"):
            raise TypeError(f"{cls.__name__} has personal fields: set MIXES_SPEAKERS to say whose words they are")
        if "error" in cls.model_fields and not cls.QUOTES_ERRORS:
            raise TypeError(f"{cls.__name__} has an unencrypted error text: set QUOTES_ERRORS")

    def has_personal(self) -> bool:
        """Returns whether a personal field has a value, so that the event is sealed."""
        return any(_at(self, path) for path in self.PERSONAL)

    def has_words(self) -> bool:
        """Returns whether a personal field holds text, not only ids and numbers."""
        return self.has_personal()


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


class Derivation(Frozen):
    """How a model's result came about: enough to audit it and to know when it is outdated."""

    provider: str
    model: str
    prompt_hash: str
    from_seq: int
    through_seq: int
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float = 0.0
