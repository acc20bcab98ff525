"""Errors in OpenAI's form, {"error": {"message", "type", "param", "code"}}, instead of problem details."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from psycopg import OperationalError
from psycopg.errors import QueryCanceled
from psycopg_pool import PoolTimeout
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from turnlog.agent.answering.asking import NoAnswer
from turnlog.agent.answering.fallback import fallback_of
from turnlog.agent.models.errors import ModelError, ModelRefused
from turnlog.consumers.api.idempotency import Repeated
from turnlog.consumers.api.problems import language_of, new_id, not_json, problem, problem_of, too_slow, unexpected
from turnlog.events.errors import TurnlogError

_TYPES = {401: "authentication_error", 402: "insufficient_quota", 403: "permission_error", 429: "rate_limit_error"}
CODES = {"unauthenticated": "invalid_api_key", "quota-exceeded": "insufficient_quota"}
CODES |= {"model-quota-exceeded": "insufficient_quota", "model-rate-limited": "rate_limit_exceeded"}
_OWN_FAULT = (400, 404, 413, 422)  # statuses of a model server that may be caused by the caller's request


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    """The body of every error under /v1."""

    error: ErrorDetail


DOCUMENTED: dict[int | str, dict[str, Any]] = {kind: {"model": ErrorBody} for kind in ("4XX", "5XX")}


class OpenAIRoute(APIRoute):
    """A route with errors in OpenAI's form and request ids in its responses."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answered(request: Request) -> Response:
            try:
                response = await handle(request)
            except Repeated:
                raise
            except RequestValidationError as error:
                response = refused(*_invalid(error))
            except Exception as error:  # last resort: the client gets an id, never a traceback
                response = response_of(error, request)
            response.headers["x-request-id"] = f"req_{new_id()}"
            return response

        return answered


def add_handler(app: FastAPI) -> None:
    """Adds a handler for unknown paths and methods under /v1. Called after problems.add_handlers, which handles other
    paths."""
    others: Any = app.exception_handlers[HTTPException]

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        answer: JSONResponse = await others(request, error)
        return for_path(request.url.path, answer)


def for_path(path: str, answer: JSONResponse) -> JSONResponse:
    """Returns problem details in OpenAI's form if the path belongs to its API."""
    return _in_form(answer) if path.startswith("/v1/") else answer


def _in_form(answer: JSONResponse, param: str | None = None, code: str | None = None) -> JSONResponse:
    """Returns problem details in OpenAI's form, with their headers; status 422 becomes 400."""
    said = json.loads(bytes(answer.body))
    response = refused(
        400 if answer.status_code == 422 else answer.status_code, said["detail"], param, code or said["code"]
    )
    for name in ("retry-after", "www-authenticate", "allow"):
        if name in answer.headers:
            response.headers[name] = answer.headers[name]
    return response


class Unusable(TurnlogError):
    """The request asks for something that this server cannot do. param: the field."""

    code = "unsupported_parameter"

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


def response_of(error: Exception, request: Request) -> JSONResponse:
    """Returns an error with the status and headers of problem details (400 instead of 422), or those of the model
    server.

    An error of a model, or of an agent that could not answer, begins with a message for people, in the language of the
    request.
    """
    if isinstance(error, ModelError | NoAnswer):
        said = fallback_of(error, language_of(request))
        own = isinstance(error, ModelRefused) and error.status in _OWN_FAULT
        status = error.status if own and isinstance(error, ModelRefused) and error.status else said.status
        wait = said.retry_after_s if said.should_retry and not own else None
        code = getattr(error, "cause", None) or error.code
        answer = problem(status, code, f"{said.message} ({error})", retry_after=wait)
    elif isinstance(error, TurnlogError):
        answer = problem_of(error)
    elif isinstance(error, HTTPException):
        answer = problem(error.status_code, getattr(error, "code", "invalid-request"), str(error.detail))
    elif isinstance(error, QueryCanceled):
        answer = too_slow()
    elif isinstance(error, OperationalError | PoolTimeout):
        answer = problem(503, "database-unavailable", "the database cannot be reached now")
    else:
        answer = unexpected(error, request.url.path)
    unknown = "model_not_found" if isinstance(error, ModelRefused) and answer.status_code == 404 else None
    return _in_form(answer, getattr(error, "param", None), unknown)


def refused(status: int, message: str, param: str | None, code: str) -> JSONResponse:
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    error = {"message": message, "type": kind, "param": param, "code": CODES.get(code, code).replace("-", "_")}
    return JSONResponse({"error": error}, status)


def error_body(error: Exception, request: Request) -> str:
    """Returns the error body as JSON, for an event in mid-stream."""
    return bytes(response_of(error, request).body).decode()


def _invalid(error: RequestValidationError) -> tuple[int, str, str | None, str]:
    """Returns the arguments of `refused` for a validation error. The caller's input is not repeated, because it may
    contain secrets."""
    if said := not_json(error):
        return 400, said, None, "invalid_request"
    first = error.errors()[0]
    param = ".".join(str(part) for part in first["loc"][1:]) or None
    return 400, f"{param or 'the body'}: {first['msg']}", param, "invalid_request"
