"""The routes for signing in to MCP: metadata, registration, the consent page, and the MCP library's token handler."""

import re
import time
from collections.abc import Mapping
from html import escape
from typing import Any
from urllib.parse import urlencode, urlsplit

from fastapi import FastAPI
from mcp.server.auth.handlers.token import TokenHandler
from mcp.server.auth.middleware.client_auth import ClientAuthenticator
from pydantic import ValidationError
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from turnlog.agent.access.access import Access
from turnlog.agent.access.identity import Identity, Unauthenticated
from turnlog.agent.access.presented_keys import PREFIX
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.consumers.api.mcp import authorization_server
from turnlog.consumers.api.mcp.authorization_server import SCOPES, Client, SignIns, may_register
from turnlog.consumers.api.problems import language_of

RESOURCE = "/.well-known/oauth-protected-resource"
NO_STORE = {"Cache-Control": "no-store"}
CHALLENGE = re.compile(r"[\w-]{43}", re.ASCII)  # a SHA-256 digest as base64url
WORDS = {
    "en": {
        "title": "{client} asks for your memory",
        "unproven": "The client chose this name itself. Allow this only if you have just started it there.",
        "goes": "Then you continue to",
        "read": "Read your conversations and memories",
        "write": "Remember and forget for you",
        "credential": "Your sign-in",
        "hint": "The link that <code>turnlog page</code> prints, a token or an API key",
        "allow": "Allow",
        "refuse": "Refuse",
        "a client": "A client",
        "failed": "This sign-in cannot continue",
        "old": "The request was changed or is older than ten minutes. Start again in your client.",
        "unknown": "The client did not register here, or gave an address that it did not register. Nothing was "
        "sent there. Remove the connection in your client and add it again.",
        "scopes": "This credential has none of the requested rights.",
        "wrong": "This link, token or key is not accepted. A link works once.",
    },
    "zh": {
        "title": "{client} 请求访问您的记忆",
        "unproven": "名称由客户端自行提供。仅当您刚刚在该客户端发起登录时才允许。",
        "goes": "随后将前往",
        "read": "读取您的对话和记忆",
        "write": "为您记住和忘记内容",
        "credential": "您的登录凭据",
        "hint": "<code>turnlog page</code> 输出的链接、令牌或 API 密钥",
        "allow": "允许",
        "refuse": "拒绝",
        "a client": "某个客户端",
        "failed": "无法继续登录",
        "old": "请求已被更改或已超过十分钟。请在客户端重新开始。",
        "unknown": "客户端未在此注册,或使用了未注册的地址。未向该地址发送任何内容。请在客户端删除此连接后重新添加。",
        "scopes": "此凭据无法授予所请求的任何权限。",
        "wrong": "此链接、令牌或密钥无效。链接只能使用一次。",
    },
}
POLICY = "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; frame-ancestors 'none'"
HEADERS = NO_STORE | {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",  # with no-referrer, a browser would send the form with `Origin: null`
}
PAGE = """<!doctype html>
<html lang="{lang}"><head><meta charset="utf-8"><title>{title} · turnlog</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<meta name="robots" content="noindex"><link rel="icon" href="/page/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/page/styles/base.css"><link rel="stylesheet" href="/page/styles/parts.css"></head>
<body><main class="sign-in"><form class="card stack" method="post" action="/authorize">
<img src="/page/icon.svg" alt="" width="40" height="40"><h1>{title}</h1>{inner}</form></main></body></html>"""


def base_of(settings: Settings, connection: HTTPConnection) -> str:
    """Returns the server's address as the client knows it. `RequestLimits` has checked the host."""
    return (settings.api_public_url or f"{connection.url.scheme}://{connection.url.netloc}").rstrip("/")


def resource_of(settings: Settings, connection: HTTPConnection) -> str:
    """Returns the address of MCP, for which the tokens of a sign-in are valid."""
    return f"{base_of(settings, connection)}/mcp"


def challenge(settings: Settings, connection: HTTPConnection) -> str:
    """Returns the WWW-Authenticate header of a refusal (RFC 9728, 5.1)."""
    return f'Bearer resource_metadata="{base_of(settings, connection)}{RESOURCE}/mcp"'


def mount_sign_in(app: FastAPI, runtime: Runtime) -> None:
    """Adds the metadata of /mcp; if the settings name no issuer, also turnlog's own authorization server."""
    settings = runtime.settings

    async def resource(request: Request) -> Response:
        return JSONResponse(
            {
                "resource": resource_of(settings, request),
                "authorization_servers": [settings.jwt_issuer or base_of(settings, request)],
                "scopes_supported": SCOPES,
                "bearer_methods_supported": ["header"],
                "resource_name": "turnlog",
            }
        )

    routes = [Route(RESOURCE + path, resource, methods=["GET"]) for path in ("", "/mcp", "/mcp/")]
    if settings.jwt_issuer is None:
        routes += _Server(runtime).routes
    app.router.routes.extend(routes)


class _Server:
    """turnlog's own authorization server."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._sign_ins = runtime, SignIns(runtime)

    @property
    def routes(self) -> list[Route]:
        provider: Any = self._sign_ins  # it has the methods that both handlers call
        tokens = TokenHandler(provider, ClientAuthenticator(provider))
        return [
            Route("/.well-known/oauth-authorization-server", self.metadata, methods=["GET"]),
            Route("/register", self.register, methods=["POST"]),
            Route("/authorize", self.ask, methods=["GET"]),
            Route("/authorize", self.decide, methods=["POST"]),
            Route("/token", tokens.handle, methods=["POST"]),
            Route("/revoke", self.revoke, methods=["POST"]),
        ]

    async def metadata(self, request: Request) -> Response:
        """Returns the metadata of the authorization server (RFC 8414)."""
        base = base_of(self._runtime.settings, request)
        return JSONResponse(
            {
                "issuer": base,
                **{f"{name}_endpoint": f"{base}/{path}" for name, path in ENDPOINTS.items()},
                "scopes_supported": SCOPES,
                "response_types_supported": ["code"],
                "grant_types_supported": ["authorization_code", "refresh_token"],
                "token_endpoint_auth_methods_supported": ["none"],
                "revocation_endpoint_auth_methods_supported": ["none"],
                "code_challenge_methods_supported": ["S256"],
                "authorization_response_iss_parameter_supported": True,
            }
        )

    async def register(self, request: Request) -> Response:
        """Gives a client an id (RFC 7591). Only the metadata in `Client` is kept."""
        try:
            client = Client.model_validate_json(await request.body())
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            return _error(400, "invalid_client_metadata", wrong)
        for uri in client.redirect_uris:
            if not may_register(uri):
                return _error(400, "invalid_redirect_uri", f"{uri[:200]} is neither https, loopback nor an app's own")
        registered = client.model_dump(exclude_none=True) | {
            "client_id": self._sign_ins.register(client),
            "client_id_issued_at": int(time.time()),
            "token_endpoint_auth_method": "none",
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "scope": " ".join(SCOPES),
        }
        return JSONResponse(registered, 201, NO_STORE)

    async def ask(self, request: Request) -> Response:
        """Shows the consent page. If the request is invalid, sends the person back to the client; if the client or its
        redirect_uri is not known, shows an error."""
        query = request.query_params
        client = self._sign_ins.client(query.get("client_id", ""))
        if client is None or len(query.multi_items()) != len(query):
            return self._failure(request, "unknown")
        uri = query.get("redirect_uri") or (client.redirect_uris[0] if len(client.redirect_uris) == 1 else "")
        if not client.may_return_to(uri):
            return self._failure(request, "unknown")
        asked = query.get("scope", "").split()
        scopes = [scope for scope in SCOPES if scope in asked] if asked else SCOPES
        resource = resource_of(self._runtime.settings, request)
        refusal = _refusal(query, scopes, (resource, resource.removesuffix("/mcp")))
        if refusal is not None:
            code, reason = refusal
            return self._back(request, uri, query.get("state"), error=code, error_description=reason)
        wanted = authorization_server.Request(
            client_id=query["client_id"],
            redirect_uri=uri,
            redirect_uri_provided_explicitly="redirect_uri" in query,
            code_challenge=query["code_challenge"],
            scopes=scopes,
            state=query.get("state"),
            resource=resource,
            until=time.time() + authorization_server.REQUEST_S,
        )
        return self._page(request, self._sign_ins.ask(wanted), wanted)

    async def decide(self, request: Request) -> Response:
        """Sends the person back to the client with a code for the owner of the credential in the form. A form that
        another site forges has no credential, because none is in a cookie, which the browser would add."""
        form = {name: str(value) for name, value in (await request.form()).items()}
        text = form.get("request", "")
        asked = self._sign_ins.asked(text)
        if asked is None or asked.resource != resource_of(self._runtime.settings, request):
            return self._failure(request, "old")
        if form.get("decision") != "allow":
            return self._back(request, asked.redirect_uri, asked.state, error="access_denied")
        try:
            person = await self._person(form.get("credential", "").strip())
        except Unauthenticated:
            return self._page(request, text, asked, "wrong")
        scopes = sorted(person.scopes & frozenset(asked.scopes))
        if not scopes:
            return self._page(request, text, asked, "scopes")
        code = await self._sign_ins.allow(asked, person, scopes)
        return self._back(request, asked.redirect_uri, asked.state, code=code)

    async def revoke(self, request: Request) -> Response:
        """Ends the sign-in of a refresh or access token (RFC 7009)."""
        form = await request.form()
        client = await self._sign_ins.get_client(str(form.get("client_id", "")))
        if client is None:
            return _error(401, "invalid_client", "the client did not register here")
        token = str(form.get("token", ""))
        refresh = await self._sign_ins.load_refresh_token(client, token)
        try:
            if refresh is not None:
                await self._sign_ins.revoke(refresh.identity)
            elif not token.startswith(PREFIX):  # API keys that a person created are not revoked here
                resource = resource_of(self._runtime.settings, request)
                await self._sign_ins.revoke(await self._sign_ins.access.identify(token, resource=resource))
        except Unauthenticated:
            pass  # such a token is already worthless
        return Response(headers=NO_STORE)

    async def _person(self, credential: str) -> Identity:
        """Returns the owner of a credential, which is a link printed by `turnlog page`, a token or an API key. Raises
        Unauthenticated."""
        access = self._runtime.cached(Access)
        _, is_link, ticket = credential.rpartition("#ticket=")
        return await (access.sign_in_tickets.redeem(ticket) if is_link else access.identify(credential))

    def _page(
        self, request: Request, text: str, asked: authorization_server.Request, wrong: str | None = None
    ) -> Response:
        words, client = WORDS[_language(request)], self._sign_ins.client(asked.client_id)
        uri = urlsplit(asked.redirect_uri)
        origin = f"{uri.scheme}://{uri.netloc}" if uri.scheme in ("http", "https") else f"{uri.scheme}:"
        said = f'<p class="failure" role="alert"><span>{words[wrong]}</span></p>' if wrong else ""
        scopes = "".join(f"<li>{words[scope]}</li>" for scope in asked.scopes)
        shown = "".join(letter for letter in (client and client.client_name) or "" if letter.isprintable()).strip()
        inner = (
            f'<div class="markdown"><ul>{scopes}</ul></div><p class="muted">{words["unproven"]}</p>'
            f"<p>{words['goes']} <strong>{escape(origin)}</strong></p>{said}"
            f'<label class="field"><span class="field-label">{words["credential"]}</span>'
            f'<input type="password" name="credential" autocomplete="off" spellcheck="false" autofocus>'
            f'<span class="field-hint">{words["hint"]}</span></label>'
            f'<input type="hidden" name="request" value="{escape(text)}"><div class="actions">'
            f'<button class="button primary" name="decision" value="allow">{words["allow"]}</button>'
            f'<button class="button" name="decision" value="refuse">{words["refuse"]}</button></div>'
        )
        title = words["title"].format(client=escape(shown or words["a client"]))
        # A browser applies form-action also to the redirect that follows the form.
        target = f"{uri.scheme}:" if "[" in origin else origin  # a content security policy cannot name an IPv6 address
        return _html(request, title, inner, 401 if wrong else 200, f"'self' {target}")

    def _failure(self, request: Request, reason: str) -> Response:
        words = WORDS[_language(request)]
        return _html(request, words["failed"], f"<p>{words[reason]}</p>", 400, "'none'")

    def _back(self, request: Request, uri: str, state: str | None, **fields: str) -> Response:
        more = fields | {"iss": base_of(self._runtime.settings, request)} | ({} if state is None else {"state": state})
        url = f"{uri}{'&' if '?' in uri else '?'}{urlencode(more)}"
        return RedirectResponse(url, 303, NO_STORE | {"Referrer-Policy": "no-referrer"})


ENDPOINTS = {"authorization": "authorize", "token": "token", "registration": "register", "revocation": "revoke"}


def _refusal(query: Mapping[str, str], scopes: list[str], resources: tuple[str, str]) -> tuple[str, str] | None:
    """Returns OAuth's name for the error of a request, and a description; None for a valid request."""
    if query.get("response_type") != "code":
        return "unsupported_response_type", "response_type must be code"
    challenge = query.get("code_challenge", "")
    if query.get("code_challenge_method") != "S256" or not CHALLENGE.fullmatch(challenge):
        return "invalid_request", "PKCE is required: code_challenge, with S256 as code_challenge_method"
    if not scopes:
        return "invalid_scope", f"the scopes are {' and '.join(SCOPES)}"
    if query.get("resource", resources[0]).rstrip("/") not in resources:
        return "invalid_target", f"the resource is {resources[0]}"
    return None


def _language(request: Request) -> str:
    return "zh" if language_of(request).startswith("zh") else "en"


def _html(request: Request, title: str, inner: str, status: int, target: str) -> Response:
    lang = {"zh": "zh-CN", "en": "en"}[_language(request)]
    headers = HEADERS | {"Content-Security-Policy": f"{POLICY}; form-action {target}"}
    return HTMLResponse(PAGE.format(lang=lang, title=title, inner=inner), status, headers)


def _error(status: int, code: str, description: str) -> Response:
    return JSONResponse({"error": code, "error_description": description}, status, NO_STORE)
