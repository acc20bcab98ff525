"""Base classes and fields of request and response bodies: JSON as its standard has it, without NaN and Infinity, which
Python reads too, and names in camelCase."""

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
    """The body of a request, with its names in camelCase."""

    model_config = ConfigDict(alias_generator=to_camel, allow_inf_nan=False)


class CamelRecord(CamelBody):
    """What a route answers, with its names in camelCase; it is made by our names, or of a value that has them."""

    model_config = ConfigDict(validate_by_name=True, from_attributes=True, serialize_by_alias=True)
