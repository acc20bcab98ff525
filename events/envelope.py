"""The JSON of every event as a model, for schemas that other languages can use (L3, L8).

The codec does not use these: it reads leniently and by hand. A test keeps both equal on every golden file.
"""

from typing import Any, Literal
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, create_model

from turnlog.events.codec import CONTRACTS, TYPE_PREFIX, VERSIONS
from turnlog.events.frozen import Frozen

_LITERAL: Any = Literal  # of values that are known at run time only


class Envelope(BaseModel):
    """CloudEvents 1.0 in structured mode, with turnlog's extension attributes. Other attributes may be added."""

    model_config = ConfigDict(extra="allow")

    specversion: Literal["1.0"]
    id: UUID = Field(description="UUIDv7; the same id is the same event, however often it is published")
    source: str = Field(description="Who made the event, such as 'my-app'")
    subject: str | None = Field(None, description="The thread id again")
    time: AwareDatetime = Field(description="When it happened, RFC 3339 with an offset")
    datacontenttype: Literal["application/json"] = "application/json"
    tenant: str = Field("default", pattern="^[A-Za-z0-9_-]{1,64}$")
    thread: str = Field(min_length=1, max_length=512, description="The conversation; at most 512 bytes of UTF-8")
    user: str | None = Field(None, min_length=1, max_length=512, description="Whose data this is")
    causation: UUID | None = Field(None, description="The event that led to this one")
    correlation: UUID | None = Field(None, description="The event that began the exchange")
    traceparent: str | None = Field(None, description="W3C trace context")


def envelope_of(type_: str) -> type[Envelope]:
    """The envelope of one event type at its newest version; `data` is the contract less its `type`."""
    contract, schema = CONTRACTS[type_], f"urn:turnlog:{type_}:{VERSIONS[type_]}"
    parts: dict[str, Any] = {name: (f.rebuild_annotation(), f) for name, f in contract.model_fields.items()}
    del parts["type"]
    data = create_model(contract.__name__, __base__=Frozen, __doc__=contract.__doc__, **parts)
    attributes: dict[str, Any] = {
        "type": (_LITERAL[TYPE_PREFIX + type_], ...),
        "dataschema": (_LITERAL[schema], schema),
        "data": (data, ...),
    }
    return create_model(f"{contract.__name__}Event", __base__=Envelope, __doc__=contract.__doc__, **attributes)
