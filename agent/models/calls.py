"""Remote calls: breaker, time limit, retries (1, 2, 4 s with jitter), one error tree."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import urlsplit

import openai
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from turnlog.agent import metrics
from turnlog.agent.models.breaker import Breaker
from turnlog.agent.models.errors import (
    BreakerOpen,
    ModelError,
    ModelModerated,
    ModelRefused,
    ModelTimedOut,
    ModelUnavailable,
    redact,
)

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]
FIRST_PAUSE_S = 1.0  # before the first retry; each later one waits twice as long
MAX_RETRY_AFTER_S = 30.0  # for a longer Retry-After the error is raised; it says when to retry

_FIXES = {
    401: "the API key is missing or wrong; set API_KEY",
    403: "the API key may not use this model; check the account behind API_KEY",
    404: "no such model or path; check the model's name and that API_BASE_URL ends where the API begins (…/v1)",
    402: "the account has no credit left",
}

_MODERATED = ("content_filter", "content_policy_violation")  # Azure's code, OpenAI's


def shown_url(url: str) -> str:
    """The address without user, password and query, for messages and logs."""
    parts = urlsplit(url)
    host = parts.hostname or "?"
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"


class Caller:
    """Runs attempts against one server. service: names its breaker in the metrics.

    sleep, clock (in the breaker) and jitter are injectable for tests.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str | None,
        timeout_s: float = 30.0,
        retries: int = 3,
        breaker: Breaker | None = None,
        service: str = "llm",
        sleep: Sleep = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.url, self._secret, self.timeout_s = shown_url(url), secret, timeout_s
        self.breaker = breaker or Breaker(f"The model server at {self.url}")
        metrics.watch(service, self.breaker)
        self._retries, self._sleep, self._jitter = retries, sleep, jitter

    async def call(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of the first successful attempt; raises the mapped error of the last one."""
        return await self._retrying()(self._settled, attempt)

    async def open(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """As `call`, but the caller reports the success, because a stream has succeeded only when it has ended."""
        return await self._retrying()(self._attempt, attempt)

    def _retrying(self) -> AsyncRetrying:
        return AsyncRetrying(
            sleep=self._sleep,
            stop=stop_after_attempt(self._retries + 1),
            wait=self._wait,
            retry=retry_if_exception(self._is_worth_another_try),
            reraise=True,
        )

    def _wait(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = error.retry_after_s if isinstance(error, ModelError) else None
        backoff = FIRST_PAUSE_S * float(2 ** (state.attempt_number - 1))
        return max(asked or 0.0, backoff) + self._jitter() * 0.25 * backoff

    def _is_worth_another_try(self, error: BaseException) -> bool:
        """Whether to retry. Not once the breaker is open: the last call's error is raised at once."""
        if not isinstance(error, ModelUnavailable) or self.breaker.state == "open":
            return False
        return (error.retry_after_s or 0.0) <= MAX_RETRY_AFTER_S and not isinstance(error, BreakerOpen)

    async def _settled(self, attempt: Callable[[], Awaitable[T]]) -> T:
        result = await self._attempt(attempt)
        self.breaker.succeeded()
        return result

    async def _attempt(self, attempt: Callable[[], Awaitable[T]]) -> T:
        self.breaker.admit()
        try:
            async with asyncio.timeout(self.timeout_s):
                return await attempt()
        except Exception as error:
            # `from None`: the library's error may contain the API key, echoed by the server.
            raise self.settle(error) from None
        except BaseException:
            self.breaker.released()
            raise

    def settle(self, error: Exception) -> ModelError:
        """Reports an admitted call's failure to the breaker and returns the error to raise."""
        mapped = self._mapped(error)
        if isinstance(mapped, ModelRefused):
            self.breaker.succeeded()  # the server answered: it works, the request is wrong
        elif getattr(error, "status_code", None) == 429:
            self.breaker.released()
        else:
            self.breaker.failed()
        return mapped

    def _mapped(self, error: Exception) -> ModelError:
        if isinstance(error, ModelError):
            return error
        if isinstance(error, TimeoutError | openai.APITimeoutError):
            return ModelTimedOut(
                f"The model at {self.url} said nothing for {self.timeout_s:g} s. It may be overloaded; try again later."
            )
        if isinstance(error, openai.APIStatusError):
            return self._mapped_status(error)
        if isinstance(error, openai.APIConnectionError):
            return ModelUnavailable(
                f"The connection to the model at {self.url} failed or broke off. Is it running, is API_BASE_URL right?"
            )
        detail = redact(f"{type(error).__name__}: {error}", self._secret)[:300]
        return ModelUnavailable(f"The answer of {self.url} broke off or is no OpenAI format ({detail}).")

    def _mapped_status(self, error: openai.APIStatusError) -> ModelError:
        status = error.status_code
        said = redact(_message(error), self._secret)[:300]
        text = f"The model at {self.url} answered {status}: {said}"
        if status == 429 and error.code != "insufficient_quota":
            return ModelUnavailable(f"{text} (rate limited)", retry_after_s=_retry_after(error))
        if status >= 500 or status == 408:
            return ModelUnavailable(text, retry_after_s=_retry_after(error))
        if error.code in _MODERATED:
            return ModelModerated(f"{text} (its moderation refused the request)", status)
        fix = _FIXES.get(402 if status == 429 else status, "the request is not accepted")
        return ModelRefused(f"{text} ({fix})", status)


def _message(error: openai.APIStatusError) -> str:
    body = error.body
    if isinstance(body, dict):
        return str(body.get("message") or body)
    return str(body or error.message)


def _retry_after(error: openai.APIStatusError) -> float | None:
    """Seconds of the Retry-After header; its date form, rare with model servers, is ignored."""
    try:
        return max(0.0, float(error.response.headers.get("retry-after", "")))
    except ValueError:
        return None
