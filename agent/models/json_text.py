"""JSON in what a model wrote. Pure."""

import json
import re
from typing import Any

_FENCE = re.compile(r"\A\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL | re.IGNORECASE)


def json_value(text: str) -> Any:
    """The value that is the whole text, or stands in a code fence around it; None when it is no JSON."""
    fenced = _FENCE.match(text)
    try:
        return json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):  # a model that goes round in circles writes brackets without end
        return None
