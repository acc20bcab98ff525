"""Runs an HTTP server that returns the same JSON for every request, or the result of a function of the request."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@contextmanager
def answering(body: Any, status: int = 200) -> Iterator[tuple[str, list[dict[str, list[str]]]]]:
    """Yields the URL and the received queries of a server that answers with this JSON, or with body(path, query,
    sent)."""
    queries = list[dict[str, list[str]]]()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            queries.append(parse_qs(asked.query))
            sent = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null")
            text = json.dumps(body(asked.path, queries[-1], sent) if callable(body) else body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", queries
        finally:
            server.shutdown()
            thread.join()
