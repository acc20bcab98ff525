"""Runs an HTTP service with an OpenAPI document on a real server in a thread: the warehouse of a bicycle shop."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Header, HTTPException, Query, Request
from pydantic import BaseModel, Field
from starlette.types import ASGIApp

TOKEN = "warehouse-secret"


class Move(BaseModel):
    """Goods that go to another place."""

    part: str
    count: Annotated[int, Field(ge=1, le=50)]
    to: str | None = None


class Warehouse:
    """The state of the service. calls: the requests, with the relevant headers. failures: statuses for the next
    responses."""

    def __init__(self) -> None:
        self.calls = list[dict[str, Any]]()
        self.failures = list[int]()
        self.app = FastAPI(title="Warehouse", servers=None)
        self._routes()

    def _routes(self) -> None:
        Key = Annotated[str | None, Header(alias="Idempotency-Key")]
        Token = Annotated[str | None, Header(alias="Authorization")]

        def note(operation: str, key: str | None, token: str | None, **about: Any) -> None:
            self.calls.append({"operation": operation, "key": key, **about})
            if token != f"Bearer {TOKEN}":
                raise HTTPException(401, "no token")
            if self.failures:
                raise HTTPException(self.failures.pop(0), "the warehouse is busy")

        @self.app.get("/shelves/{shelf}/parts", operation_id="listParts", summary="Lists the parts on a shelf.")
        def list_parts(
            shelf: str,
            kind: Annotated[list[str], Query(default_factory=list)],
            request: Request,
            most: int = 20,
            key: Key = None,
            token: Token = None,
        ) -> Any:
            told = {name: value for name, value in request.headers.items() if name.startswith("x-turnlog")}
            note("listParts", key, token, shelf=shelf, kind=kind, most=most, told=told)
            if shelf == "nowhere":
                raise HTTPException(404, "there is no shelf nowhere")
            return {"shelf": shelf, "parts": [{"name": f"part {number}"} for number in range(most)]}

        @self.app.post("/moves", operation_id="moveParts", status_code=201)
        def move_parts(move: Move, key: Key = None, token: Token = None) -> Any:
            """Moves parts to another shelf."""
            note("moveParts", key, token, move=move.model_dump())
            return {"moved": move.count}

        @self.app.get("/elsewhere", operation_id="goElsewhere")
        def go_elsewhere(token: Token = None) -> Any:
            from starlette.responses import RedirectResponse

            return RedirectResponse("/shelves/a/parts")


@contextmanager
def served(app: ASGIApp) -> Iterator[str]:
    """Yields the URL of a server that runs while the block runs."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:  # clients that connect before the server has started wait in the socket's queue
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
