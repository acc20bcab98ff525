"""Every route of the document refuses users without rights."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import httpx2
import jwt
import pytest
from helpers import nightly
from helpers.api import Api, Serve
from helpers.callers import forged

from turnlog.agent.operations.read_models import rebuild
from turnlog.events.progress import no_progress

pytestmark = pytest.mark.slow

T = TypeVar("T")

WITHOUT_TOKEN = {"/health/live", "/health/ready", "/.well-known/jwks.json", "/api/sign-in"}
# These routes read with POST, because their bodies are too long for a URL or a dialect requires it.
READS = {"/api/recall", "/api/threads/x/context", "/short-memory/query", "/ai-agent/refresh-context"}
CHANGES = {
    "turns": [{"role": "user", "content": "hers"}],
    "content": "Ann likes coffee.",
    "message": "hello",
    "label": "hers",
    "importance": 0.1,
    "reason": "none",
    "summary": "none",
    "seq": 1,
    "items": [{"role": "user", "content": "hers"}],
}
# Here another route would take the last part of the path as an id.
LIKE_IDS = {"/api/memories/forget", "/api/operations/dead-letters/retry", "/v1/responses/compact"}
ONE_SCOPES = ("read", "write", "ask", "erase", "operate", "keys")
# Responses about the caller's own jobs and about the server.
TO_ALL = {
    ("GET", path) for path in ("/api/jobs", "/api/jobs/x", "/api/jobs/x/events", "/v1/models", "/v1/models/x")
} | {("GET", "/api/caller")}
DECAYING = {"importance", "importance_at", "score"}
METHODS = {"get", "post", "put", "patch", "delete"}


async def document(api: Api) -> dict[str, Any]:
    async with api.client() as client:
        openapi: dict[str, Any] = (await client.get("/openapi.json")).json()
    return openapi


def operations(openapi: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in openapi["paths"].items():
        for method in METHODS & item.keys():
            if path not in WITHOUT_TOKEN:
                yield method.upper(), re.sub(r"\{\w+\}", "x", path), item[method]


def changes_of(openapi: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of CHANGES that the operation's body accepts; other fields would be refused before any
    look-up."""
    content = operation.get("requestBody", {}).get("content", {})
    name = content.get("application/json", {}).get("schema", {}).get("$ref", "").rpartition("/")[2]
    fields = openapi["components"]["schemas"].get(name, {}).get("properties", {})
    return {field: value for field, value in CHANGES.items() if field in fields}


def one_or_all(cases: Sequence[T], number: int) -> Sequence[T]:
    """Returns a different case for each route; with --nightly all cases for each route."""
    return cases if nightly.FULL or not cases else [cases[number % len(cases)]]


def as_named(openapi: dict[str, Any]) -> dict[str, Any]:
    """Returns the paths with {thread} and {memory} in place of ai-agent's {id}."""
    names = {"/conversations/{id}": "/conversations/{thread}", "/memories/{id}": "/memories/{memory}"}
    pattern = re.compile("|".join(map(re.escape, names)))
    return {pattern.sub(lambda match: names[match[0]], path): item for path, item in openapi["paths"].items()}


async def test_the_page_of_the_routes_loads_nothing_from_elsewhere(serve: Serve) -> None:
    async with serve() as api, api.client() as client:
        page = (await client.get("/docs")).text
        assert "swagger-ui-bundle.js" in page
        for link in re.findall(r"(?:src|href|url)[=:] ?['\"]([^'\"]+)", page):
            assert link.startswith("/") and (await client.get(link)).status_code == 200, link


async def test_other_services_verify_turnlogs_tokens_with_its_published_keys(serve: Serve) -> None:
    async with serve() as api, httpx2.AsyncClient(timeout=60) as anyone:
        keys = (await anyone.get(f"{api.url}/.well-known/jwks.json")).json()
        token = api.token("ann")
        key = jwt.PyJWKSet.from_dict(keys)[jwt.get_unverified_header(token)["kid"]]
        assert jwt.decode(token, key, ["EdDSA"], issuer="turnlog", audience="turnlog")["sub"] == "ann"
        assert [published.keys() & {"d"} for published in keys["keys"]] == [set()]


async def test_a_page_of_an_allowed_origin_reads_the_headers_that_matter(serve: Serve) -> None:
    page = {"Origin": "https://app.example"}
    async with serve(api_origins=page["Origin"]) as api, api.client() as ann:
        made = await ann.post("/v1/chat/completions", json={"messages": CHANGES["turns"]}, headers=page)
        shown = {name.strip().lower() for name in made.headers["access-control-expose-headers"].split(",")}
        assert made.headers["access-control-allow-origin"] == page["Origin"]
        assert {"x-turnlog-thread", "x-turnlog-receipt", "x-request-id"} <= shown & made.headers.keys()
        turns = await ann.get(f"/api/threads/{made.headers['x-turnlog-thread']}/turns", headers=page)
        assert "etag" in shown & turns.headers.keys()
        asked = {**page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        async with httpx2.AsyncClient(timeout=60) as anyone:
            assert (await anyone.options(f"{api.url}/api/threads", headers=asked)).status_code == 200
            other = {**asked, "Origin": "https://evil.example"}
            assert (await anyone.options(f"{api.url}/api/threads", headers=other)).status_code == 403


async def test_problems_are_documented_with_their_media_type(serve: Serve) -> None:
    async with serve() as api:
        for method, path, operation in operations(await document(api)):
            for status, answer in operation["responses"].items():
                for kind, content in answer.get("content", {}).items():
                    is_problem = content.get("schema", {}).get("$ref", "").endswith("/Problem")
                    assert is_problem == (kind == "application/problem+json"), f"{method} {path} {status} {kind}"


async def test_an_unsupported_method_is_refused_with_a_list_of_supported_ones(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        for number, (path, item) in enumerate((await document(api))["paths"].items()):
            has = {method.upper() for method in METHODS & item.keys()}
            for method in one_or_all(sorted({"GET", "POST", "PUT", "PATCH", "DELETE"} - has), number):
                answer = await ann.request(method, re.sub(r"\{\w+\}", "x", path))
                if answer.status_code == 405:
                    assert has <= set(answer.headers["allow"].split(", ")), f"{method} {path}"
                    kind = "application/json" if path.startswith("/v1/") else "application/problem+json"
                    assert answer.headers["content-type"] == kind, f"{method} {path}"
                else:
                    assert "{" in path or path in LIKE_IDS, f"{method} {path}: {answer.status_code}"


async def test_wrong_paths_methods_and_media_types_are_refused_with_a_hint(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        told = {
            "POST": await ann.get("/api/recall"),
            "/docs": await ann.get("/api/recalls"),
            "application/json": await ann.post("/api/recall", content=b'{"query": "x"}'),
        }
        assert [answer.status_code for answer in told.values()] == [405, 404, 422]
        assert [what for what, answer in told.items() if what not in answer.json()["detail"]] == []
        broken: dict[str, Any] = {"content": b'{"query": }', "headers": {"content-type": "application/json"}}
        said = "the body is not JSON from character 10 on"
        assert said in (await ann.post("/api/recall", **broken)).json()["detail"]
        assert (await ann.post("/v1/chat/completions", **broken)).json()["error"]["message"] == said


async def test_no_route_reads_another_persons_thread_or_memory(serve: Serve) -> None:
    """Sends every GET with one of these ids in its path or query as another user and in another tenant, also after a
    rebuild."""
    async with (
        serve() as api,
        api.client() as ann,
        api.client("bob") as bob,
        api.client(tenant="acme") as other,
    ):
        await ann.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "mine"}]})
        kept = (await ann.post("/api/memories", json={"content": "Ann likes tea."})).json()["memory_id"]
        known = {"{thread}": "t", "{conversation_id}": "t", "{memory}": kept}
        described = as_named(await document(api))
        paths = [path for path, item in described.items() if "get" in item and any(name in path for name in known)]
        for rebuilt in (False, True):
            if rebuilt:
                await rebuild(api.runtime, None, no_progress)
            for path in paths:
                asked = re.sub(r"\{\w+\}", lambda match: known.get(match[0], "1"), path)
                for client in (bob, other):
                    answer = await client.get(asked)
                    assert answer.status_code == 404, f"{asked} rebuilt={rebuilt}: {answer.text}"
            assert (await ann.get("/api/threads/t/turns")).json()["items"]
            assert (await ann.get(f"/api/memories/{kept}")).status_code == 200


async def said(client: httpx2.AsyncClient, path: str) -> Any:
    """Returns the client's response without values that decay between requests."""
    items = (await client.get(path)).json()
    items = items["items"] if isinstance(items, dict) else items
    return [{name: value for name, value in item.items() if name not in DECAYING} for item in items]


async def test_no_route_changes_another_persons_thread_or_memory(serve: Serve) -> None:
    """The bodies are valid, because a request that is refused for its body changes nothing anyway. In another tenant,
    or for another user, the same id means another thread, which may be created."""
    async with (
        serve("agent") as api,
        api.client() as ann,
        api.client("bob") as bob,
        api.client(tenant="acme") as other,
    ):
        await ann.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "mine"}]})
        kept = (await ann.post("/api/memories", json={"content": "Ann likes tea."})).json()["memory_id"]
        known = {"{thread}": "t", "{conversation_id}": "t", "{memory}": kept}
        mine = ("/api/threads", "/api/threads/t/turns", "/api/memories")
        before = [await said(ann, path) for path in mine]
        reached = set()
        described = await document(api)
        for path, item in as_named(described).items():
            if any(name in path for name in known):
                asked = re.sub(r"\{\w+\}", lambda match: known.get(match[0], "1"), path)
                for method in METHODS & item.keys() - {"get"}:
                    changes = changes_of(described, item[method])
                    answer = await bob.request(method.upper(), asked, json=changes)
                    assert answer.status_code < 500, f"{method} {asked}: {answer.text}"
                    reached |= {path} if answer.status_code != 422 else set()
                    answer = await other.request(method.upper(), asked, json=changes)
                    assert answer.status_code < 500, f"{method} {asked}: {answer.text}"
        assert {"/api/threads/{thread}", "/api/threads/{thread}/turns", "/api/memories/{memory}"} <= reached
        assert [await said(ann, path) for path in mine] == before


async def test_no_route_opens_without_a_valid_token(serve: Serve) -> None:
    async with serve() as api:
        wrong = [*forged(api).items(), ("none", "")]
        async with api.client() as client:
            for number, (method, path, _) in enumerate(operations(await document(api))):
                for what, header in one_or_all(wrong, number):
                    answer = await client.request(method, path, headers={"Authorization": header})
                    assert answer.status_code == 401, f"{method} {path} with a token that is {what}: {answer.text}"
                    assert answer.headers["www-authenticate"] == "Bearer"


async def test_every_route_needs_exactly_one_scope_or_accepts_any(serve: Serve) -> None:
    """Each scope belongs to a different administrator, so that a route that erases one does not affect the others."""
    async with serve() as api:
        opened: dict[tuple[str, str], set[str]] = {}
        routes = list(operations(await document(api)))
        for scope in ONE_SCOPES:
            async with api.client(f"with-{scope}", role="admin", scopes=[scope]) as client:
                for method, path, _ in routes:
                    async with client.stream(method, path, json={}) as answer:  # some routes follow the log forever
                        opened.setdefault((method, path), set()).update({scope} if answer.status_code != 403 else ())
        assert {route for route, scopes in opened.items() if len(scopes) != 1} == TO_ALL
        for (method, path), scopes in opened.items():
            if method != "GET" and path not in READS:
                assert scopes != {"read"}, f"{method} {path} changes something with the scope read"
            if path.startswith("/api/operations/"):
                assert scopes == {"keys" if "/keys" in path else "operate"}, f"{method} {path}"
