"""docs/asyncapi.json is current and valid AsyncAPI 3, and its schemas describe the bytes on the log."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from faststream.specification.asyncapi.v3_0_0.schema import ApplicationSchema
from helpers.every_contract import EVERY_CONTRACT
from helpers.key_rings import KeysAtHand
from helpers.sample_events import event
from jsonschema import Draft202012Validator

from turnlog.agent.answering.pieces import Kind
from turnlog.consumers.workers.asyncapi import document, text
from turnlog.events.codec import VERSIONS, encode
from turnlog.events.contracts import CONTRACTS
from turnlog.events.subjects import progress_subject, publish_subject

ROOT = Path(__file__).parents[2]


@cache
def made() -> dict[str, Any]:
    return document()


def validator(type_: str) -> Draft202012Validator:
    message = made()["components"]["messages"][f"{type_}:Message"]
    return Draft202012Validator(
        {**message["payload"], "components": made()["components"]},
        format_checker=Draft202012Validator.FORMAT_CHECKER,
    )


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        yield from ([part["$ref"]] if isinstance(part.get("$ref"), str) else [])
        part = list(part.values())
    if isinstance(part, list):
        for item in part:
            yield from references(item)


def test_document_in_docs_is_current() -> None:
    assert (ROOT / "docs/asyncapi.json").read_text("utf-8") == text(), (
        "run python -m turnlog.consumers.workers.asyncapi > docs/asyncapi.json"
    )


def test_document_is_asyncapi_3() -> None:
    assert made()["asyncapi"].startswith("3.")
    ApplicationSchema.model_validate(made())


def test_every_reference_leads_somewhere() -> None:
    for reference in references(made()):
        value: Any = made()
        for step in reference.removeprefix("#/").split("/"):
            value = value[step]


def test_every_contract_is_a_channel_with_its_version() -> None:
    for name, version in VERSIONS.items():
        channel, schema = made()["channels"][name], made()["components"]["schemas"][f"{CONTRACTS[name].__name__}Event"]
        assert channel["address"].format(tenant="acme", thread="t1") == publish_subject("acme", "t1", name)
        assert schema["properties"]["type"]["const"] == f"turnlog.{name}"
        assert schema["properties"]["dataschema"]["const"] == f"urn:turnlog:{name}:{version}"


def test_the_progress_channel_matches_the_subject_of_streamed_tokens() -> None:
    address = made()["channels"]["progress"]["address"]
    assert address.format(tenant="acme", thread="t1", request="r1") == progress_subject("acme", "t1", "r1")
    assert made()["components"]["schemas"]["ProgressStep"]["properties"]["kind"]["enum"] == list(Kind.__args__)


def test_durables_of_turnlog_are_named() -> None:
    durables = {
        name: channel for name, channel in made()["channels"].items() if "SubscribeMessage" in channel["messages"]
    }
    assert {name: channel["address"] for name, channel in durables.items()} == {
        "memory": "turnlog.log.*.*.*.turn_recorded",
        "segments": "turnlog.log.*.*.*.segment_checkpoint_requested",
        "extraction": "turnlog.log.*.*.*.turn_recorded",
        "contradictions": "turnlog.log.*.*.*.memories_embedded",
        "profiles": "turnlog.log.*.*.*.memories_embedded",
        "agent": "turnlog.log.*.*.*.answer_requested",
        "analytics": "turnlog.log.>",
    }


@pytest.mark.parametrize("data", EVERY_CONTRACT, ids=lambda data: data.type)
def test_encoded_event_fits_its_schema(data: Any) -> None:
    validator(data.type).validate(json.loads(encode(event(data, user="ann"))))


@pytest.mark.parametrize("data", EVERY_CONTRACT, ids=lambda data: data.type)
def test_sealed_event_fits_its_schema_too(data: Any) -> None:
    validator(data.type).validate(json.loads(encode(event(data, user="ann"), KeysAtHand())))


@pytest.mark.parametrize("name", sorted(CONTRACTS))
def test_golden_event_of_the_newest_version_fits_its_schema(name: str) -> None:
    golden = ROOT / f"tests/golden/{name}.v{VERSIONS[name]}.json"
    validator(name).validate(json.loads(golden.read_text("utf-8")))


def test_schema_refuses_what_the_codec_refuses() -> None:
    turn = json.loads((ROOT / "tests/golden/turn_recorded.v3.json").read_text("utf-8"))
    refused = (
        {"specversion": "0.3"},
        {"id": "no uuid"},
        {"thread": ""},
        {"data": {"role": "nobody"}},
        {"data": {"role": "user", "shout": True}},
        {"tenant": "a.b"},
    )
    for change in refused:
        assert not validator("turn_recorded").is_valid({**turn, **change}), change
