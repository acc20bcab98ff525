"""Offers the operations of an HTTP service as tools, by its OpenAPI document (3.0 or 3.1, JSON)."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin

import httpx2

from turnlog.agent.answering.fallback import Category
from turnlog.agent.models.openai_http import tls_context
from turnlog.agent.team.json_schemas import checker, referenced, whole
from turnlog.agent.team.teams import HttpService
from turnlog.agent.team.tool_failures import Mistake, Unavailable
from turnlog.agent.team.tools import RETRIES, TIMEOUT_S, InvalidTool, Tool, Use

METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
READING, REPEATABLE = ("get", "head", "options"), ("put", "delete")
TRY_AGAIN = (408, 425, 429)
MOST_BYTES = 1_000_000
MOST_DOCUMENT_BYTES = 20_000_000
MOST_SAID = 1_000  # maximum characters of an error response that the model gets
BODY = "body"
JSON = "application/json"
TELLS = {"user": "x-turnlog-user", "tenant": "x-turnlog-tenant"}  # percent-encoded UTF-8
OWN_HEADERS = frozenset(
    {"accept", "content-type", "authorization", "idempotency-key", "host", "content-length", *TELLS.values()}
)
NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation. places: where each parameter goes: path, query or header. body: whether it has a JSON body."""

    method: str
    path: str
    places: Mapping[str, str]
    body: bool
    description: str
    parameters: Mapping[str, Any]
    server: str | None


@dataclass(slots=True)
class HttpTools:
    """The tools of one HTTP service; a Source. folder: where to look for a document that is a file."""

    name: str
    service: HttpService
    folder: str
    _http: httpx2.AsyncClient | None = None
    _operations: Mapping[str, Operation] | None = None

    @property
    def declared(self) -> Sequence[Tool]:
        return [self._tool(name, None) for name in self.service.tools]

    async def tools(self) -> Sequence[Tool]:
        """Returns the service's operations as tools. Raises InvalidTool, Unavailable, OSError."""
        operations = await self._described()
        if missing := sorted(set(self.service.tools.values()) - operations.keys()):
            known = ", ".join(sorted(operations)[:50])
            raise InvalidTool(f"the document of {self.name} has no operation {', '.join(missing)}; it has {known}")
        return [self._tool(name, operations[theirs]) for name, theirs in self.service.tools.items()]

    async def close(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    def _tool(self, name: str, known: Operation | None) -> Tool:
        theirs = self.service.tools[name]
        reads, twice = (known.method in READING, known.method in REPEATABLE) if known else (False, False)
        writes = self.service.writes_to(name, not reads)
        schema: dict[str, Any] = {}
        parse = checker(name, known.parameters if known else {"type": "object"})
        if known is not None:
            described = {"name": name, "description": known.description or theirs, "parameters": known.parameters}
            schema = {"type": "function", "function": described}

        async def called(arguments: Mapping[str, Any], use: Use) -> Any:
            operation = known or (await self._described()).get(theirs)
            if operation is None:
                raise Unavailable(f"the service {self.name} has no operation {theirs}", may_be_done=False)
            return await self._call(operation, arguments, use)

        repeatable = not writes or twice or name in self.service.repeatable
        tries, service = 0 if writes else RETRIES, f"http:{self.name}"
        return Tool(name, theirs, schema, parse, called, tries, TIMEOUT_S, writes, repeatable, service)

    async def _call(self, operation: Operation, arguments: Mapping[str, Any], use: Use) -> Any:
        base = self.service.base_url or operation.server
        if base is None:
            raise Unavailable(f"the service {self.name} has no base URL", may_be_done=False)
        path, query = operation.path, list[tuple[str, str]]()
        headers = {"accept": f"{JSON}, text/*;q=0.5", "idempotency-key": str(use.effect)}
        for name, location in operation.places.items():
            if name not in arguments:
                continue
            values = arguments[name] if isinstance(arguments[name], list) else [arguments[name]]
            if location == "query":
                query += [(name, _text(value)) for value in values]
            elif location == "header":
                headers[name] = ",".join(map(_text, values))
            else:
                path = path.replace(f"{{{name}}}", _segment(name, ",".join(map(_text, values))))
        content = None
        if operation.body and BODY in arguments:
            content, headers["content-type"] = json.dumps(arguments[BODY]).encode(), JSON
        url = base.rstrip("/") + path
        headers |= {TELLS[what]: quote(getattr(use, what), safe="@") for what in self.service.tells}
        headers |= self.service.auth_headers()
        return await self._answer(operation.method, url, params=query, headers=headers, content=content)

    async def _answer(self, method: str, url: str, **request: Any) -> Any:
        """Sends the request and returns its answer. Redirects are not followed, because a header with a secret would be
        sent along.
        """
        try:
            async with self._client().stream(method.upper(), url, **request) as response:
                body = await _beginning(response, MOST_BYTES)
        except httpx2.HTTPError as error:
            category: Category = "timeout" if isinstance(error, httpx2.TimeoutException) else "network"
            why, was_sent = f"the service {self.name} fails ({type(error).__name__})", not isinstance(error, NOT_SENT)
            raise Unavailable(why, category, may_be_done=was_sent) from error
        text = body.decode(response.encoding or "utf-8", "replace")
        status = response.status_code
        if status >= 500 or status in TRY_AGAIN:
            category = "rate_limit" if status == 429 else "timeout" if status in (408, 504) else "network"
            why, is_refusal = f"the service {self.name} answered {status}: {text[:MOST_SAID]}", status in (425, 429)
            raise Unavailable(why, category, may_be_done=not is_refusal)
        if status >= 300:
            raise Mistake(f"the service answered {status}: {text[:MOST_SAID]}")
        if not text.strip():
            return {"status": status}
        if "json" in response.headers.get("content-type", ""):
            with contextlib.suppress(ValueError, RecursionError):
                return json.loads(text)
        return text

    async def _described(self) -> Mapping[str, Operation]:
        if self._operations is None:
            where = self.service.document
            if where.startswith(("http://", "https://")):
                text = await self._fetched(where)
            else:
                text = Path(self.folder, where).read_text("utf-8")
            try:
                document = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise InvalidTool(f"the document {where} is not JSON: {error}") from None
            self._operations = operations_of(document, where)
        return self._operations

    async def _fetched(self, url: str) -> str:
        base = self.service.base_url
        is_own = base is None or httpx2.URL(base).host == httpx2.URL(url).host
        headers = self.service.auth_headers() if is_own else {}
        try:
            async with self._client().stream("GET", url, headers=headers) as response:
                body = await _beginning(response, MOST_DOCUMENT_BYTES)
        except httpx2.HTTPError as error:
            why = f"the document {url} cannot be fetched ({type(error).__name__})"
            raise Unavailable(why, may_be_done=False) from error
        if response.status_code != 200:
            why = f"the document {url} was answered with {response.status_code}"
            raise Unavailable(why, may_be_done=False)
        return body.decode("utf-8", "replace")

    def _client(self) -> httpx2.AsyncClient:
        if self._http is None:
            self._http = httpx2.AsyncClient(follow_redirects=False, timeout=TIMEOUT_S, verify=tls_context())
        return self._http


def operations_of(document: Any, where: str = "") -> dict[str, Operation]:
    """Returns the operations of an OpenAPI document by operationId, without those that cannot be tools.

    where: the document's URL, the base of relative server URLs. Raises InvalidTool for any other document.
    """
    if not isinstance(document, Mapping) or not str(document.get("openapi", "")).startswith("3."):
        raise InvalidTool(f"the document {where} is not an OpenAPI document of version 3")
    operations = dict[str, Operation]()
    for path, item in (document.get("paths") or {}).items():
        item = _part(item, document)
        for method in METHODS:
            written = item.get(method)
            if isinstance(written, Mapping) and isinstance(id_ := written.get("operationId"), str):
                operation = _operation(method, path, item, written, document, where)
                if operation is not None:
                    operations[id_] = operation
    return operations


def _operation(
    method: str, path: str, item: Mapping[str, Any], written: Mapping[str, Any], document: Any, where: str
) -> Operation | None:
    """Returns the operation in the form that a tool needs; None if its body is not JSON."""
    places, properties, required = dict[str, str](), dict[str, Any](), list[str]()
    for parameter in (*item.get("parameters", ()), *written.get("parameters", ())):
        known = _part(parameter, document)
        name, location = str(known.get("name")), known.get("in")
        if location not in ("path", "query", "header") or (location == "header" and name.lower() in OWN_HEADERS):
            continue
        places[name], schema = str(location), whole(known.get("schema") or {}, document)
        about = {"description": known["description"]} if "description" in known else {}
        properties[name] = {**schema, **about} if isinstance(schema, Mapping) else schema
        if (known.get("required") or location == "path") and name not in required:
            required.append(name)
    body = _part(written.get("requestBody") or {}, document)
    if body:
        content = body.get("content") or {}
        kind = next((kind for kind in content if kind.split(";")[0].strip() == JSON), None)
        if kind is None:
            return None
        properties[BODY] = whole(content[kind].get("schema") or {}, document)
        if body.get("required"):
            required.append(BODY)
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    description = " ".join(str(written.get(name) or "").strip() for name in ("summary", "description")).strip()
    servers = written.get("servers") or item.get("servers") or document.get("servers") or ()
    url = str(servers[0].get("url", "")) if servers else "/"
    server = urljoin(where, url) if where.startswith(("http://", "https://")) else url
    usable = server if server.startswith(("http://", "https://")) else None
    return Operation(method, path, places, bool(body), description, parameters, usable)


def _part(value: Any, document: Any) -> Mapping[str, Any]:
    """Returns a part of the document, following a reference."""
    if isinstance(value, Mapping) and isinstance(value.get("$ref"), str):
        value = referenced(value["$ref"], document)
    return value if isinstance(value, Mapping) else {}


async def _beginning(response: httpx2.Response, most: int) -> bytes:
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) >= most:
            break
    return bytes(body[:most])


def _segment(name: str, value: str) -> str:
    if value in ("", ".", ".."):
        raise Mistake(f"{name}: {value!r} cannot be a part of the path")
    return quote(value, safe="")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
