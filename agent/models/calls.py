"""Makes remote calls with a time limit, a circuit breaker and retries (after 1, 2, 4 s with jitter), and converts their
errors to ModelError."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import openai
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, stop_before_delay

from turnlog.agent import metrics
from turnlog.agent.models.errors import (
    BreakerOpen,
    ModelError,
    ModelMalformed,
    ModelModerated,
    ModelQuotaExceeded,
    ModelRateLimited,
    ModelRefused,
    ModelTimedOut,
    ModelUnavailable,
    NotAnAPI,
    redact,
)

State = Literal["closed", "open", "half-open"]
MOST_OF_ONE = 2  # maximum number of one asker's successive failures that count for the common circuit
FORGOTTEN_S = 300.0


@dataclass(slots=True)
class _Circuit:
    """The state of one circuit. failures: number of successive failures. passed: number of trial calls that
    succeeded."""

    failures: int = 0
    failed_at: float = 0.0
    opened_at: float | None = None
    passed: int = 0


class Breaker:
    """A circuit breaker: after 5 failures in a row it stops calls for 30 s, then 2 trial calls must succeed.

    Each ResilientClient has its own breaker unless it is given a shared one. Every `admit` must be followed by exactly
    one call of `succeeded`, `failed` or `released`. asker: who the call is for; None for background work. The requests
    of one asker may make the server fail, so each asker has a separate circuit, and no more than 2 successive failures
    of one asker count for the common circuit. Failures are forgotten after 5 minutes.

    No library is used, because no maintained asyncio library has a trial count above one and an injectable clock:
    purgatory closes after a single success, pybreaker's async side needs tornado, aiobreaker and aiocircuitbreaker had
    no release since 2021-22.
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
        # By asker; None is the common circuit. Only circuits with failures are kept.
        self._circuits: dict[str | None, _Circuit] = {}
        self._running = 0
        self.on_change: Callable[[bool], None] | None = None  # called when the common circuit opens (True) or closes
        # Called with the asker after a failure (True), and after a success while failures are counted (False).
        self.on_call: Callable[[bool, str | None], None] | None = None

    @property
    def state(self) -> State:
        """Returns the worst state of all circuits."""
        states = {self._state(whose) for whose in self._circuits}
        return "open" if "open" in states else "half-open" if "half-open" in states else "closed"

    def _state(self, whose: str | None) -> State:
        circuit = self._circuits.get(whose)
        if circuit is None or circuit.opened_at is None or self._clock() >= circuit.failed_at + FORGOTTEN_S:
            return "closed"
        return "open" if self._clock() < circuit.opened_at + self._open_s else "half-open"

    def admit(self, asker: str | None = None) -> None:
        """Raises BreakerOpen while the circuit is open, and while the trial calls of a half-open circuit are
        running."""
        for whose in {None, asker}:
            state = self._state(whose)
            # For the circuit of one asker, running calls do not count as trials, because calls of other askers are not
            # held back.
            if state == "open" or (state == "half-open" and whose is None and self._running >= self._trials):
                wait = max(0.0, (self._circuits[whose].opened_at or 0.0) + self._open_s - self._clock())
                raise BreakerOpen(
                    f"{self._name} failed {self._limit} times in a row and is not called for {self._open_s:.0f} s; "
                    "turnlog then tries again by itself. Check that the server is up.",
                    retry_after_s=wait or 1.0,
                )
        self._running += 1

    def succeeded(self, asker: str | None = None) -> None:
        self.released()
        if self.on_call is not None and self._circuits.keys() & {None, asker}:
            self.on_call(False, asker)
        for whose in {None, asker}:
            state, circuit = self._state(whose), self._circuits.get(whose)
            if circuit is not None and state == "half-open":
                circuit.passed += 1
            if circuit is not None and (state == "closed" or circuit.passed >= self._trials):
                del self._circuits[whose]
                if whose is None and circuit.opened_at is not None:
                    self._tell(False)

    def failed(self, asker: str | None = None) -> None:
        self.released()
        if self.on_call is not None:
            self.on_call(True, asker)
        self._note_failure(asker)

    def _note_failure(self, asker: str | None) -> None:
        now = self._clock()
        self._circuits = {
            whose: circuit for whose, circuit in self._circuits.items() if now < circuit.failed_at + FORGOTTEN_S
        }
        own = self._count(asker) if asker is not None else 0
        # A failed trial opens a half-open circuit again, unless its asker is held back anyway.
        if own <= MOST_OF_ONE or (own < self._limit and self._state(None) == "half-open"):
            self._count(None)

    def _count(self, whose: str | None) -> int:
        """Counts a failure and returns the circuit's failures."""
        state, circuit = self._state(whose), self._circuits.setdefault(whose, _Circuit())
        circuit.failures, circuit.failed_at = circuit.failures + 1, self._clock()
        if circuit.failures >= self._limit and state != "open":
            circuit.opened_at, circuit.passed = circuit.failed_at, 0
            if whose is None:
                self._tell(True)
        return circuit.failures

    def reset(self) -> None:
        """Forgets all failures; running calls still count as running."""
        self._circuits = {}

    @property
    def failures(self) -> int:
        """Returns the number of successive failures of the common circuit."""
        return self._circuits[None].failures if None in self._circuits else 0

    @property
    def open_for_s(self) -> float | None:
        """Returns the seconds since the common circuit opened; None if it is closed or half-open."""
        opened_at = self._circuits[None].opened_at if self._state(None) == "open" else None
        return None if opened_at is None else self._clock() - opened_at

    def follow(self, open_for_s: float | None) -> None:
        """Takes over the state of the common circuit from another process. open_for_s: None if it closed there."""
        if open_for_s is None:
            self._circuits.pop(None, None)
        elif self._state(None) != "open":
            opened_at = self._clock() - open_for_s
            self._circuits[None] = _Circuit(self._limit, opened_at, opened_at)

    def follow_call(self, has_failed: bool, asker: str | None) -> None:
        """Counts the result of another process's call; a success does not count as a trial of a half-open circuit."""
        if has_failed:
            self._note_failure(asker)
        else:
            for whose in {None, asker}:
                if self._state(whose) == "closed":
                    self._circuits.pop(whose, None)

    def _tell(self, is_open: bool) -> None:
        if self.on_change is not None:
            self.on_change(is_open)

    def released(self) -> None:
        """Ends a call whose result says nothing about the server's health (cancelled, rate limited)."""
        self._running = max(0, self._running - 1)


T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]
FIRST_PAUSE_S = 1.0  # pause before the first retry; each later pause is twice as long

_FIXES = {
    401: "the API key is missing or wrong; set API_KEY",
    403: "the API key may not use this model; check the account behind API_KEY",
    404: "no such model or path; check the model's name and that API_BASE_URL ends where the API begins (…/v1)",
    402: "the account has no credit left",
    501: "the server does not support this",
}

_MODERATED = ("content_filter", "content_policy_violation")  # codes of Azure and OpenAI
_STATUS_OF_CODE = {"insufficient_quota": 429, "rate_limit_exceeded": 429, **dict.fromkeys(_MODERATED, 400)}
_MALFORMED = (ValueError, TypeError, LookupError, AttributeError)  # raised if a field is missing or has another type


def shown_url(url: str) -> str:
    """Returns the URL without user, password and query, for messages and logs."""
    parts = urlsplit(url)
    host = parts.hostname or "?"
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"


class ResilientClient:
    """Calls one server with retries. service: the name of its breaker in the metrics.

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

    async def call(
        self, attempt: Callable[[], Awaitable[T]], asker: str | None = None, within_s: float | None = None
    ) -> T:
        """Returns the result of the first successful attempt; raises the mapped error of the last one.

        All attempts together may take timeout_s, or within_s if that is less. If the server asks to wait longer
        (Retry-After), the call fails without waiting. asker: who the call is for.
        """
        result = await self.open(attempt, asker, within_s)
        self.breaker.succeeded(asker)
        return result

    async def open(
        self, attempt: Callable[[], Awaitable[T]], asker: str | None = None, within_s: float | None = None
    ) -> T:
        """Works like `call`, but the caller must report the success, because a stream has succeeded only when it has
        ended."""
        limit_s = self.timeout_s if within_s is None else max(0.0, min(self.timeout_s, within_s))
        if limit_s <= 0:
            raise ModelTimedOut(f"There was no time left to ask the model at {self.url}.")
        self.breaker.admit(asker)
        try:
            async with asyncio.timeout(limit_s):
                return await self._retrying(limit_s)(self._attempt, attempt)
        except Exception as error:
            # `from None`: the library's error may contain the API key, echoed by the server.
            raise self.report_failure(error, asker, limit_s) from None
        except BaseException:
            self.breaker.released()
            raise

    def _retrying(self, limit_s: float) -> AsyncRetrying:
        return AsyncRetrying(
            sleep=self._sleep,
            stop=stop_after_attempt(self._retries + 1) | stop_before_delay(limit_s),
            wait=self._wait,
            retry=retry_if_exception(_is_worth_another_try),
            reraise=True,
        )

    def _wait(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = error.retry_after_s if isinstance(error, ModelError) else None
        backoff = FIRST_PAUSE_S * float(2 ** (state.attempt_number - 1))
        return max(asked or 0.0, backoff) + self._jitter() * 0.25 * backoff

    async def _attempt(self, attempt: Callable[[], Awaitable[T]]) -> T:
        try:
            return await attempt()
        except Exception as error:
            raise self._mapped(error, self.timeout_s) from None

    def report_failure(self, error: Exception, asker: str | None = None, limit_s: float | None = None) -> ModelError:
        """Reports the failure of an admitted call to the breaker; returns the error to raise. limit_s: the time limit
        of the call."""
        limit_s = self.timeout_s if limit_s is None else limit_s
        mapped = self._mapped(error, limit_s)
        # A call that began late may have had too little time to show that the server is silent.
        was_short = isinstance(mapped, ModelTimedOut) and limit_s < self.timeout_s / 2
        if isinstance(mapped, ModelRefused):
            self.breaker.succeeded(asker)  # the server answered, so it works; the request is wrong
        elif isinstance(mapped, ModelRateLimited) or was_short:
            self.breaker.released()
        else:
            self.breaker.failed(asker)
        return mapped

    def _mapped(self, error: Exception, limit_s: float) -> ModelError:
        if isinstance(error, ModelError):
            return error
        if isinstance(error.__cause__, ModelError):  # raised by a hook and wrapped by the client
            return error.__cause__
        if isinstance(error, TimeoutError | openai.APITimeoutError):
            return ModelTimedOut(
                f"The model at {self.url} said nothing for {limit_s:.3g} s. It may be overloaded; try again later."
            )
        if isinstance(error, openai.APIConnectionError):
            return ModelUnavailable(
                f"The connection to the model at {self.url} failed or broke off. "
                "Is the server running, and is API_BASE_URL right?"
            )
        if isinstance(error, openai.APIStatusError):
            return self._mapped_status(error, error.status_code, _retry_after(error))
        if isinstance(error, openai.APIError):  # an error that is an event of the stream has no status
            return self._mapped_status(error, _STATUS_OF_CODE.get(error.code or error.type or "", 500), None)
        detail = redact(f"{type(error).__name__}: {error}", self._secret)[:300]
        if isinstance(error, _MALFORMED):
            return ModelMalformed(f"The answer of {self.url} is not in the OpenAI format ({detail}).")
        return ModelUnavailable(f"The answer of {self.url} broke off ({detail}).")

    def _mapped_status(self, error: openai.APIError, status: int, retry_after_s: float | None) -> ModelError:
        said = redact(_message(error), self._secret)[:300]
        text = f"The model at {self.url} answered {status}: {said}"
        if status == 402 or error.code == "insufficient_quota":
            return ModelQuotaExceeded(f"{text} ({_FIXES[402]})", status)
        if status == 429:
            return ModelRateLimited(f"{text} (rate limited)", retry_after_s=retry_after_s)
        if (status >= 500 and status != 501) or status == 408:
            return ModelUnavailable(text, retry_after_s=retry_after_s)
        if error.code in _MODERATED:
            return ModelModerated(f"{text} (its moderation refused the request)", status)
        return ModelRefused(f"{text} ({_FIXES.get(status, 'the request is not accepted')})", status)


def _is_worth_another_try(error: BaseException) -> bool:
    return isinstance(error, ModelUnavailable) and not isinstance(error, NotAnAPI)


def _message(error: openai.APIError) -> str:
    body = error.body
    if isinstance(body, dict):
        return str(body.get("message") or body)
    return str(body or error.message)


def _retry_after(error: openai.APIStatusError) -> float | None:
    """Returns the seconds of the header Retry-After. Its date form is ignored, because model servers rarely use it."""
    try:
        return max(0.0, float(error.response.headers.get("retry-after", "")))
    except ValueError:
        return None
