"""The server refuses malformed requests over raw sockets, which no client library sends, and continues."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import psutil
import pytest
from helpers.api import Api, Serve
from helpers.servers import eventually

from turnlog.consumers.api import request_limits

pytestmark = pytest.mark.slow

MAX_BODY = 1_000_000
TURNS = "/api/threads/t/turns"


def request(line: str, *headers: str, body: bytes = b"", host: str | None = "localhost") -> bytes:
    lines = [*([f"Host: {host}"] if host is not None else []), *headers]
    return "\r\n".join([f"{line} HTTP/1.1", *lines, "", ""]).encode("latin-1") + body


@asynccontextmanager
async def connection(api: Api) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    url = urlsplit(api.url)
    async with asyncio.timeout(180):
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


async def status(api: Api, sent: bytes) -> int:
    """Returns the status of the response to these bytes."""
    async with connection(api) as (reader, writer):
        writer.write(sent)
        return int((await reader.readline()).split()[1])


async def check_that_it_goes_on(api: Api) -> None:
    """Checks that a valid request is answered and that nothing of the other requests is left."""
    async with api.client() as ann:
        assert (await ann.get("/api/threads")).status_code == 200
    port = urlsplit(api.url).port

    async def is_idle() -> bool:
        open_ones = [
            connection
            for connection in psutil.Process().net_connections("tcp")
            if connection.laddr and connection.laddr.port == port
        ]
        under_way = [task for task in asyncio.all_tasks() if "run_asgi" in repr(task.get_coro())]
        return {connection.status for connection in open_ones} <= {
            psutil.CONN_LISTEN,
            psutil.CONN_TIME_WAIT,
        } and not under_way

    await eventually(is_idle)


def chunked(parts: Iterable[bytes]) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


async def test_bad_bodies_are_refused(serve: Serve) -> None:
    async with serve(api_max_body=MAX_BODY) as api:
        token, kind = f"Authorization: Bearer {api.token()}", "Content-Type: application/json"

        def post(body: bytes, *headers: str) -> bytes:
            length = () if headers else (f"Content-Length: {len(body)}",)
            return request(f"POST {TURNS}", token, kind, *(headers or length), body=body)

        def turn(content: bytes) -> bytes:
            return post(b'{"turns": [{"role": "user", "content": [{"type": "x", "a": %s}]}]}' % content)

        chunks, both = "Transfer-Encoding: chunked", chunked([b"{}"])
        cases = {
            "ten megabytes": (post(b"x" * 10_000_000), 413),
            "chunks over the bound": (post(chunked([b"x" * 1_000] * 2_000), chunks), 413),
            "a length beyond every integer": (post(b"{}", "Content-Length: " + "9" * 40), 400),
            "a negative length": (post(b"{}", "Content-Length: -1"), 400),
            "two lengths": (post(b"{}", "Content-Length: 2", "Content-Length: 3"), 400),
            "a length and chunks": (post(both, "Content-Length: 2", chunks), 400),
            "chunks and a length": (post(both, chunks, "Content-Length: 2"), 400),
            "an unknown encoding": (post(both, "Transfer-Encoding: chunked, what"), 400),
            "a chunk of no size": (post(b"what\r\n", chunks), 400),
            "no UTF-8": (post(b'{"turns": "\xff\xfe"}'), 400),
            "100,000 levels": (turn(b"[" * 100_000 + b"]" * 100_000), 400),
            "a number of 5,000 digits": (turn(b"9" * 5_000), 400),
            "a number beyond 64 bits": (turn(b"9" * 400), 201),
            "half a character": (turn(b'"\\ud800"'), 201),
            "half a character as a name": (turn(b'{"\\ud800": 1}'), 201),
            "the character 0": (turn(b'"\\u0000"'), 201),
            "no JSON at all": (post(b"<a/>"), 422),
        }
        statuses = {name: await status(api, sent) for name, (sent, _) in cases.items()}
        assert statuses == {name: expected for name, (_, expected) in cases.items()}
        await check_that_it_goes_on(api)


async def test_bad_heads_are_refused(serve: Serve) -> None:
    async with serve() as api:
        token, long = f"Authorization: Bearer {api.token()}", "x" * request_limits.MAX_HEADERS
        cases = {
            "a foreign host": (request("GET /api/threads", token, host="evil.example"), 421),
            "a host behind a name": (request("GET /api/threads", token, host="localhost@evil.example"), 421),
            "no host": (request("GET /api/threads", token, host=None), 421),
            "a foreign origin": (request("GET /api/threads", token, "Origin: http://evil.example"), 403),
            "an origin of a file": (request("GET /api/threads", token, "Origin: null"), 403),
            "one long header": (request("GET /api/threads", token, f"A: {long}"), 431),
            "a header without an end": (request("GET /api/threads", f"A: {long * 8}")[:-4], 431),
            "many headers": (request("GET /api/threads", token, *(["A: 1"] * 40_000)), 431),
            "a long address": (request(f"GET /api/threads?{long[:60_000]}", f"A: {long[:10_000]}"), 431),
            "a space in a name": (request("GET /api/threads", "A : 1"), 400),
            "a line end in a value": (request("GET /api/threads", "A: 1\n\0"), 400),
            "no version": (b"GET /\r\n\r\n", 421),
            "another protocol": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
            "a handshake of TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
            "bytes in the path": (request("GET /api/threads/\xff", token), 400),
            "no UTF-8 in the path": (request("GET /api/threads/%ff", token), 404),
            "no UTF-8 in the query": (request("GET /api/threads?cursor=%ff", token), 422),
            "no UTF-8 in a header": (request("GET /api/threads", "Authorization: Bearer \xff\xfe"), 401),
            "no UTF-8 as the user": (request("GET /api/threads", token, "X-Turnlog-User: \xff"), 403),
            "the character 0 in the path": (request("GET /api/threads/%00", token), 422),
            "the character 0 in what is looked for": (request("GET /api/entities?type=%00", token), 422),
            "a method of its own": (request("BREW /api/threads", token), 400),
            "TRACE": (request("TRACE /api/threads", token), 405),
            "OPTIONS": (request("OPTIONS /api/threads", token), 405),
            "HEAD": (request("HEAD /api/threads", token), 405),
            "CONNECT": (request("CONNECT localhost:1", token), 400),
        }
        statuses = {name: await status(api, sent) for name, (sent, _) in cases.items()}
        assert statuses == {name: expected for name, (_, expected) in cases.items()}
        await check_that_it_goes_on(api)


async def test_slow_senders_are_cut_off(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server closes connections without headers, with half of the headers of the first or second request, with half
    of a body, and with the rest of a refused body."""
    monkeypatch.setattr(request_limits, "HEADERS_S", 0.2)
    monkeypatch.setattr(request_limits, "BODY_S", 0.2)
    async with serve(api_max_body=MAX_BODY) as api:
        token = f"Authorization: Bearer {api.token()}"
        good, half = request("GET /health/live"), b"GET /health/live HTTP/1.1\r\nHost: loc"
        body = request(f"POST {TURNS}", token, "Content-Length: 1000", body=b"{")
        refused = request(f"POST {TURNS}", token, f"Content-Length: {2 * MAX_BODY}", body=b"{")
        answered = {b"": [], half: [], good + half: [b"200"], body: [b"408"], refused: [b"413"]}
        for sent, expected in answered.items():
            async with connection(api) as (reader, writer):
                writer.write(sent)
                lines = (await reader.read()).split(b"\r\n")  # reads until the server closes the connection
                assert [line.split()[1] for line in lines if line.startswith(b"HTTP/1.1")] == expected, sent
        await check_that_it_goes_on(api)


async def test_trailers_are_not_headers(serve: Serve) -> None:
    """A proxy that checks the headers does not see trailers."""
    async with serve() as api:
        body = chunked([b'{"turns": [{"role": "user", "content": "x"}]}'])[:-2]
        trailer = f"Authorization: Bearer {api.token()}\r\n\r\n".encode()
        assert await status(api, request(f"POST {TURNS}", "Transfer-Encoding: chunked", body=body + trailer)) == 401


async def test_tokens_are_never_in_the_log(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with serve() as api, api.client() as ann:
        token = api.token()
        asked = f"/api/threads?token={token}"
        upgrade = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
        upgrade += ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
        headers = [f"Authorization: Bearer {token}", *upgrade]
        for path in (asked, f"/xyzen/ws/v1/chat/sessions/s/topics/t?token={token}"):
            assert await status(api, request(f"GET {path}", *headers)) in (101, 403, 404)
        await ann.get(asked)
        await status(api, request(f"GET {asked}", f"Cookie: {token}", "A : 1"))
        await ann.post(f"{TURNS}?token={token}", content=json.dumps({"turns": token}))
        await check_that_it_goes_on(api)
        # without the client's own messages
        lines = [record.getMessage() for record in caplog.records if not record.name.startswith("http")]
        assert lines and not [line for line in lines if token[-40:] in line]
