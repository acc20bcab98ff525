"""Finds JSON in a model's text. Pure."""

import json
import re
from typing import Any

_FENCE = re.compile(r"\A\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL | re.IGNORECASE)


def json_value(text: str) -> Any:
    """Returns the JSON value of the complete text, or of the content of its code fence; None if that is not JSON."""
    fenced = _FENCE.match(text)
    try:
        return json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):  # a model in a loop writes brackets without end
        return None
