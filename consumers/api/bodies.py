"""What the bodies of requests share: JSON as its standard has it, without NaN and Infinity, which Python reads too."""

from pydantic import ConfigDict, JsonValue

FINITE = ConfigDict(allow_inf_nan=False)
JsonObject = dict[str, JsonValue]
