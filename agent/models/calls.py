"""Remote calls: breaker, time limit, retries (1, 2, 4 s with jitter), one error tree."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import openai
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from turnlog.agent import metrics
from turnlog.agent.models.errors import (
    BreakerOpen,
    ModelError,
    ModelModerated,
    ModelRefused,
    ModelTimedOut,
    ModelUnavailable,
    redact,
)

State = Literal["closed", "open", "half-open"]


class Breaker:
    """A circuit breaker of E 5: after 5 failures in a row no call for 30 s, then 2 trial calls must succeed.

    One per server. Every `admit` is followed by exactly one of `succeeded`, `failed` or `released`. Own code because no
    maintained asyncio library has a trial count above one and an injectable clock: purgatory closes after a single
    success, pybreaker's async side needs tornado, aiobreaker and aiocircuitbreaker had no release since 2021-22.
    """

    def __init__(
        self,
        name: str,
        failures: int = 5,
        open_s: float = 30.0,
        trials: int = 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._limit, self._open_s, self._trials, self._clock = name, failures, open_s, trials, clock
        self._failures = 0
        self._opened_at: float | None = None
        self._running = 0
        self._passed = 0

    @property
    def state(self) -> State:
        if self._opened_at is None:
            return "closed"
        return "open" if self._clock() < self._opened_at + self._open_s else "half-open"

    def admit(self) -> None:
        """Raises BreakerOpen while open, and while the trial calls of half-open are under way."""
        state = self.state
        if state == "open" or (state == "half-open" and self._running >= self._trials):
            wait = max(0.0, (self._opened_at or 0.0) + self._open_s - self._clock())
            raise BreakerOpen(
                f"{self._name} failed {self._limit} times in a row and is left alone for {self._open_s:.0f} s; "
                "turnlog tries again by itself. Check that the server is up.",
                retry_after_s=wait or 1.0,
            )
        self._running += 1

    def succeeded(self) -> None:
        self.released()
        self._failures = 0
        if self.state == "half-open":
            self._passed += 1
            if self._passed >= self._trials:
                self._opened_at = None

    def failed(self) -> None:
        self.released()
        self._failures += 1
        # In half-open one failure opens it again.
        if self.state == "half-open" or (self.state == "closed" and self._failures >= self._limit):
            self._opened_at, self._passed = self._clock(), 0

    def reset(self) -> None:
        """Forgets all failures; calls under way still count."""
        self._opened_at, self._failures, self._passed = None, 0, 0

    def released(self) -> None:
        """For a call whose end does not show the server's health (cancelled, rate limited)."""
        self._running = max(0, self._running - 1)


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
