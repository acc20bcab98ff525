"""The JSON of every event as a model, for schemas that other languages can use (L3, L8).

The codec does not use these: it reads leniently and by hand. A test keeps both equal on every golden file.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any, Literal, get_args
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, create_model

from turnlog.events.codec import TYPE_PREFIX, VERSIONS
from turnlog.events.contracts import CONTRACTS
from turnlog.events.contracts.base import Frozen, Moment

_LITERAL: Any = Literal  # of values that are known at run time only


class Envelope(BaseModel):
    """CloudEvents 1.0 in structured mode, with turnlog's extension attributes. Other attributes may be added."""

    model_config = ConfigDict(extra="allow")

    specversion: Literal["1.0"]
    id: UUID = Field(description="UUIDv7; the same id is the same event, however often it is published")
    source: str = Field(description="Who made the event, such as 'my-app'")
    subject: str | None = Field(None, description="The thread id again")
    time: Moment = Field(description="When it happened, RFC 3339 with an offset; in the years 1970 to 9998 (UTC)")
    datacontenttype: Literal["application/json"] = "application/json"
    tenant: str = Field("default", pattern="^[A-Za-z0-9_-]{1,64}$")
    thread: str = Field(min_length=1, max_length=512, description="The conversation; at most 512 bytes of UTF-8")
    user: str | None = Field(None, min_length=1, max_length=512, description="Whose data this is")
    causation: UUID | None = Field(None, description="The event that led to this one")
    correlation: UUID | None = Field(None, description="The event that began the exchange")
    traceparent: str | None = Field(None, description="W3C trace context")
    sealed: str | None = Field(
        None,
        description="What `data` lacks of the user's words: base64 of a nonce of 12 bytes and AES-256-GCM's ciphertext "
        "of their JSON (docs/privacy.md)",
    )
    sealedkey: UUID | None = Field(None, description="The user's key that opens `sealed`")
    signature: str | None = Field(
        None,
        pattern="^[0-9a-f]{64}$",
        description="Of turnlog on events of limits, agents and API keys, which count only with it (docs/access.md)",
    )


def envelope_of(type_: str) -> type[Envelope]:
    """The envelope of one event type at its newest version; `data` is the contract without its `type`."""
    contract, schema = CONTRACTS[type_], f"urn:turnlog:{type_}:{VERSIONS[type_]}"
    data = _sealable(contract, contract.__name__, tuple(contract.PERSONAL), leave_out="type")
    attributes: dict[str, Any] = {
        "type": (_LITERAL[TYPE_PREFIX + type_], ...),
        "dataschema": (_LITERAL[schema], schema),
        "data": (data, ...),
    }
    return create_model(f"{contract.__name__}Event", __base__=Envelope, __doc__=contract.__doc__, **attributes)


@cache
def _sealable(model: type[BaseModel], name: str, personal: tuple[str, ...], leave_out: str = "") -> type[BaseModel]:
    """The model with optional personal fields: sealed events lack them."""
    absent = {path for path in personal if "." not in path}
    nested = {path.split(".")[0] for path in personal} - absent
    parts: dict[str, Any] = {n: (f.rebuild_annotation(), f) for n, f in model.model_fields.items() if n != leave_out}
    for outer in nested:
        inner = tuple(path.partition(".")[2] for path in personal if path.startswith(f"{outer}."))
        parts[outer] = (_with_sealable(parts[outer][0], inner), parts[outer][1])

    def demand_less(schema: dict[str, Any]) -> None:
        _demand(schema, absent)

    config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=demand_less)
    base = type("Frozen", (Frozen,), {"model_config": config})
    return create_model(name, __base__=base, __doc__=model.__doc__, **parts)


def _with_sealable(annotation: Any, personal: tuple[str, ...]) -> Any:
    """`Memory` or `Memory | None` with the model replaced."""
    options = get_args(annotation) or (annotation,)
    found: Any = None
    for option in options:
        is_model = isinstance(option, type) and issubclass(option, BaseModel)
        new = _sealable(option, f"{option.__name__}Said", personal) if is_model else option
        found = new if found is None else found | new
    return found


def _demand(schema: dict[str, Any], absent: Iterable[str]) -> None:
    required = [name for name in schema.get("required", []) if name not in set(absent)]
    schema.pop("required", None)
    if required:
        schema["required"] = required
