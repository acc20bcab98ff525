"""One plain line for a person out of an exception."""

from pydantic import ValidationError

# What reading a field of foreign JSON raises when the field is missing or of another type.
MALFORMED = (ValueError, TypeError, AttributeError, KeyError)


def reason_of(error: Exception) -> str:
    """A pydantic error shortened to its first complaint and where it is; other messages as they are."""
    if isinstance(error, KeyError):
        return f"the field {error} is missing"
    if isinstance(error, TypeError | AttributeError):
        return f"a field is of the wrong type: {error}"
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}, got {str(first['input'])[:40]!r}"
