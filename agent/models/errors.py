"""Defines the errors of model calls, grouped by how a caller treats them.

ModelUnavailable: retry later (a reactor waits, an answer falls back). ModelTimedOut: the same, after a timeout.
BreakerOpen: the same, but no call was made. ModelRefused: a retry does not help; the key, the model name or the request
must be corrected.
"""

import re

from turnlog.events.errors import TurnlogError


class ModelError(TurnlogError):
    """Base of all errors of a model call. retry_after_s: the time that the server asks to wait, or the remaining time
    of the breaker."""

    code = "model-error"

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ModelUnavailable(ModelError):
    """The model cannot be reached, is overloaded, or its answer broke off."""

    code = "model-unavailable"


class ModelRateLimited(ModelUnavailable):
    """The server has received too many requests (429)."""

    code = "model-rate-limited"


class ModelMalformed(ModelUnavailable):
    """The model's server answered with something that is not the OpenAI format."""

    code = "model-malformed"


class NotAnAPI(ModelMalformed):
    """The response is a web page, comes from another kind of server, or does not end; retries do not help."""

    code = "model-not-an-api"


class EmptyAnswer(ModelUnavailable):
    """The model returned no text, for instance after spending its tokens on reasoning; the call was paid for."""

    code = "model-empty-answer"

    def __init__(self, message: str, usage: object) -> None:
        """Keeps the call's usage, a protocol.Usage."""
        super().__init__(message)
        self.usage = usage


class ModelTimedOut(ModelUnavailable):
    """The model did not answer in time, or its stream stalled."""

    code = "model-timed-out"


class BreakerOpen(ModelUnavailable):
    """The model failed too often in a row and is not called for a while; no call was made."""

    code = "model-breaker-open"


class ModelRefused(ModelError):
    """The server refused the call (4xx): a wrong key, an unknown model, an empty quota or an invalid request."""

    code = "model-refused"

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ModelQuotaExceeded(ModelRefused):
    """The account at the model's provider has no credit left."""

    code = "model-quota-exceeded"


class NoEmbeddings(ModelRefused):
    """The server does not offer embeddings, or not those of this model."""

    code = "model-no-embeddings"


class ModelModerated(ModelRefused):
    """The server's moderation refused the request."""

    code = "model-moderated"


_KEY_LIKE = re.compile(r"\b(sk|pk|key|gsk|xai)-[\w*.-]{4,}|(?i:bearer)\s+\S+")


def redact(text: str, *secrets: str | None) -> str:
    """Masks the given secrets and everything that looks like an API key, because servers may echo them."""
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return _KEY_LIKE.sub("***", text)


class TextTooLong(ModelRefused):
    """A text to embed is longer than the model can read."""

    code = "text-too-long"
