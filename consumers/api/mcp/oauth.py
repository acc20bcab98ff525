"""The routes of signing in to MCP: metadata, the handlers of the MCP library, and the consent page."""

import contextlib
import re
from html import escape
from typing import Any

from fastapi import FastAPI
from mcp.server.auth.middleware.client_auth import AuthenticationError, ClientAuthenticator
from mcp.server.auth.provider import AuthorizationParams, construct_redirect_uri
from mcp.server.auth.routes import build_metadata, create_auth_routes
from mcp.server.auth.settings import ClientRegistrationOptions, RevocationOptions
from mcp.shared.auth import OAuthClientInformationFull
from pydantic import AnyHttpUrl
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from turnlog.agent.access.access import Access
from turnlog.agent.access.identity import Identity, Unauthenticated
from turnlog.agent.access.keys import PREFIX
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.consumers.api.mcp.signing_in import SCOPES, SignIns
from turnlog.consumers.api.problems import language_of

RESOURCE = "/.well-known/oauth-protected-resource"
REGISTRATION = ClientRegistrationOptions(enabled=True, valid_scopes=SCOPES, default_scopes=SCOPES)
REVOCATION = RevocationOptions(enabled=True)
CONSENT = "/authorize/consent"
_TICKET = re.compile(r"(?:.*#ticket=)?([\w-]{43})\Z")
WORDS = {
    "en": {
        "title": "{client} asks for your memory",
        "goes": "If you allow it, you go on to {where}.",
        "read": "Read your conversations and memories",
        "write": "Remember and forget for you",
        "credential": "Your sign-in: the link of `turnlog page`, a token or an API key",
        "allow": "Allow",
        "refuse": "Refuse",
        "old": "This request was changed or is older than ten minutes. Begin again in your client.",
        "other": "This request is for another server.",
        "scopes": "This credential cannot give what is asked for.",
        "wrong": "This link, token or key is not accepted. A link works once.",
    },
    "zh": {
        "title": "{client} 请求访问您的记忆",
        "goes": "允许后将前往 {where}。",
        "read": "读取您的对话和记忆",
        "write": "为您记住和忘记内容",
        "credential": "登录凭据:`turnlog page` 的链接、令牌或 API 密钥",
        "allow": "允许",
        "refuse": "拒绝",
        "old": "此请求已被更改或已超过十分钟。请在客户端重新开始。",
        "other": "此请求属于另一台服务器。",
        "scopes": "此凭据无法授予所请求的权限。",
        "wrong": "此链接、令牌或密钥无效。链接只能使用一次。",
    },
}
POLICY = "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; frame-ancestors 'none'"
PAGE = """<!doctype html>
<html lang="{lang}"><head><meta charset="utf-8"><title>turnlog</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="robots" content="noindex">
<link rel="icon" href="/page/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/page/styles/base.css"><link rel="stylesheet" href="/page/styles/parts.css"></head>
<body><main class="screen">
<form class="card screen" method="post" action="{action}">{inner}</form></main></body></html>"""


def base_of(settings: Settings, connection: HTTPConnection) -> str:
    """Returns the server's address as the client knows it. `RequestLimits` has checked the host."""
    scheme = {"ws": "http", "wss": "https"}.get(connection.url.scheme, connection.url.scheme)
    return (settings.api_public_url or f"{scheme}://{connection.url.netloc}").rstrip("/")


def challenge(settings: Settings, connection: HTTPConnection) -> str:
    """Returns the header WWW-Authenticate of a refusal (RFC 9728, 5.1)."""
    return f'Bearer resource_metadata="{base_of(settings, connection)}{RESOURCE}/mcp"'


def mount_sign_in(app: FastAPI, runtime: Runtime) -> None:
    """Adds the metadata of /mcp; without an issuer of the settings, turnlog's own authorization server too."""
    settings = runtime.settings

    async def resource(request: Request) -> Response:
        base = base_of(settings, request)
        return JSONResponse(
            {
                "resource": f"{base}/mcp",
                "authorization_servers": [settings.jwt_issuer or base],
                "scopes_supported": SCOPES,
                "bearer_methods_supported": ["header"],
                "resource_name": "turnlog",
            }
        )

    routes = [Route(RESOURCE + path, resource, methods=["GET"]) for path in ("", "/mcp", "/mcp/")]
    if settings.jwt_issuer is None:
        routes += _own_server(runtime)
    app.router.routes.extend(routes)


def _own_server(runtime: Runtime) -> list[Route]:
    sign_ins = SignIns(runtime)
    page = _Consent(runtime, sign_ins)

    async def server(request: Request) -> Response:
        issuer = AnyHttpUrl(base_of(runtime.settings, request))
        metadata = build_metadata(issuer, None, REGISTRATION, REVOCATION).model_dump(mode="json", exclude_none=True)
        metadata["issuer"] = base_of(runtime.settings, request)
        metadata["token_endpoint_auth_methods_supported"].append("none")
        metadata["authorization_response_iss_parameter_supported"] = True
        return JSONResponse(metadata)

    async def revoke(request: Request) -> Response:
        """Ends the sign-in of a refresh or access token (RFC 7009). The library's handler refuses public clients."""
        try:
            client = await ClientAuthenticator(sign_ins).authenticate_request(request)
        except AuthenticationError as error:
            return JSONResponse({"error": "invalid_client", "error_description": error.message}, 401)
        token = str((await request.form()).get("token", ""))
        refresh = await sign_ins.load_refresh_token(client, token)
        with contextlib.suppress(Unauthenticated):  # what is no token is as good as revoked
            if refresh or not token.startswith(PREFIX):  # API keys that a person made are not ended here
                await sign_ins.revoke(refresh.identity if refresh else await sign_ins.access.identify(token))
        return Response(headers={"Cache-Control": "no-store"})

    # Their issuer is that of the metadata alone, which depends on the name that the client uses.
    _, *handlers = create_auth_routes(sign_ins, AnyHttpUrl("http://localhost"), None, REGISTRATION)
    return [
        Route("/.well-known/oauth-authorization-server", server, methods=["GET"]),
        Route(CONSENT, page.show, methods=["GET"]),
        Route(CONSENT, page.decide, methods=["POST"]),
        Route("/revoke", revoke, methods=["POST"]),
        *handlers,
    ]


class _Consent:
    """The page on which a person sees who asks for what, and allows or refuses it with their own credential."""

    def __init__(self, runtime: Runtime, sign_ins: SignIns) -> None:
        self._runtime, self._sign_ins = runtime, sign_ins

    async def show(self, request: Request) -> Response:
        text = request.query_params.get("request", "")
        return self._page(request, text, await self._sign_ins.requested(text))

    async def decide(self, request: Request) -> Response:
        form = {name: str(value) for name, value in (await request.form()).items()}
        text = form.get("request", "")
        asked = await self._sign_ins.requested(text)
        if asked is None or not self._is_ours(request, asked[1]):
            return self._page(request, text, asked)
        client, params = asked
        back: dict[str, Any] = {"state": params.state, "iss": base_of(self._runtime.settings, request)}
        if form.get("decision") != "allow":
            return _redirect(params, error="access_denied", **back)
        try:
            person = await self._person(form.get("credential", "").strip())
        except Unauthenticated:
            return self._page(request, text, asked, "wrong")
        scopes = sorted(person.scopes & frozenset(params.scopes or SCOPES))
        if not scopes:
            return self._page(request, text, asked, "scopes")
        return _redirect(params, code=await self._sign_ins.allow(client, params, person, scopes), **back)

    async def _person(self, credential: str) -> Identity:
        """Raises Unauthenticated."""
        access = self._runtime.cached(Access)
        if ticket := _TICKET.match(credential):
            return await access.sign_in_tickets.redeem(ticket[1])
        return await access.identify(credential)

    def _is_ours(self, request: Request, params: AuthorizationParams) -> bool:
        """Returns whether the tokens are wanted for this server (RFC 8707)."""
        base = base_of(self._runtime.settings, request)
        return params.resource is None or params.resource.rstrip("/") in (base, f"{base}/mcp")

    def _page(
        self,
        request: Request,
        text: str,
        asked: tuple[OAuthClientInformationFull, AuthorizationParams] | None,
        wrong: str | None = None,
    ) -> Response:
        language = "zh" if language_of(request).startswith("zh") else "en"
        words, target = WORDS[language], "'self'"
        if asked is None or not self._is_ours(request, asked[1]):
            inner, status = f"<p>{words['old' if asked is None else 'other']}</p>", 400
        else:
            client, params = asked
            uri = params.redirect_uri
            is_web = uri.scheme in ("http", "https")
            origin = f"{uri.scheme}://{uri.host}:{uri.port}" if is_web else f"{uri.scheme}:"
            # A browser checks the redirection that follows the form too.
            target, status = f"'self' {origin}", 200
            said = f'<p role="alert"><strong>{words[wrong]}</strong></p>' if wrong else ""
            scopes = "".join(f"<li>{words[scope]}</li>" for scope in params.scopes or SCOPES)
            name = escape((client.client_name or "?")[:100])
            inner = (
                f"<h1>{words['title'].format(client=name)}</h1><ul>{scopes}</ul>"
                f"<p>{words['goes'].format(where=f'<strong>{escape(origin)}</strong>')}</p>{said}"
                f'<label class="field"><span class="field-label">{words["credential"]}</span>'
                f'<input type="password" name="credential" autocomplete="off" autofocus></label>'
                f'<input type="hidden" name="request" value="{escape(text)}"><div class="actions">'
                f'<button class="button primary" name="decision" value="allow">{words["allow"]}</button>'
                f'<button class="button" name="decision" value="refuse">{words["refuse"]}</button></div>'
            )
        policy = f"{POLICY}; form-action {target}"
        headers = {"Content-Security-Policy": policy, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        headers["Referrer-Policy"] = "same-origin"  # with no-referrer a browser sends the form from `Origin: null`
        html = PAGE.format(lang=language, action=CONSENT, inner=inner)
        return HTMLResponse(html, 401 if wrong else status, headers)


def _redirect(params: AuthorizationParams, **fields: str | None) -> Response:
    url = construct_redirect_uri(str(params.redirect_uri), **fields)
    return RedirectResponse(url, 303, {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"})
