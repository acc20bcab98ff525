"""The OpenAPI document is valid and contains what generators of other projects need."""

from collections.abc import Iterator
from typing import Any

from schemathesis.specs.openapi import definitions

from turnlog.consumers.api.app import document


def parts_of(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        yield part
    for member in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from parts_of(member)


def objects_in(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the objects with named fields of a schema and of the schemas that it refers to."""
    for part in parts_of(schema):
        if "$ref" in part:
            name = part["$ref"].rpartition("/")[2]
            yield from objects_in(document()["components"]["schemas"][name])
        elif "properties" in part:
            yield part["title"], part


def test_bodies_of_requests_to_our_own_routes_refuse_unknown_fields() -> None:
    """Receipts are exempt, because clients send them back and they may be of another version."""
    lenient, given_back = {"/api/chat/stream", "/api/import"}, {"SignedBasis", "ContextReceipt", "Remarks"}
    bodies = {
        path: operation["requestBody"]
        for path, of_path in document()["paths"].items()
        for operation in of_path.values()
        if "requestBody" in operation and path.startswith(("/api/", "/admin/")) and path not in lenient
    }
    objects = dict(part for body in bodies.values() for part in objects_in(body))
    ignoring = {title for title, part in objects.items() if part.get("additionalProperties") is not False}
    assert len(objects) > 25 and ignoring - given_back == set()


def test_the_document_is_valid_openapi_3_1() -> None:
    assert document()["openapi"].startswith("3.1.") and document()["servers"]
    assert [error.message for error in definitions.OPENAPI_31_VALIDATOR.iter_errors(document())] == []


def test_every_array_declares_its_items_and_no_two_models_share_a_title() -> None:
    assert [part for part in parts_of(document()) if part.get("type") == "array" and "items" not in part] == []
    titles = [schema["title"] for schema in document()["components"]["schemas"].values() if "title" in schema]
    assert len(titles) == len(set(titles)) > 100


def test_every_operation_is_described_and_has_a_unique_name() -> None:
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
