"""Clients sign in to MCP by OAuth, over HTTP with the MCP library's own client."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from helpers.api import Api, Serve
from helpers.callers import call
from mcp.client import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.oauth2 import PKCEParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from turnlog.agent.access.api_keys import issue_sign_in_ticket, list_keys, revoke_key

pytestmark = pytest.mark.slow

BACK = "http://127.0.0.1:33418/callback"


class Browser:
    """A person at the consent page, and the client's storage of tokens."""

    def __init__(self, api: Api, credential: str) -> None:
        self.api, self.credential = api, credential
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None
        self.answer: dict[str, str] = {}

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info

    async def open(self, url: str) -> None:
        self.answer = await consent(self.api, url, self.credential)

    async def come_back(self) -> AuthorizationCodeResult:
        return AuthorizationCodeResult.model_validate(self.answer)

    @asynccontextmanager
    async def signed_in(self) -> AsyncIterator[Client]:
        metadata = OAuthClientMetadata.model_validate({"redirect_uris": [BACK], "client_name": "Tester <b>"})
        auth = OAuthClientProvider(f"{self.api.url}/mcp", metadata, self, self.open, self.come_back)
        async with (
            httpx2.AsyncClient(auth=auth, timeout=60) as http,
            Client(streamable_http_client(f"{self.api.url}/mcp", http_client=http)) as client,
        ):
            yield client


async def consent(api: Api, url: str, credential: str, decision: str = "allow") -> dict[str, str]:
    """Opens the page as a browser does, and returns the query of the redirect to the client."""
    async with httpx2.AsyncClient(base_url=api.url, timeout=60) as http:
        page = await http.get(url)
        assert page.status_code == 200, page.text
        policy = page.headers["content-security-policy"]
        assert "form-action 'self' http://127.0.0.1:33418" in policy and "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy and page.headers["x-frame-options"] == "DENY"
        assert "Tester &lt;b&gt; asks" in page.text and "Remember and forget for you" in page.text
        fields = {"request": request_of(page.text), "credential": credential, "decision": decision}
        done = await http.post("/authorize", data=fields, headers={"Origin": api.url})
        assert done.status_code == 303, done.text
        assert done.headers["location"].startswith(f"{BACK}?")
        return query_of(done.headers["location"])


def request_of(page: str) -> str:
    match = re.search(r'name="request" value="([^"]+)"', page)
    assert match
    return match[1]


def query_of(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


async def test_a_client_signs_in_and_is_shut_out_when_its_key_is_revoked(serve: Serve) -> None:
    async with serve() as api:
        ticket = await issue_sign_in_ticket(api.runtime, api.runtime.settings.tenant, "ann")
        browser = Browser(api, f"{api.url}/page/#ticket={ticket}")
        async with browser.signed_in() as client:
            await call(client, "remember", text="Ann likes tea.")
        async with api.client() as ann:
            assert "Ann likes tea." in (await ann.get("/api/memories")).text
        (key,) = await list_keys(api.runtime, api.runtime.settings.tenant)
        assert (key.user, key.role, key.scopes, key.label) == ("ann", "user", ["read", "write"], "MCP: Tester <b>")
        assert browser.tokens
        async with httpx2.AsyncClient(base_url=api.url, timeout=60) as http:
            token = browser.tokens.access_token
            assert await status(http, token) == 200
            elsewhere = await http.get("/api/caller", headers={"Authorization": f"Bearer {token}"})
            assert elsewhere.status_code == 401, "the token is for /mcp alone"
            assert await status(http, browser.tokens.refresh_token) == 401
            await revoke_key(api.runtime, api.runtime.settings.tenant, key.id)
            assert await status(http, token) == 401


async def test_of_two_concurrent_refreshes_one_succeeds_and_a_later_replay_ends_the_sign_in(serve: Serve) -> None:
    async with serve() as api, httpx2.AsyncClient(base_url=api.url, timeout=60) as http:
        flow = Flow(api, http, await registered(http))
        first = (await flow.exchange(await flow.code())).json()
        answers = await asyncio.gather(*(flow.refresh(first["refresh_token"]) for _ in range(8)))
        (second,) = [answer.json() for answer in answers if answer.status_code == 200]
        assert {answer.json()["error"] for answer in answers if answer.status_code != 200} == {"invalid_grant"}
        assert await status(http, second["access_token"]) == 200
        third = await flow.refresh(second["refresh_token"])
        assert third.status_code == 200, "the lost ones of one instant did not end the sign-in"
        assert len(await list_keys(api.runtime, api.runtime.settings.tenant)) == 1
        async with api.runtime.pool.connection() as conn:
            await conn.execute("UPDATE api_key_uses SET refreshed_at = now() - interval '2 minutes'")
        assert (await flow.refresh(second["refresh_token"])).status_code == 400
        assert (await flow.refresh(third.json()["refresh_token"])).status_code == 400
        assert await status(http, third.json()["access_token"]) == 401


async def test_a_client_ends_its_sign_in(serve: Serve) -> None:
    async with serve() as api, httpx2.AsyncClient(base_url=api.url, timeout=60) as http:
        flow = Flow(api, http, await registered(http))
        tokens = (await flow.exchange(await flow.code())).json()
        form = {"client_id": flow.client_id, "token": tokens["refresh_token"]}
        assert (await http.post("/revoke", data=form)).status_code == 200
        assert await status(http, tokens["access_token"]) == 401
        assert (await flow.refresh(tokens["refresh_token"])).status_code == 400


async def status(http: httpx2.AsyncClient, token: str | None) -> int:
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream"}
    return (
        await http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, headers=headers)
    ).status_code


async def registered(http: httpx2.AsyncClient, *uris: str) -> str:
    made = await http.post("/register", json={"redirect_uris": uris or [BACK], "client_name": "Tester <b>"})
    assert made.status_code == 201, made.text
    assert made.json()["redirect_uris"] == list(uris or [BACK])
    return str(made.json()["client_id"])


@dataclass
class Flow:
    """A client that signs ann in step by step with one of her tokens."""

    api: Api
    http: httpx2.AsyncClient
    client_id: str
    uri: str = BACK

    def __post_init__(self) -> None:
        self.pkce = PKCEParameters.generate()

    async def ask(self, **other: str) -> httpx2.Response:
        asked = {"response_type": "code", "client_id": self.client_id, "redirect_uri": self.uri, "state": "s"}
        asked |= {"code_challenge": self.pkce.code_challenge, "code_challenge_method": "S256", "scope": "read"}
        return await self.http.get("/authorize", params=asked | other)

    async def decide(self, page: httpx2.Response, credential: str, decision: str = "allow") -> httpx2.Response:
        fields = {"request": request_of(page.text), "credential": credential, "decision": decision}
        return await self.http.post("/authorize", data=fields)

    async def code(self) -> str:
        done = query_of((await self.decide(await self.ask(), self.api.token())).headers["location"])
        assert (done["state"], done["iss"]) == ("s", self.api.url)
        return done["code"]

    async def exchange(self, code: str, **other: str) -> httpx2.Response:
        fields = {"grant_type": "authorization_code", "code": code, "redirect_uri": self.uri}
        fields |= {"code_verifier": self.pkce.code_verifier, "client_id": self.client_id}
        return await self.http.post("/token", data=fields | other)

    async def refresh(self, token: str) -> httpx2.Response:
        fields = {"grant_type": "refresh_token", "refresh_token": token, "client_id": self.client_id}
        return await self.http.post("/token", data=fields)


async def test_codes_are_for_one_client_one_verifier_and_one_use(serve: Serve) -> None:
    async with serve() as api, httpx2.AsyncClient(base_url=api.url, timeout=60) as http:
        flow, other = Flow(api, http, await registered(http)), await registered(http)

        async def exchanged(code: str, **wrong: str) -> tuple[int, str | None]:
            done = await flow.exchange(code, **wrong)
            return done.status_code, done.json().get("error") or done.json()["scope"]

        good = await flow.code()
        assert await exchanged(good) == (200, "read")
        assert await exchanged(good) == (400, "invalid_grant")
        assert await exchanged(await flow.code(), code_verifier="x" * 43) == (400, "invalid_grant")
        assert await exchanged(await flow.code(), client_id=other) == (400, "invalid_grant")
        assert await exchanged(await flow.code(), redirect_uri=f"{BACK}/x") == (400, "invalid_request")
        mixed = (await flow.code()).partition(".")[0] + "." + (await flow.code()).partition(".")[2]
        assert await exchanged(mixed) == (400, "invalid_grant")


async def test_the_consent_page_shows_only_what_is_asked_and_refuses_forged_requests(serve: Serve) -> None:
    async with serve() as api, httpx2.AsyncClient(base_url=api.url, timeout=60) as http:
        flow = Flow(api, http, await registered(http))
        page = await flow.ask()
        assert "Remember and forget for you" not in page.text
        wrong = await flow.decide(page, "x")
        assert wrong.status_code == 401 and "location" not in wrong.headers
        refused = await flow.decide(page, "", "refuse")
        assert query_of(refused.headers["location"])["error"] == "access_denied"
        forged = await http.post("/authorize", data={"request": f"A{request_of(page.text)[1:]}", "decision": "allow"})
        assert forged.status_code == 400 and "<input" not in forged.text
        unknown = await flow.ask(client_id=flow.client_id[:-2] + "00")
        assert unknown.status_code == 400 and "location" not in unknown.headers
        for wrong_field, error in (
            ({"code_challenge_method": "plain"}, "invalid_request"),
            ({"response_type": "token"}, "unsupported_response_type"),
            ({"scope": "operate"}, "invalid_scope"),
            ({"resource": "https://other.example/mcp"}, "invalid_target"),
        ):
            assert query_of((await flow.ask(**wrong_field)).headers["location"])["error"] == error
        chinese = await http.get("/authorize", headers={"Accept-Language": "zh-CN"})
        assert chinese.status_code == 400 and "无法继续登录" in chinese.text


async def test_redirect_addresses_match_exactly_except_for_local_ports(serve: Serve) -> None:
    async with serve() as api, httpx2.AsyncClient(base_url=api.url, timeout=60) as http:
        web, app = "https://claude.ai/api/mcp/auth_callback", "cursor://anysphere.cursor-mcp/oauth/callback"
        client = await registered(http, BACK, web, app)
        allowed = BACK, "http://127.0.0.1:1/callback", "http://127.0.0.1/callback", web, app
        refused = (
            "http://127.0.0.1:1/callback/",
            "http://localhost:33418/callback",
            "http://127.0.0.1:1@evil.example/callback",
            web.upper(),
            web.replace("api", "x/../api"),
            web.replace("claude.ai", "claude.ai:443"),
            f"{web}?x=1",
            app + "/",
        )
        for uri in (*allowed, *refused):
            page = await Flow(api, http, client, uri).ask()
            assert (page.status_code == 200) is (uri in allowed) and "location" not in page.headers, uri
        flow = Flow(api, http, client, "http://127.0.0.1:2/callback")
        assert (await flow.exchange(await flow.code())).status_code == 200
        for uri in (
            "http://evil.example/x",
            "javascript:alert(1)",
            "https://app.example/#x",
            "https://a;b/",
            "https://claude.ai@evil.example/",
            "https:evil.example",
        ):
            answer = await http.post("/register", json={"redirect_uris": [uri]})
            assert (answer.status_code, answer.json()["error"]) == (400, "invalid_redirect_uri"), uri


@pytest.mark.parametrize("issuer", [None, "https://id.example"])
async def test_a_refusal_names_the_authorization_server(issuer: str | None, serve: Serve) -> None:
    public = "https://memory.example"
    outside = {"jwt_issuer": issuer, "jwt_audience": "turnlog", "jwt_jwks_url": "https://id.example/keys"}
    async with (
        serve(api_public_url=public, **outside if issuer else {}) as api,
        httpx2.AsyncClient(base_url=api.url, headers={"Host": "memory.example"}, timeout=60) as http,
    ):
        refused = await http.post("/mcp", json={})
        metadata_url = f"{public}/.well-known/oauth-protected-resource/mcp"
        assert (refused.status_code, refused.headers["www-authenticate"]) == (
            401,
            f'Bearer resource_metadata="{metadata_url}"',
        )
        for path in ("", "/mcp"):
            resource = (await http.get(f"/.well-known/oauth-protected-resource{path}")).json()
            assert (resource["resource"], resource["authorization_servers"]) == (f"{public}/mcp", [issuer or public])
        server = await http.get("/.well-known/oauth-authorization-server")
        assert server.status_code == (404 if issuer else 200)
        if not issuer:
            assert server.json()["authorization_endpoint"] == f"{public}/authorize"
            assert server.json()["code_challenge_methods_supported"] == ["S256"]
