"""Signing in to MCP by OAuth, over HTTP with the MCP library's own client."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
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

from turnlog.agent.access.api_keys import issue_sign_in_ticket, list_keys

BACK = "http://127.0.0.1:33418/callback"


class Browser:
    """A person at the consent page, and the client's memory of its tokens."""

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
    """Opens the page as a browser does, and returns the query that leads back to the client."""
    async with httpx2.AsyncClient(base_url=api.url, timeout=60, follow_redirects=True) as http:
        page = await http.get(url)
        assert page.status_code == 200, page.text
        assert "form-action 'self' http://127.0.0.1:33418" in page.headers["content-security-policy"]
        assert "Tester &lt;b&gt;" in page.text and "Remember and forget for you" in page.text
        fields = {"request": request_of(page.text), "credential": credential, "decision": decision}
        done = await http.post("/authorize/consent", data=fields, headers={"Origin": api.url}, follow_redirects=False)
        assert done.status_code == 303, done.text
        assert done.headers["location"].startswith(f"{BACK}?")
        return query_of(done.headers["location"])


def request_of(page: str) -> str:
    found = re.search(r'name="request" value="([^"]+)"', page)
    assert found
    return found[1]


def query_of(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


async def test_a_client_signs_in_refreshes_and_is_shut_out_when_its_key_is_revoked(serve: Serve) -> None:
    async with serve() as api:
        ticket = await issue_sign_in_ticket(api.runtime, api.runtime.settings.tenant, "ann")
        browser = Browser(api, f"{api.url}/page/#ticket={ticket}")
        async with browser.signed_in() as client:
            await call(client, "remember", text="Ann likes tea.")
        async with api.client() as ann:
            assert "Ann likes tea." in (await ann.get("/api/memories")).text
        (key,) = await list_keys(api.runtime, api.runtime.settings.tenant)
        assert (key.user, key.role, key.scopes, key.label) == ("ann", "user", ["read", "write"], "MCP: Tester <b>")
        assert browser.tokens and browser.client
        first = browser.tokens
        async with httpx2.AsyncClient(base_url=api.url, timeout=60) as http:
            assert await status(http, first.access_token) == 200
            assert await status(http, first.refresh_token) == 401
            renewed = await refresh(http, browser.client, first.refresh_token)
            assert renewed.status_code == 200, renewed.text
            second = renewed.json()
            assert await status(http, first.access_token) == 401
            assert await status(http, second["access_token"]) == 200
            again = await refresh(http, browser.client, first.refresh_token)
            assert (again.status_code, again.json()["error"]) == (400, "invalid_grant")
            form = credentials(browser.client) | {"token": second["refresh_token"]}
            assert (await http.post("/revoke", data=form)).status_code == 200
            assert await status(http, second["access_token"]) == 401
            assert (await refresh(http, browser.client, second["refresh_token"])).status_code == 400


async def status(http: httpx2.AsyncClient, token: str | None) -> int:
    return (await http.get("/api/caller", headers={"Authorization": f"Bearer {token}"})).status_code


def credentials(client: OAuthClientInformationFull) -> dict[str, str]:
    secret = {"client_secret": client.client_secret} if client.client_secret else {}
    return {"client_id": client.client_id, **secret}


async def refresh(http: httpx2.AsyncClient, client: OAuthClientInformationFull, token: str | None) -> Any:
    fields = {"grant_type": "refresh_token", "refresh_token": token}
    return await http.post("/token", data=credentials(client) | fields)


async def registered(http: httpx2.AsyncClient, **more: Any) -> OAuthClientInformationFull:
    body = {"redirect_uris": [BACK], "client_name": "Tester <b>", "token_endpoint_auth_method": "none", **more}
    made = await http.post("/register", json=body)
    assert made.status_code == 201, made.text
    return OAuthClientInformationFull.model_validate(made.json())


async def test_codes_are_for_one_client_one_verifier_and_one_use(serve: Serve) -> None:
    async with serve() as api, httpx2.AsyncClient(base_url=api.url, timeout=60) as http:
        client, other = [await registered(http) for _ in range(2)]
        pkce = PKCEParameters.generate()
        asked = {
            "response_type": "code",
            "client_id": client.client_id,
            "redirect_uri": BACK,
            "state": "s",
            "scope": "read",
        }
        asked |= {"code_challenge": pkce.code_challenge, "code_challenge_method": "S256"}

        async def code() -> str:
            page = await http.get("/authorize", params=asked, follow_redirects=True)
            assert "Remember and forget for you" not in page.text, "only what is asked for"
            fields = {"request": request_of(page.text), "credential": api.token(), "decision": "allow"}
            done = query_of((await http.post("/authorize/consent", data=fields)).headers["location"])
            assert (done["state"], done["iss"]) == ("s", api.url)
            return done["code"]

        async def exchanged(code: str, **wrong: str) -> tuple[int, str | None]:
            fields = {"grant_type": "authorization_code", "code": code, "redirect_uri": BACK}
            fields |= {"code_verifier": pkce.code_verifier, "client_id": client.client_id}
            done = await http.post("/token", data=fields | wrong)
            return done.status_code, done.json().get("error") or done.json()["scope"]

        good = await code()
        assert await exchanged(good) == (200, "read")
        assert await exchanged(good) == (400, "invalid_grant")
        assert await exchanged(await code(), code_verifier="x" * 43) == (400, "invalid_grant")
        assert await exchanged(await code(), client_id=other.client_id) == (400, "invalid_grant")
        assert await exchanged(await code(), redirect_uri=f"{BACK}/x") == (400, "invalid_request")
        mixed = (await code()).partition(".")[0] + "." + (await code()).partition(".")[2]
        assert await exchanged(mixed) == (400, "invalid_grant")
        for wrong in (
            {"redirect_uri": f"{BACK}/x"},
            {"client_id": client.client_id[:-2] + "00"},
        ):
            refused = await http.get("/authorize", params=asked | wrong)
            assert refused.status_code == 400 and "location" not in refused.headers
        plain = await http.get("/authorize", params=asked | {"code_challenge_method": "plain"})
        assert query_of(plain.headers["location"])["error"] == "invalid_request"
        page = await http.get("/authorize", params=asked, follow_redirects=True)
        request = request_of(page.text)
        forged = await http.get("/authorize/consent", params={"request": f"A{request[1:]}"})
        assert forged.status_code == 400 and "<input" not in forged.text
        wrong_key = await http.post(
            "/authorize/consent", data={"request": request, "credential": "x", "decision": "allow"}
        )
        assert wrong_key.status_code == 401 and "location" not in wrong_key.headers
        refused = await http.post("/authorize/consent", data={"request": request, "decision": "refuse"})
        assert query_of(refused.headers["location"])["error"] == "access_denied"
        elsewhere = await http.get("/authorize", params=asked | {"resource": "https://other.example/mcp"})
        page = await http.get(elsewhere.headers["location"], headers={"Accept-Language": "zh-CN"})
        assert page.status_code == 400 and "另一台服务器" in page.text


async def test_registration_refuses_addresses_that_are_unsafe_to_return_to(serve: Serve) -> None:
    async with serve() as api, httpx2.AsyncClient(base_url=api.url, timeout=60) as http:
        for uri in ("http://evil.example/x", "javascript:alert(1)", "https://app.example/#x", "https://a;b/"):
            refused = await http.post("/register", json={"redirect_uris": [uri]})
            assert (refused.status_code, refused.json()["error"]) == (400, "invalid_redirect_uri"), uri
        for uri in ("https://claude.ai/api/mcp/auth_callback", "cursor://anysphere.cursor-mcp/oauth/callback"):
            await registered(http, redirect_uris=[uri])


@pytest.mark.parametrize("issuer", [None, "https://id.example"])
async def test_a_refusal_leads_to_the_server_that_signs_in(issuer: str | None, serve: Serve) -> None:
    public = "https://memory.example"
    outside = {"jwt_issuer": issuer, "jwt_audience": "turnlog", "jwt_jwks_url": "https://id.example/keys"}
    async with (
        serve(api_public_url=public, **outside if issuer else {}) as api,
        httpx2.AsyncClient(base_url=api.url, headers={"Host": "memory.example"}, timeout=60) as http,
    ):
        refused = await http.post("/mcp", json={})
        place = f"{public}/.well-known/oauth-protected-resource/mcp"
        assert (refused.status_code, refused.headers["www-authenticate"]) == (
            401,
            f'Bearer resource_metadata="{place}"',
        )
        for path in ("", "/mcp"):
            found = (await http.get(f"/.well-known/oauth-protected-resource{path}")).json()
            assert (found["resource"], found["authorization_servers"]) == (f"{public}/mcp", [issuer or public])
        server = await http.get("/.well-known/oauth-authorization-server")
        assert server.status_code == (404 if issuer else 200)
        if not issuer:
            assert server.json()["authorization_endpoint"] == f"{public}/authorize"
            assert server.json()["code_challenge_methods_supported"] == ["S256"]
