"""Golden events of every contract and version must decode forever, and the newest must encode to the same bytes.

A contract that changes needs a new VERSION, an upcaster and a new golden file; the old files stay unchanged.
"""

import json
from pathlib import Path
from uuid import UUID

import pytest
from helpers.every_contract import EVERY_CONTRACT
from helpers.sample_events import event

from turnlog.events.codec import VERSIONS, decode, encode
from turnlog.events.contracts import CONTRACTS, Event, EventData
from turnlog.events.contracts.upcasters import UPCASTERS
from turnlog.events.signing import Signer
from turnlog.events.subjects import LIMITS
from turnlog.projectors.models.registry import PROJECTIONS

GOLDEN = Path(__file__).parent.parent / "golden"
EVERY_VERSION = [(name, version) for name, top in VERSIONS.items() for version in range(1, top + 1)]
WITHOUT_READ_MODEL = {
    "answer_requested": "handled by the agent consumer, no read model",
    "answer_receipt": "kept in the log; read back by id",
    "event_redacted": "readers of the log find the event in it in place of the one it replaces",
    "turn_redacted": "the receipt of a redaction, kept in the log",
    "turns_expired": "the receipt of a run of retention, kept in the log",
    "user_erased": "the receipt of an erasure, kept in the log",
}


def golden_event(data: EventData) -> Event:
    """Returns an event with all attributes set, so that a golden file shows all of them."""
    return event(
        data,
        thread="线/thread.1",
        id=UUID("01890a5d-ac96-774b-bcce-b302099a8057"),
        source="turnlog/import",
        tenant="acme",
        user="ann",
        causation=UUID(int=1),
        correlation=UUID(int=2),
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )


def golden(name: str, version: int) -> bytes:
    return (GOLDEN / f"{name}.v{version}.json").read_bytes()


@pytest.mark.parametrize(("name", "version"), EVERY_VERSION)
def test_every_version_ever_released_still_decodes(name: str, version: int) -> None:
    decoded = decode(golden(name, version))
    assert decoded.type == name
    assert decoded.thread == "线/thread.1"
    assert decoded.user == "ann"


@pytest.mark.parametrize("data", EVERY_CONTRACT, ids=lambda data: data.type)
def test_the_newest_version_encodes_to_the_golden_document(data: EventData) -> None:
    made = golden_event(data)
    assert json.loads(encode(made)) == json.loads(golden(data.type, VERSIONS[data.type]))
    assert decode(encode(made)) == made


def test_version_one_of_a_turn_becomes_the_turn_of_today() -> None:
    decoded = decode(golden("turn_recorded", 1))
    assert json.loads(golden("turn_recorded", 1))["data"] == {"role": "assistant", "text": "Hello Ann", "tokens": 3}
    assert decoded.data.model_dump(exclude_defaults=True) == {
        "role": "assistant",
        "content": "Hello Ann",
        "tokens_out": 3,
        "origin": "program",
    }


def test_every_contract_has_a_sample_and_every_version_exactly_one_golden_file() -> None:
    assert {data.type for data in EVERY_CONTRACT} == set(CONTRACTS)
    assert {path.name for path in GOLDEN.glob("*.json")} == {f"{name}.v{v}.json" for name, v in EVERY_VERSION}


def test_every_old_version_has_the_step_to_the_next() -> None:
    steps = {(name, version) for name, version in EVERY_VERSION if version < VERSIONS[name]}
    assert set(UPCASTERS) == steps


def test_every_event_type_has_a_projector_or_a_stated_reason_for_none() -> None:
    handled = {type_ for projection in PROJECTIONS for type_ in projection.handles}
    assert handled | set(WITHOUT_READ_MODEL) == set(CONTRACTS)
    assert not handled & set(WITHOUT_READ_MODEL)


def test_a_signed_event_of_any_release_stays_signed() -> None:
    signer, stored = Signer(lambda: bytes(32)), (GOLDEN / "signed" / "limits_changed.v1.json").read_bytes()
    signer.check(LIMITS, 1, stored)
    assert signer.sign(LIMITS, stored[: stored.index(b',"signature"')] + b"}") == stored
    assert decode(stored) == decode(golden("limits_changed", 1))
    assert signer.sign("t", b"{}") == b"{}"
