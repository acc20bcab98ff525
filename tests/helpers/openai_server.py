"""A real local HTTP server that speaks the OpenAI API, for tests: the real client code runs against it.

    with OpenAIServer() as server:
        chat = OpenAIChat(server.url, server.key, "test-model", count_tokens=len)

Without a script it answers at once: chat with `echo: <last user message>`, embeddings with hashed bag-of-words
vectors (the same text gives the same vector, texts that share words are near). A test can script the next responses;
each line below is used for one request (of its kind), in order:

    server.reply("text")                            an answer, streamed word by word if streaming was asked for
    server.reply(tool_calls=[("recall_memory", {"query": "x"})])
    server.reply("text", finish="length")           an answer that was cut off: another finish_reason than "stop"
    server.reply("text", thinking="hm hm")          reasoning first; `hang` and `drop` take it, too
    server.reply("text", usage=False)               a server that sends no usage
    server.reply("text", delay=0.2, between=0.05)   seconds before the answer / between two chunks
    server.reply("text", until=event, after=3)      goes on as soon as the test sets this threading.Event; in a stream
                                                    after so many chunks, else before everything
    server.fail(429, times=3, headers={"Retry-After": "2"}, message="slow down", code="rate_limit")
    server.hang(after=None)                         never answers (or stalls after that many chunks) until closed
    server.drop(after=2)                            closes the connection after that many chunks (0: at once)
    server.page()                                   200 with a web page, as of a proxy
    server.malformed()                              200 with broken JSON (in a stream: after the first word)
    server.never_end()                              200 with 200 MB of JSON or, in a stream, of one line
    server.vectors([[...], ...])                    exactly these embeddings; vectors(until=event): later
    server.answer_embeddings(reply, times=4)    exactly this JSON in place of embeddings
    server.rank([{"index": 0, "relevance_score": 1.5}, ...])    exactly these results of /rerank, which otherwise are
                                                    the numbers of words that query and document share

`OpenAIServer(refuses=("json_schema",))` answers 400 (or `refusal=422`) to these types of `response_format`; such a
request uses no scripted line.

`fail`, `hang`, `drop`, `malformed`, `never_end` take `on="chat"` (default), `on="embeddings"` or `on="rerank"`.
`OpenAIServer(accept_key="k")` answers 401 to any other key. `server.requests` holds every request: path, body (parsed
JSON), headers, and `server.bodies(on)` only the bodies of one kind. `stop()` and `start()` close and reopen the same
port, as a crash would.
"""

import json
import socket
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self

from helpers.openai_bodies import Step, as_base64, bag_of_words, chunks_of, completion, last_user, ranked

Kind = Literal["chat", "embeddings", "rerank"]
PATHS: dict[str, Kind] = {"/v1/chat/completions": "chat", "/v1/embeddings": "embeddings", "/v1/rerank": "rerank"}


@dataclass(frozen=True)
class Request:
    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    port: int  # the port of the client


class OpenAIServer:
    def __init__(
        self, dimensions: int = 64, accept_key: str | None = None, refuses: Sequence[str] = (), refusal: int = 400
    ) -> None:
        self.dimensions, self.accept_key = dimensions, accept_key
        self.refuses, self.refusal = refuses, refusal
        self.key = accept_key or "test-key"
        self.requests: list[Request] = []
        self.released = threading.Event()
        self.arrived = threading.Condition()
        self.left = 0
        self._script: dict[Kind, deque[Step]] = {"chat": deque(), "embeddings": deque(), "rerank": deque()}
        self._port = 0
        self._place: socket.socket | None = None
        self._http: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def is_running(self) -> bool:
        return self._http is not None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        if self._place is not None:
            self._place.close()
            self._place = None

    def start(self) -> None:
        self.released.clear()
        if self._place is None:
            self._take_place()
        handler = type("Handler", (_Handler,), {"owner": self})
        self._http = _Server(("127.0.0.1", self._port), handler)
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def _take_place(self) -> None:
        """Binds a port without listening on it, so that the port stays reserved while the server is stopped."""
        self._place = socket.socket()
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._place.bind(("127.0.0.1", 0))
        self._port = self._place.getsockname()[1]

    def stop(self) -> None:
        self.released.set()
        if self._http is not None:
            http, self._http = self._http, None
            http.shutdown()
            http.server_close()

    def reply(self, text: str = "", **step: Any) -> None:
        self._script["chat"].append(Step(text=text, **step))

    def fail(self, status: int, times: int = 1, on: Kind = "chat", **step: Any) -> None:
        self._script[on].extend(Step(status=status, **step) for _ in range(times))

    def hang(self, after: int | None = None, on: Kind = "chat", **step: Any) -> None:
        self._script[on].append(Step(text="one two three four", hang_after=after or 0, **step))

    def drop(self, after: int = 0, on: Kind = "chat", **step: Any) -> None:
        self._script[on].append(Step(text="one two three four", drop_after=after, **step))

    def malformed(self, on: Kind = "chat") -> None:
        self._script[on].append(Step(text="one two", malformed=True))

    def never_end(self, on: Kind = "chat") -> None:
        self._script[on].append(Step(endless=True))

    def page(self, times: int = 1, on: Kind = "chat") -> None:
        self._script[on].extend(Step(page="<html><body>Sign in</body></html>") for _ in range(times))

    def vectors(self, vectors: Sequence[Sequence[float]] | None = None, **step: Any) -> None:
        self._script["embeddings"].append(Step(vectors=vectors, **step))

    def answer_embeddings(self, reply: Any, times: int = 1) -> None:
        self._script["embeddings"].extend(Step(whole=json.dumps(reply)) for _ in range(times))

    def rank(self, results: Any, **step: Any) -> None:
        self._script["rerank"].append(Step(results=results, **step))

    def bodies(self, on: Kind = "chat") -> list[dict[str, Any]]:
        return [request.body for request in self.requests if PATHS.get(request.path) == on]

    def wait_for_requests(self, number: int, timeout: float = 180.0) -> None:
        """Blocks until that many requests have come; a test's event loop must call it by `asyncio.to_thread`."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.requests) >= number, timeout)

    def wait_until_left(self, number: int = 1, timeout: float = 180.0) -> None:
        """Blocks until this many clients have closed their connection before the end of an answer."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: self.left >= number, timeout)

    def take_replies(self) -> list[Step]:
        """Removes and returns the scripted chat replies that were not used yet."""
        script = self._script["chat"]
        return [script.popleft() for _ in range(len(script))]

    def next_step(self, kind: Kind, body: dict[str, Any]) -> Step:
        if self._script[kind]:
            return self._script[kind].popleft()
        return Step(text=f"echo: {last_user(body)}" if kind == "chat" else "")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = allow_reuse_port = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores errors of clients that disconnect during an answer, because tests do this on purpose."""


class _Drop(Exception):
    pass


class _Handler(BaseHTTPRequestHandler):
    owner: OpenAIServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._json(200, {"object": "list", "data": [{"id": "test-model", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.owner.is_running:  # open connections no longer answer either
            self.close_connection = True
            return None
        with self.owner.arrived:
            headers = {k.lower(): v for k, v in self.headers.items()}
            self.owner.requests.append(Request(self.path, body, headers, self.client_address[1]))
            self.owner.arrived.notify_all()
        kind = PATHS.get(self.path)
        if kind is None:
            return self._error(404, f"no such path {self.path}", None, {})
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.owner.accept_key not in (None, key):
            # Echoes the key as real servers do, because the client must not pass it on.
            return self._error(401, f"Incorrect API key provided: {key}", "invalid_api_key", {})
        if body.get("response_format", {}).get("type") in self.owner.refuses:
            return self._error(self.owner.refusal, "response_format is not supported", None, {})
        try:
            self._perform(kind, self.owner.next_step(kind, body), body)
        except _Drop:
            self.close_connection = True
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
            with self.owner.arrived:
                self.owner.left += 1
                self.owner.arrived.notify_all()

    def _perform(self, kind: Kind, step: Step, body: dict[str, Any]) -> None:
        self._pause(step.delay)
        is_stream = kind == "chat" and bool(body.get("stream"))
        if step.until is not None and not (is_stream and step.after):
            step.until.wait(60)
        if step.status != 200:
            return self._error(step.status, step.message or "scripted failure", step.code, step.headers)
        if step.page is not None:
            return self._bytes(200, step.page.encode(), {"Content-Type": "text/html; charset=utf-8"})
        if step.endless:
            return self._bytes(200, b'data: {"a": "' + b"x" * 200_000_000, {"Content-Type": "text/event-stream"})
        if is_stream:
            return self._stream(step, body)
        self._interrupt(step, 0)
        if step.drop_after is not None or step.hang_after is not None:
            raise _Drop
        if step.malformed:
            return self._bytes(200, b'{"choices": [{"message": ')
        if step.whole is not None:
            return self._bytes(200, step.whole.encode())
        made = {"chat": completion, "embeddings": self._embeddings, "rerank": ranked}
        self._json(200, made[kind](step, body))

    def _stream(self, step: Step, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number, chunk in enumerate(chunks_of(step, body)):
            self._interrupt(step, number)
            self._pause(step.between if number else 0)
            if step.until is not None and number == step.after:
                step.until.wait(60)
            self._event("{broken" if step.malformed and number == 2 else json.dumps(chunk))
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _interrupt(self, step: Step, number: int) -> None:
        if step.drop_after == number:
            raise _Drop
        if step.hang_after == number:
            self.owner.released.wait(60)
            raise _Drop

    def _pause(self, seconds: float) -> None:
        if seconds:
            self.owner.released.wait(seconds)

    def _event(self, data: str) -> None:
        raw = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(raw), raw))
        self.wfile.flush()

    def _embeddings(self, step: Step, body: dict[str, Any]) -> dict[str, Any]:
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        vectors = step.vectors or [bag_of_words(text, self.owner.dimensions) for text in texts]
        packed = body.get("encoding_format") == "base64"
        data = [
            {"object": "embedding", "index": i, "embedding": as_base64(v) if packed else list(v)}
            for i, v in enumerate(vectors)
        ]
        used = sum(len(text.split()) for text in texts)
        usage = {"prompt_tokens": used, "total_tokens": used}
        return {"object": "list", "model": body["model"], "data": data, "usage": usage}

    def _error(self, status: int, message: str, code: str | None, headers: dict[str, str]) -> None:
        error = {"message": message, "type": "error", "param": None, "code": code}
        self._bytes(status, json.dumps({"error": error}).encode(), headers)

    def _json(self, status: int, body: Any) -> None:
        self._bytes(status, json.dumps(body).encode())

    def _bytes(self, status: int, raw: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)
