"""Errors as problem details (RFC 9457): `code` as in turnlog.events.errors, `id` for the server's log, `retryAfter`."""

import logging
import secrets
import traceback
from collections.abc import Mapping
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from psycopg import DataError, OperationalError
from psycopg.errors import QueryCanceled
from psycopg_pool import PoolTimeout
from pydantic import BaseModel, TypeAdapter
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.routing import Match

from turnlog.agent.answering.asking import NoAnswer
from turnlog.agent.answering.fallback import REFUSALS, Category, Locale, fallback_of, locale_of, why_zh
from turnlog.agent.models.errors import ModelError
from turnlog.consumers.api.idempotency import Repeated
from turnlog.consumers.api.paths import route_template
from turnlog.events.errors import TurnlogError

logger = logging.getLogger("turnlog.api")
MEDIA_TYPE = "application/problem+json"
METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
RETRY_S = 5
reader_language: ContextVar[Locale] = ContextVar(
    "reader_language", default="en"
)  # the language of the request's Accept-Language

# The status of every error code that a request can cause. Any other code is an internal error: 500.
STATUS: Mapping[str, int] = {
    **REFUSALS,
    "wrong-origin": 403,
    "body-too-slow": 408,
    "quota-exceeded": 402,
    "job-under-way": 409,
    "rebuild-running": 409,
    "rebuild-stopped": 409,
    "write-under-way": 409,
    "wrong-expected-version": 409,
    "body-too-large": 413,
    "wrong-host": 421,
    "bad-form": 422,
    "bad-format": 422,
    "invalid-request": 422,
    "invalid-value": 422,
    "rate-limited": 429,
    "refused": 429,
    "too-many-at-once": 429,
    "too-many-streams": 429,
    "too-many-waiting": 429,
    "headers-too-large": 431,
    "archive-damaged": 500,
    "archive-missing": 500,
    "missing-extra": 501,
    "error": 500,
    "internal-error": 500,
    "model-bad-answer": 502,
    "model-empty-answer": 502,
    "model-malformed": 502,
    "model-moderated": 502,
    "model-quota-exceeded": 502,
    "no-answer": 502,
    "database-unavailable": 503,
    "gap-in-log": 503,
    "issuer-unavailable": 503,
    "key-unavailable": 503,
    "log-closed": 503,
    "log-full": 503,
    "log-unavailable": 503,
    "model-breaker-open": 503,
    "model-error": 503,
    "model-rate-limited": 503,
    "model-unavailable": 503,
    "not-counted-in-time": 503,
    "not-now": 503,
    "not-projected-in-time": 503,
    "other-log": 503,
    "rebuild-needed": 503,
    "stopping": 503,
    "stream-drift": 503,
    "switch-refused": 503,
    "too-slow": 503,
    "vector-mismatch": 503,
    "model-timed-out": 504,
}


class Problem(BaseModel):
    """The body of every error. title: the reason in Chinese if Accept-Language asks for it, otherwise the status' name.
    detail: the exact reason, in English; for preferences and running answers also in Chinese. retryAfter: in seconds.
    errors: the fields of the request that are wrong. candidates: `id` and `content` of the memories that the given
    words may mean.

    message, category, suggestions, shouldRetry, action: for people, if there is no answer; under /ai-agent in the
    language of the request's `locale`, elsewhere of its Accept-Language.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    id: str
    retryAfter: int = 0
    errors: list[dict[str, Any]] = []
    candidates: list[dict[str, str]] | None = None
    message: str | None = None
    category: Category | None = None
    suggestions: list[str] | None = None
    shouldRetry: bool | None = None
    action: str | None = None


class Stopping(TurnlogError):
    """The server is stopping; another process serves the request, or this one after its restart."""

    code = "stopping"

    def __init__(self, detail: str, detail_zh: str | None = None) -> None:
        super().__init__(detail)
        self.detail_zh = detail_zh


class Refused(HTTPException):
    """A refusal of a request, by a middleware or a route, with its status and code."""

    def __init__(self, status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, detail, headers)
        self.code = code


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    retry_after: float | None = None,
    headers: Mapping[str, str] | None = None,
    cause: str | None = None,
    **more: Any,
) -> JSONResponse:
    """Returns a response with a new id. A 503 without retry_after may be repeated after RETRY_S. cause: a code that
    gives the reason more precisely than `code`."""
    title = why_zh(cause or code) if reader_language.get() == "zh" else HTTPStatus(status).phrase
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    body |= {"code": code, "id": new_id(), **more}
    sent = dict(headers or {})
    if retry_after is None and status == HTTPStatus.SERVICE_UNAVAILABLE:
        retry_after = RETRY_S
    if retry_after is not None:
        body["retryAfter"] = max(1, round(retry_after))
        sent["Retry-After"] = str(body["retryAfter"])
    if status == HTTPStatus.UNAUTHORIZED:
        sent["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body, status, sent, MEDIA_TYPE)


def unexpected(error: Exception, path: str) -> JSONResponse:
    """Returns a 500 with an id. The server's log has the type and place of the error under this id. Its text, which may
    contain what people said, is logged only at debug level."""
    reference = new_id()
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    at = traceback.extract_tb(error.__traceback__)[-1]
    logger.error("internal error %s in %s: %s at %s:%s", reference, path, type(error).__name__, at.filename, at.lineno)
    logger.debug("internal error %s", reference, exc_info=error)
    detail = "something went wrong; the server's log has the cause under this id"
    return problem(500, "internal-error", detail, id=reference)


def new_id() -> str:
    return secrets.token_hex(8)


def problem_of(error: TurnlogError, locale: Locale | None = None) -> JSONResponse:
    """Returns the error as a response. Errors may have `retry_after_s`; if a server is unavailable it is RETRY_S.

    locale: the language of the message for people. Errors that explain a missing answer have such a message; if a
    locale is given, every error has one.
    """
    status, is_chinese = _status(error), (locale or reader_language.get()) == "zh"
    detail = (error.detail_zh if is_chinese else None) or str(error)
    if locale is not None or isinstance(error, NoAnswer | ModelError):
        said = fallback_of(error, locale or "en")
        shown: dict[str, Any] = {"message": said.message, "category": said.category, "action": said.action}
        again = said.should_retry and (status >= 500 or status == HTTPStatus.TOO_MANY_REQUESTS)
        shown |= {"suggestions": list(said.suggestions), "shouldRetry": again}
        retry = said.retry_after_s if again or status == HTTPStatus.PAYMENT_REQUIRED else None
        cause = getattr(error, "cause", None)
        return problem(status, error.code, detail, retry_after=retry, cause=cause, **shown)
    more: dict[str, Any] = {"candidates": list(named)} if (named := getattr(error, "candidates", ())) else {}
    return problem(status, error.code, detail, retry_after=retry_after(error), **more)


def retry_after(error: TurnlogError) -> float | None:
    """Returns the seconds after which to ask again; None if asking again does not help."""
    wait: float | None = getattr(error, "retry_after_s", None)
    return RETRY_S if wait is None and _status(error) == HTTPStatus.SERVICE_UNAVAILABLE else wait


def _status(error: TurnlogError) -> int:
    is_no_answer = isinstance(error, NoAnswer | ModelError)
    return fallback_of(error, "en").status if is_no_answer else STATUS.get(error.code, 500)


def language_of(connection: HTTPConnection) -> Locale:
    """Returns the language of messages for people: the `locale` of the request's body, or the first of
    Accept-Language.
    """
    asked: Locale | None = getattr(connection.state, "locale", None)
    return asked or locale_of(connection.headers.get("accept-language"))


def too_slow() -> JSONResponse:
    return problem(503, "too-slow", "the database took too long for this request; ask for less at a time")


def add_handlers(app: FastAPI) -> None:
    """Adds handlers that turn the expected errors of all routes into Problems; RequestLimits handles all others."""

    @app.exception_handler(TurnlogError)
    async def expected(request: Request, error: TurnlogError) -> JSONResponse:
        is_no_answer = isinstance(error, NoAnswer | ModelError)
        return problem_of(error, language_of(request) if is_no_answer else getattr(request.state, "locale", None))

    @app.exception_handler(Repeated)
    async def repeated(_: Request, error: Repeated) -> Response:
        return error.response

    @app.exception_handler(OperationalError)
    @app.exception_handler(PoolTimeout)
    async def database_away(_: Request, error: Exception) -> JSONResponse:
        logger.warning("Postgres cannot be reached: %s", error)
        return problem(503, "database-unavailable", "the database cannot be reached now")

    @app.exception_handler(QueryCanceled)
    async def slow(request: Request, _: QueryCanceled) -> JSONResponse:
        logger.warning("a statement of %s %s took too long", request.method, route_template(request.scope) or "")
        return too_slow()

    @app.exception_handler(DataError)
    async def not_storable(_: Request, error: DataError) -> JSONResponse:
        """Refuses values that Postgres cannot take, such as a NUL in a text to search for."""
        logger.warning("Postgres cannot take a value: %s", type(error).__name__)
        return problem(
            422, "invalid-value", "the database cannot take a value of the request, such as a text with a NUL"
        )

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        """Returns a problem that names the wrong fields, without the caller's input, which may contain secrets."""
        errors = [
            {"where": list(wrong["loc"]), "message": _why(wrong, request.scope["route"])} for wrong in error.errors()
        ]
        first = not_json(error) or f"{'.'.join(map(str, errors[0]['where']))}: {errors[0]['message']}"
        is_json = "json" in request.headers.get("content-type", "")
        hint = "" if is_json or errors[0]["where"] != ["body"] else "; send it as `Content-Type: application/json`"
        return problem(422, "invalid-request", f"the request cannot be used: {first}{hint}", errors=errors)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error, Refused):
            return problem(error.status_code, error.code, str(error.detail), headers=error.headers)
        code = HTTPStatus(error.status_code).name.lower().replace("_", "-")
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers = _allowed(request)
            detail = f"this path accepts {headers['Allow']}, not {request.method}; /docs shows every route"
            return problem(error.status_code, code, detail, headers=headers)
        is_unknown = error.status_code == HTTPStatus.NOT_FOUND
        detail = "no route has this path; /docs shows every route" if is_unknown else str(error.detail)
        return problem(error.status_code, code, detail, headers=error.headers)


def _why(wrong: Mapping[str, Any], route: Any) -> str:
    """Returns what is wrong with a field of a request; for an unknown field of a body, the form of the body too."""
    if wrong["type"] not in ("extra_forbidden", "unexpected_keyword_argument"):
        return str(wrong["msg"])
    if len(wrong["loc"]) > 2:
        return "there is no such field"
    fields = TypeAdapter(route.body_field.field_info.annotation).json_schema()["properties"]
    shapes = {"object": "{…}", "array": "[…]"}
    known = (f'"{name}": {shapes.get(schema.get("type"), "…")}' for name, schema in fields.items())
    return f"there is no such field; a body has {{{', '.join(known)}}}"


def not_json(error: RequestValidationError) -> str | None:
    """Returns a sentence with the place from which the body is not JSON; None if it is JSON."""
    first = error.errors()[0]
    return f"the body is not JSON from character {first['loc'][1]} on" if first["type"] == "json_invalid" else None


def _allowed(request: Request) -> dict[str, str]:
    """Returns the Allow header with the methods of all routes for this path (RFC 9110, 10.2.1); the router would only
    name those of the first route."""
    asked = [dict(request.scope) | {"method": method} for method in METHODS]
    routes = request.app.routes
    taken = [scope["method"] for scope in asked if any(route.matches(scope)[0] is Match.FULL for route in routes)]
    return {"Allow": ", ".join(taken)}
