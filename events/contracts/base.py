"""The base class of every contract: instances are immutable, and unknown fields are refused."""

from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from turnlog.events.local_time import UNDATED_FROM as UNDATED_FROM
from turnlog.events.local_time import is_undated as is_undated

# Shown instead of a text whose key was destroyed.
ERASED = "[erased]"
FIRST_TIME, END_OF_TIME = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)


def in_calendar(at: datetime) -> datetime:
    """Returns the aware time if every store and computation can represent it. Raises ValueError."""
    if not FIRST_TIME <= at < END_OF_TIME:
        raise ValueError(f"{at.isoformat()} is not in the years 1970 to 9998 (UTC)")
    return at


# Room is left on each side, so that time zones and date arithmetic stay within the ranges of Python and Postgres.
Moment = Annotated[AwareDatetime, Field(ge=FIRST_TIME, lt=END_OF_TIME)]
# Read models add amounts up over threads: nine million of the largest amounts fit into a bigint.
Amount = Annotated[int, Field(ge=0, le=10**12)]


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class EventContract(Frozen):
    """The data of one event type, and what the type means to the rest of turnlog.

    A contract with personal fields must set MIXES_SPEAKERS, and a contract with a field `error` must set
    QUOTES_ERRORS; otherwise defining the class fails. So an erasure cannot miss a new event type.
    """

    VERSION: ClassVar[int] = 1
    """The version of the shape; data of an older version is upcast on read."""
    PERSONAL: ClassVar[dict[str, Any]]
    """Maps fields with a person's words, or a fingerprint of them, to the tombstone shown when the key was
    destroyed."""
    MIXES_SPEAKERS: ClassVar[bool]
    """True if the personal fields may contain words of every speaker of the thread, not only of the event's user."""
    UNSEARCHED: ClassVar[frozenset[str]] = frozenset()
    """Personal fields from which an erasure takes no search strings: fingerprints, encoded values, nested events,
    copies of other events' words, and text that an operator wrote."""
    CONVERSES: ClassVar[bool] = False
    """True if the event begins or continues a conversation; it is then refused on turnlog's own threads."""
    REMOVES: ClassVar[bool] = False
    """True if every read model deletes its rows of the thread."""
    ARCHIVES: ClassVar[bool] = False
    """True if the event moves a conversation into the archive or back."""
    QUOTES_ERRORS: ClassVar[bool] = False
    """True if the event contains a server's unencrypted error text, which may quote a person's words."""

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
        """Returns whether a personal field contains text, not only ids and numbers."""
        return self.has_personal()


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


class Derivation(Frozen):
    """The model, prompt and turns that made a result, and its cost. They show when the result is outdated."""

    provider: str
    model: str
    prompt_hash: str
    from_seq: int
    through_seq: int
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float = 0.0
