"""Tests how operations of OpenAPI documents become tools, and the schemas of these tools."""

from typing import Any

import pytest

from turnlog.agent.team.http_tools import operations_of
from turnlog.agent.team.json_schemas import checker, whole
from turnlog.agent.team.tools import InvalidTool, Mistake

DOCUMENT: dict[str, Any] = {
    "openapi": "3.0.3",
    "servers": [{"url": "/v2"}],
    "paths": {
        "/orders/{id}": {
            "parameters": [{"$ref": "#/components/parameters/Id"}],
            "get": {
                "operationId": "getOrder",
                "summary": "One order.",
                "description": "With its lines.",
                "parameters": [
                    {"name": "Authorization", "in": "header", "schema": {"type": "string"}},
                    {"name": "X-Depth", "in": "header", "schema": {"type": "integer", "nullable": True}},
                    {"name": "theme", "in": "cookie", "schema": {"type": "string"}},
                ],
            },
            "put": {"operationId": "putOrder", "requestBody": {"$ref": "#/components/requestBodies/Order"}},
            "patch": {"operationId": "patchOrder", "requestBody": {"content": {"text/csv": {}}}},
            "delete": {"summary": "has no operationId"},
        }
    },
    "components": {
        "parameters": {"Id": {"name": "id", "in": "path", "description": "its number", "schema": {"type": "string"}}},
        "requestBodies": {
            "Order": {
                "required": True,
                "content": {"application/json; charset=utf-8": {"schema": {"$ref": "#/components/schemas/Order"}}},
            }
        },
        "schemas": {
            "Order": {
                "type": "object",
                "properties": {
                    "usd": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
                    "parts": {"type": "array", "items": {"$ref": "#/components/schemas/Order"}},
                    "example": {"type": "string", "example": "x"},
                },
            }
        },
    },
}


def test_operations_have_the_parameters_of_their_path_and_a_body() -> None:
    operations = operations_of(DOCUMENT, "https://shop.example/api/openapi.json")
    assert set(operations) == {"getOrder", "putOrder"}
    order, put = operations["getOrder"], operations["putOrder"]
    assert (order.method, order.path, order.server) == ("get", "/orders/{id}", "https://shop.example/v2")
    assert order.description == "One order. With its lines." and order.places == {"id": "path", "X-Depth": "header"}
    assert order.parameters == {
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "its number"},
            "X-Depth": {"type": ["integer", "null"]},
        },
        "required": ["id"],
        "additionalProperties": False,
    }
    assert put.parameters["required"] == ["id", "body"]
    assert put.parameters["properties"]["body"]["properties"] == {
        "usd": {"type": "number", "exclusiveMinimum": 0},
        "parts": {"type": "array", "items": {}},
        "example": {"type": "string"},
    }
    check = checker("put", put.parameters)
    assert check({"id": "a", "body": {"usd": 1}}) == {"id": "a", "body": {"usd": 1}}
    for wrong in ({}, 3, {"id": "a", "body": {"usd": 0}}, {"id": "a", "body": {}, "more": 1}):
        with pytest.raises(Mistake, match="the arguments do not fit"):
            check(wrong)


@pytest.mark.parametrize("document", [None, [], {}, {"openapi": "2.0"}, {"swagger": "2.0"}])
def test_another_document_is_refused(document: Any) -> None:
    with pytest.raises(InvalidTool, match="is not an OpenAPI document of version 3"):
        operations_of(document)


@pytest.mark.parametrize("reference", ["#/components/schemas/None", "other.json#/a", "#/openapi/x"])
def test_a_dangling_reference_is_named(reference: str) -> None:
    with pytest.raises(InvalidTool, match="leads to nothing in the document"):
        whole({"items": {"$ref": reference}}, DOCUMENT)


def test_parameters_without_a_valid_schema_are_refused() -> None:
    with pytest.raises(InvalidTool, match="list_orders: its parameters are not a JSON schema"):
        checker("list_orders", {"type": "nonsense"})
