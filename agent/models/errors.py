"""What can go wrong with a model, in kinds that a caller treats differently.

ModelUnavailable: try later (the reactor waits, the answer path falls back). ModelTimedOut: the same, it was
slow. BreakerOpen: the same, no call was made.
ModelRefused: trying again changes nothing; a person must fix the key, the model name or the request.
"""

import re

from turnlog.events.errors import TurnlogError


class ModelError(TurnlogError):
    """Base of everything a model call raises. retry_after_s: what the server asked for, or the breaker's wait."""

    code = "model-error"

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ModelUnavailable(ModelError):
    """The model cannot be reached, is overloaded, or answered with something that is not the OpenAI format."""

    code = "model-unavailable"


class EmptyAnswer(ModelUnavailable):
    """The model answered with nothing, as one does that spends its tokens on reasoning; the call was paid for."""

    code = "model-empty-answer"

    def __init__(self, message: str, usage: object) -> None:
        """usage: a protocol.Usage, what the call took."""
        super().__init__(message)
        self.usage = usage


class ModelTimedOut(ModelUnavailable):
    """The model did not answer in time, or its stream stalled."""

    code = "model-timed-out"


class BreakerOpen(ModelUnavailable):
    """The model failed too often in a row and is left alone for a while; no call was made."""

    code = "model-breaker-open"


class ModelRefused(ModelError):
    """The server said no (4xx): a wrong key, an unknown model, an empty quota or an invalid request."""

    code = "model-refused"


_KEY_LIKE = re.compile(r"\b(sk|pk|key|gsk|xai)-[\w*.-]{4,}|(?i:bearer)\s+\S+")


def redact(text: str, *secrets: str | None) -> str:
    """Text without the given secrets and without anything shaped like an API key (servers like to echo it)."""
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return _KEY_LIKE.sub("***", text)
