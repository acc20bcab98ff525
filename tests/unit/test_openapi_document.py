"""The OpenAPI document is valid, and has what other projects' generators need."""

from collections.abc import Iterator
from typing import Any

from schemathesis.specs.openapi import definitions

from turnlog.consumers.api.app import document


def parts_of(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        yield part
    for member in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from parts_of(member)


def test_the_document_is_valid_openapi_3_1() -> None:
    assert document()["openapi"].startswith("3.1.") and document()["servers"]
    assert [error.message for error in definitions.OPENAPI_31_VALIDATOR.iter_errors(document())] == []


def test_every_array_says_what_it_holds_and_no_two_models_share_a_title() -> None:
    assert [part for part in parts_of(document()) if part.get("type") == "array" and "items" not in part] == []
    titles = [schema["title"] for schema in document()["components"]["schemas"].values() if "title" in schema]
    assert len(titles) == len(set(titles)) > 100


def test_every_operation_is_described_and_has_a_name_of_its_own() -> None:
    operations = {
        (path, method): operation
        for path, of_path in document()["paths"].items()
        for method, operation in of_path.items()
    }
    names = [operation["operationId"] for operation in operations.values()]
    assert len(names) == len(set(names)) > 100
    tags = {tag["name"] for tag in document()["tags"]}
    assert {tag for operation in operations.values() for tag in operation["tags"]} == tags
    assert [where for where, operation in operations.items() if not operation.get("description")] == []
    public = {path for (path, _), operation in operations.items() if operation.get("security") == []}
    assert public == {"/health/live", "/health/ready", "/.well-known/jwks.json"}
