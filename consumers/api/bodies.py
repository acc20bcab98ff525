"""What the bodies of requests share: JSON as its standard has it, without NaN and Infinity, which Python reads too."""

from typing import Annotated

from pydantic import ConfigDict, Field, JsonValue

FINITE = ConfigDict(allow_inf_nan=False)
JsonObject = dict[str, JsonValue]
Tokens = Annotated[int, Field(ge=0, le=2**31 - 1)]
