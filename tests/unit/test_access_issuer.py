"""Checks tokens of an external issuer, whose keys are fetched from a real HTTP server."""

import asyncio
import base64
import hmac
import json
import re
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm

from turnlog.agent.access.access import AGAIN_S, MAX_BYTES, TRUSTED_S, KeySet, outside_issuer
from turnlog.agent.access.identity import Identity, IssuerUnavailable, TokenExpired, Unauthenticated
from turnlog.agent.access.web_tokens import peek
from turnlog.agent.settings import InvalidSetting, Settings, load_settings

KEY, OTHER = generate_private_key(SECP256R1()), generate_private_key(SECP256R1())
OCT = {"kty": "oct", "kid": "shared", "alg": "HS256", "k": base64.urlsafe_b64encode(b"k" * 32).decode()}
HOUR = timedelta(hours=1)
JSON_NULL = object()


def published(key: EllipticCurvePrivateKey, kid: str) -> dict[str, Any]:
    return {**ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig"}


class Provider(ThreadingHTTPServer):
    """An identity provider that answers every path with its keys and counts the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.keys = [published(KEY, "one"), OCT]
        self.status, self.padding, self.asked = 200, "", 0
        self.url = f"http://127.0.0.1:{self.server_port}/keys"

    def settings(self, **more: Any) -> Settings:
        return load_settings(jwt_issuer="https://idp.example", jwt_audience="chat", jwt_jwks_url=self.url, **more)


class Answers(BaseHTTPRequestHandler):
    server: Provider

    def do_GET(self) -> None:
        self.server.asked += 1
        body = json.dumps({"keys": self.server.keys, "padding": self.server.padding}).encode()
        self.send_response(self.server.status)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def token(key: Any = KEY, kid: str = "one", algorithm: str = "ES256", **changed: Any) -> str:
    now = datetime.now(UTC)
    claims = {"iss": "https://idp.example", "aud": "chat", "sub": "ann", "nbf": now, "exp": now + HOUR, **changed}
    said = {name: None if value is JSON_NULL else value for name, value in claims.items() if value is not None}
    return jwt.encode(said, key, algorithm, {"kid": kid})


def confused() -> str:
    """Returns a token signed by HS256 with the published key as the secret."""
    head, body, _ = token(b"k" * 32, algorithm="HS256").split(".")
    public = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    digest = hmac.digest(public, f"{head}.{body}".encode(), "sha256")
    return f"{head}.{body}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


async def use(settings: Settings, *tokens: str) -> list[Identity]:
    issuer = outside_issuer(settings)
    assert issuer is not None
    return [await issuer.verify(token, peek(token).kid) for token in tokens]


async def test_tenant_user_and_role_come_from_the_claims_alone(provider: Provider) -> None:
    settings = provider.settings(jwt_tenant_claim="org", jwt_role_claim="groups")
    plain, admin, narrow = await use(
        settings,
        token(org="acme"),
        token(org="acme", groups=["staff", "vip", "admin"]),
        token(org="acme", groups="root", scope="openid read operate"),
    )
    assert (plain.tenant, plain.user, plain.role, "operate" in plain.scopes) == ("acme", "ann", "user", False)
    assert (admin.role, "operate" in admin.scopes) == ("admin", True)
    assert (narrow.role, narrow.scopes) == ("user", {"read"})
    assert (await use(provider.settings(tenant="home"), token(org="acme")))[0].tenant == "home"
    assert provider.asked == 2, "each set of keys is fetched once"
    there = await use(settings, token(org="acme", zoneinfo="Asia/Tokyo"), token(org="acme", zoneinfo=["Asia/Tokyo"]))
    assert [identity.zone for identity in there] == ["Asia/Tokyo", None]


FORGED: dict[str, Callable[[], str]] = {
    "another key": lambda: token(OTHER),
    "a key that is not published": lambda: token(OTHER, "two"),
    "no key id": lambda: token(kid=""),
    "a path as key id": lambda: token(kid="../../dev/null"),
    "a shared secret": lambda: token(b"k" * 32, "shared", "HS256"),
    "HS256 with the public key": confused,
    "no signature": lambda: token(None, algorithm="none"),
    "another audience": lambda: token(aud="other"),
    "another issuer": lambda: token(iss="https://evil.example"),
    "no not-before": lambda: token(nbf=None),
    "no expiry": lambda: token(exp=None),
    "no tenant": lambda: token(org=None),
    "a tenant that is no name": lambda: token(org="a.>"),
    "an empty user": lambda: token(org="acme", sub=""),
}


async def test_forged_tokens_are_refused(provider: Provider) -> None:
    settings = provider.settings(jwt_tenant_claim="org")
    for case, forged in FORGED.items():
        with pytest.raises(Unauthenticated) as refused:
            await use(settings, forged())
        assert (case, refused.value.code) == (case, "unauthenticated")
    with pytest.raises(TokenExpired):
        await use(settings, token(exp=datetime.now(UTC) - HOUR))


async def test_an_unknown_key_is_looked_for_once_a_minute(provider: Provider) -> None:
    now = 0.0
    keys = KeySet(provider.url, lambda: now)
    await keys.key("one")
    provider.keys = [published(OTHER, "two")]
    now = AGAIN_S
    for _ in range(3):
        with pytest.raises(Unauthenticated):
            await keys.key("two")
    assert provider.asked == 1
    now = AGAIN_S + 1
    assert (await keys.key("two")).key_id == "two"
    with pytest.raises(Unauthenticated):
        await keys.key("one")
    assert provider.asked == 2


@pytest.mark.parametrize("broken", [{"status": 500}, {"status": 302}, {"padding": "x" * MAX_BYTES}, {"keys": "none"}])
async def test_without_the_issuers_keys_nothing_is_accepted(provider: Provider, broken: dict[str, Any]) -> None:
    for name, value in broken.items():
        setattr(provider, name, value)
    with pytest.raises(IssuerUnavailable):
        await use(provider.settings(), token())
    assert provider.asked == 1


async def test_keys_that_cannot_be_renewed_end(provider: Provider) -> None:
    now = 0.0
    keys = KeySet(provider.url, lambda: now)
    await keys.key("one")
    provider.status = 500
    now = TRUSTED_S
    await keys.key("one")
    assert provider.asked == 2
    now = TRUSTED_S + 1
    with pytest.raises(IssuerUnavailable):
        await keys.key("one")


@pytest.mark.parametrize(
    "wrong", [{"jwt_audience": None}, {"jwt_issuer": "turnlog"}, {"jwt_jwks_url": "http://idp.example/keys"}]
)
def test_an_incomplete_issuer_is_refused(provider: Provider, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        outside_issuer(provider.settings().model_copy(update=wrong))


WRONG_TYPES: dict[str, dict[str, Any]] = {
    "a list of scopes": {"scope": ["read"]},
    "no value for the scopes": {"scope": JSON_NULL},
    "a number as scopes": {"scope": 0},
    "a number among the scopes of scp": {"scp": ["read", 1]},
    "no value for the tenant": {"org": JSON_NULL},
    "true as tenant": {"org": True},
    "a number as tenant": {"org": 7},
    "a list of tenants": {"org": ["acme"]},
    "no value for the role": {"groups": JSON_NULL},
    "a number among the roles": {"groups": ["admin", 1]},
    "a table of roles": {"groups": {"admin": True}},
    "a number as user": {"sub": 7},
    "a text as expiry": {"exp": "99999999999"},
    "true as not-before": {"nbf": True},
    "a list as expiry": {"exp": [99999999999]},
    "an audience that is a table": {"aud": {"chat": True}},
}


async def test_claims_of_a_wrong_type_are_refused_by_name(provider: Provider) -> None:
    settings = provider.settings(jwt_tenant_claim="org", jwt_role_claim="groups")
    for case, changed in WRONG_TYPES.items():
        with pytest.raises(Unauthenticated) as refused:
            await use(settings, token(**{"org": "acme", **changed}))
        assert (case, refused.value.code) == (case, "unauthenticated")
        assert re.search(rf"{next(iter(changed))}|claim format|[Ss]ubject", str(refused.value))


async def test_only_a_token_without_scopes_has_all_rights_of_its_role(provider: Provider) -> None:
    none, foreign, listed, text = await use(
        provider.settings(),
        token(),
        token(scope="openid profile"),
        token(scp=["read", "ask"]),
        token(scp="read write", scope=None),
    )
    assert none.scopes == {"read", "write", "ask", "erase"}
    assert [foreign.scopes, listed.scopes, text.scopes] == [set(), {"read", "ask"}, {"read", "write"}]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=5,
)


def test_a_claim_of_any_type_grants_no_additional_rights(provider: Provider) -> None:
    """A token is refused, or its identity contains exactly the texts and numbers of its claims."""
    issuer = outside_issuer(provider.settings(jwt_tenant_claim="org", jwt_role_claim="groups"))
    assert issuer is not None

    @given(
        name=st.sampled_from(["sub", "org", "groups", "scope", "scp", "exp", "nbf", "iat", "aud"]), value=JSON_VALUES
    )
    def check(name: str, value: Any) -> None:
        made = token(**{"org": "acme", "scope": "read", name: JSON_NULL if value is None else value})
        try:
            identity = asyncio.run(issuer.verify(made, "one"))
        except Unauthenticated:
            return
        assert identity.user == (value if name == "sub" else "ann")
        assert identity.tenant == (value if name == "org" else "acme")
        assert identity.scopes <= (set(value.split()) if name == "scope" else {"read"})
        assert identity.role == "user" or (
            name == "groups" and identity.role in ([value] if isinstance(value, str) else value)
        )
        assert name not in ("exp", "nbf", "iat") or (isinstance(value, int | float) and not isinstance(value, bool))

    check()
