"""Base classes and fields of request and response bodies: standard JSON, without the NaN and Infinity that Python
accepts, and names in camelCase."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel

FINITE = ConfigDict(allow_inf_nan=False)
JsonObject = dict[str, JsonValue]
Tokens = Annotated[int, Field(ge=0, le=2**31 - 1)]


class RequestBody(BaseModel):
    """The body of a request to /api. Unknown fields are refused; dialects, whose clients were written for other
    servers, may ignore them."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class CamelBody(BaseModel):
    """A request body with camelCase names."""

    model_config = ConfigDict(alias_generator=to_camel, allow_inf_nan=False)


class CamelRecord(CamelBody):
    """A response body with camelCase names. It is created with snake_case names, or from an object with such
    attributes."""

    model_config = ConfigDict(validate_by_name=True, from_attributes=True, serialize_by_alias=True)
