"""JSON as the log and Postgres can both hold it."""

import json
import re
from typing import Any

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def storable_json(value: Any) -> str:
    """The value as JSON text. Raises ValueError, which says what in it is no JSON or cannot be stored."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it holds a lone surrogate; send valid Unicode") from None
    except RecursionError:
        raise ValueError("it is nested too deeply, or contains itself") from None
    except (TypeError, ValueError) as error:
        raise ValueError(str(error)) from None
    if _NUL.search(text):
        raise ValueError("it holds a NUL character, which Postgres cannot store; remove it")
    return text
