"""Generates docs/asyncapi.json from the code, by FastStream and without a connection: the channels of all events, of
progress, and of the durables. Those of extraction, contradictions and profiles run only if the settings need them.

    python -m turnlog.consumers.workers.asyncapi > docs/asyncapi.json

FastStream generates the basic document; this module adds parameters of subjects, headers and the messages of durables.
"""

import json
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any, Literal, get_args
from uuid import UUID

from faststream.nats import NatsBroker
from faststream.specification import AsyncAPI
from pydantic import BaseModel, ConfigDict, Field, create_model

from turnlog.agent.answering.pieces import ProgressStep
from turnlog.agent.answering.request import AGENT
from turnlog.agent.memory.extraction.extraction_run import NAME as EXTRACTION
from turnlog.consumers.workers.analytics import NAME as ANALYTICS
from turnlog.consumers.workers.app import make_broker, subscribe
from turnlog.consumers.workers.durable_consumer import Delivery, DurableConsumer
from turnlog.consumers.workers.reactors.contradictions import NAME as CONTRADICTIONS
from turnlog.consumers.workers.reactors.profiles import NAME as PROFILES
from turnlog.consumers.workers.reactors.segments import NAME as SEGMENTS
from turnlog.consumers.workers.reactors.thread_maintenance import NAME as MEMORY
from turnlog.events.codec import CONTENT_TYPE, TYPE_PREFIX, VERSIONS
from turnlog.events.contracts import CONTRACTS
from turnlog.events.contracts.base import Frozen, Moment
from turnlog.events.subjects import PROGRESS_PREFIX, PUBLISHED, STORED_PREFIX, type_filter

Document = dict[str, Any]
_LITERAL: Any = Literal  # untyped, because its values are known only at run time
PARAMETERS = {
    "tenant": "1 to 64 of letters, digits, '_' and '-'",
    "thread": (
        "the thread id itself when it is 1 to 100 of letters, digits, '_' and '-'; else '~' and its UTF-8 as base64url "
        "without padding; over 96 bytes '~~' and its SHA-256 in hex. The id itself is in the envelope"
    ),
    "request": "the id of the answer_requested event",
}
HEADERS: Document = {
    "type": "object",
    "properties": {
        "Nats-Msg-Id": {"type": "string", "format": "uuid", "description": "the event's id"},
        "Content-Type": {"type": "string", "const": CONTENT_TYPE},
    },
    "required": ["Nats-Msg-Id"],
}
RECEIVES = {
    MEMORY: ("turn_recorded",),
    SEGMENTS: ("segment_checkpoint_requested",),
    EXTRACTION: ("turn_recorded",),
    CONTRADICTIONS: ("memories_embedded",),
    PROFILES: ("memories_embedded",),
    AGENT: ("answer_requested",),
    ANALYTICS: tuple(CONTRACTS),
}
DESCRIPTION = (
    f"Producers publish CloudEvents 1.0 JSON on `{PUBLISHED}`; JetStream stores each event as "
    f"`{STORED_PREFIX}.<partition>.<tenant>.<thread>.<type>`, and any number of subscribers read it there with "
    "durables of their own. docs/subscribe.md shows both in plain nats-py."
)


class Envelope(BaseModel):
    """CloudEvents 1.0 in structured mode, with turnlog's extension attributes. Other attributes may be added.

    The codec does not use this model, because it accepts more; a test compares both on every golden file.
    """

    model_config = ConfigDict(extra="allow")

    specversion: Literal["1.0"]
    id: UUID = Field(description="UUIDv7; events with the same id are stored once, however often they are published")
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
        description="turnlog's signature on events of limits, agents and API keys, which are valid only with it "
        "(docs/access.md)",
    )


def envelope_of(type_: str) -> type[Envelope]:
    """Returns the envelope of one event type at its newest version; `data` is the contract without its `type`."""
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
    """Returns the model with its personal fields made optional, because sealed events lack them."""
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
    """Returns the annotation, such as `Memory | None`, with its models made sealable."""
    options = get_args(annotation) or (annotation,)
    union: Any = None
    for option in options:
        is_model = isinstance(option, type) and issubclass(option, BaseModel)
        new = _sealable(option, f"{option.__name__}Said", personal) if is_model else option
        union = new if union is None else union | new
    return union


def _demand(schema: dict[str, Any], absent: Iterable[str]) -> None:
    required = [name for name in schema.get("required", []) if name not in set(absent)]
    schema.pop("required", None)
    if required:
        schema["required"] = required


def document() -> Document:
    """Returns the AsyncAPI 3 document."""
    made: Document = json.loads(_specification(_broker()).to_json())
    for name in CONTRACTS:
        _complete(made, name, PUBLISHED.replace("*", "{}").format("{tenant}", "{thread}", name))
    _complete(made, "progress", f"{PROGRESS_PREFIX}.{{tenant}}.{{thread}}.{{request}}")
    for durable, types in RECEIVES.items():
        _say_what_comes(made, durable, types)
    return _in_order(made)


def _broker() -> NatsBroker:
    broker = make_broker("nats://localhost:4222", "turnlog")
    for name, contract in CONTRACTS.items():
        subject = PUBLISHED.replace("*", "{}").format("{tenant}", "{thread}", name)
        about = " ".join((contract.__doc__ or "").split())
        broker.publisher(subject, title=name, description=about, schema=envelope_of(name))
    progress = f"{PROGRESS_PREFIX}.{{tenant}}.{{thread}}.{{request}}"
    broker.publisher(progress, title="progress", description="Core NATS, never stored.", schema=ProgressStep)
    for durable, types in RECEIVES.items():
        subject = type_filter(types[0]) if len(types) == 1 else f"{STORED_PREFIX}.>"
        subscribe(broker, subject, DurableConsumer(_NO_POOL, durable, _never))
    return broker


_NO_POOL: Any = None  # the broker of the document is never started


async def _never(deliveries: list[Delivery]) -> None:
    pass


def _specification(broker: NatsBroker) -> Any:
    api = AsyncAPI(
        broker,
        title="turnlog",
        version="1",
        schema_version="3.0.0",
        description=DESCRIPTION,
        license={"name": "Apache-2.0"},
    )
    return api.to_specification()


def _complete(made: Document, channel: str, address: str) -> None:
    """Adds the parameters of the channel's subject and the headers of the event's message to the document."""
    names = [part[1:-1] for part in address.split(".") if part.startswith("{")]
    made["channels"][channel]["parameters"] = {name: {"description": PARAMETERS[name]} for name in names}
    message = made["components"]["messages"][f"{channel}:Message"]
    del message["correlationId"]  # a header that only FastStream uses
    if channel != "progress":
        message |= {"contentType": CONTENT_TYPE, "headers": HEADERS}


def _say_what_comes(made: Document, durable: str, types: tuple[str, ...]) -> None:
    """Describes a durable's messages as events of its types, because FastStream knows only bytes."""
    key = f"{durable}:SubscribeMessage"
    made["components"]["schemas"].pop(f"{durable}:Message:Payload")
    payloads = [made["components"]["messages"][f"{name}:Message"]["payload"] for name in types]
    made["components"]["messages"][key] = {
        "title": key,
        "contentType": CONTENT_TYPE,
        "headers": HEADERS,
        "payload": payloads[0] if len(payloads) == 1 else {"oneOf": payloads},
    }


def _in_order(made: Document) -> Document:
    """Sorts the document by name, because FastStream keeps publishers in a set and the document must be
    deterministic."""
    for part in (made["channels"], made["operations"], *made["components"].values()):
        items = sorted(part.items())
        part.clear()
        part.update(items)
    return made


def text() -> str:
    return json.dumps(document(), ensure_ascii=False, indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
