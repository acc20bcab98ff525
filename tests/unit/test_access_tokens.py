"""Valid tokens of turnlog's own issuer are accepted, and every forgery is refused."""

import base64
import json
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from turnlog.agent.access.api_keys import issue_token
from turnlog.agent.access.identity import Forbidden, InvalidGrant, TokenExpired, Unauthenticated, granted
from turnlog.agent.access.secret import Secret, secret_of
from turnlog.agent.access.web_tokens import MAX_CHARS, OwnIssuer, peek
from turnlog.agent.settings import InvalidSetting, load_settings

SECRET = secret_of(load_settings(api_secret="0123456789abcdef" * 2))
HOUR = timedelta(hours=1)
ANN = granted("acme", "ann", "user", ["read", "ask"], None, key=False)


def claims(**changed: Any) -> dict[str, Any]:
    """Returns the claims of a valid token for ann, with changes; a value of None removes the claim."""
    now = datetime.now(UTC)
    good = {"iss": "turnlog", "aud": "turnlog", "sub": "ann", "tenant": "acme", "role": "user", "scope": "read ask"}
    times = {"iat": now, "nbf": now, "exp": now + HOUR}
    return {name: value for name, value in {**good, **times, **changed}.items() if value is not None}


def signed(**changed: Any) -> str:
    return jwt.encode(claims(**changed), SECRET.signing, "EdDSA", {"kid": SECRET.kid})


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value, default=str).encode()).rstrip(b"=").decode()


def unsigned() -> str:
    body = claims(iat=0, nbf=0, exp=2**40)
    return f"{part({'alg': 'none', 'typ': 'JWT'})}.{part(body)}."


def confused() -> str:
    """Returns a token signed by HS256 with the public key as the secret."""
    import hmac

    body = f"{part({'alg': 'HS256', 'kid': SECRET.kid})}.{part(claims(iat=0, nbf=0, exp=2**40))}"
    public = SECRET.signing.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    digest = hmac.digest(public, body.encode(), "sha256")
    return f"{body}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def of_another_key() -> str:
    """Returns a token signed by a key that the token itself contains."""
    other = Secret(Ed25519PrivateKey.generate(), SECRET.kid, b"", b"")
    return jwt.encode(claims(), other.signing, "EdDSA", {"kid": SECRET.kid, "jwk": other.jwks["keys"][0]})


def changed_after_signing() -> str:
    head, _, signature = signed().split(".")
    return ".".join((head, part(claims(sub="bob", iat=0, nbf=0, exp=2**40)), signature))


FORGED: dict[str, Callable[[], str]] = {
    "alg none": unsigned,
    "HS256 with the public key": confused,
    "a key in the header": of_another_key,
    "claims changed after signing": changed_after_signing,
    "no issuer": lambda: signed(iss=None),
    "another issuer": lambda: signed(iss="https://evil.example"),
    "no audience": lambda: signed(aud=None),
    "another audience": lambda: signed(aud="turnlog-ticket"),
    "no expiry": lambda: signed(exp=None),
    "no not-before": lambda: signed(nbf=None),
    "not valid yet": lambda: signed(nbf=datetime.now(UTC) + HOUR),
    "no subject": lambda: signed(sub=None),
    "an expiry that is no time": lambda: signed(exp=float("inf")),
    "a kid that is no text": lambda: f"{part({'alg': 'EdDSA', 'kid': {'$ne': 1}})}.{signed().partition('.')[2]}",
    "a critical extension": lambda: jwt.encode(claims(), SECRET.signing, "EdDSA", {"crit": ["x"], "x": 1}),
    "no token": lambda: "ann",
    "too long": lambda: signed(more="x" * MAX_CHARS),
    "not ASCII": lambda: signed() + "é",
    "deeply nested": lambda: f"{part({'alg': 'EdDSA'})}.{base64.urlsafe_b64encode(b'[' * 6_000).decode()}.AAAA",
}


def use(token: str) -> object:
    peek(token)
    return OwnIssuer(SECRET).verify(token)


def test_a_token_names_tenant_user_role_and_scopes() -> None:
    identity = OwnIssuer(SECRET).verify(OwnIssuer(SECRET).issue(ANN, HOUR))
    assert (identity.tenant, identity.user, identity.role, identity.scopes) == ("acme", "ann", "user", {"read", "ask"})
    assert identity.key_id is None and identity.expires_at is not None


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_token_is_refused(case: str) -> None:
    with pytest.raises(Unauthenticated) as refused:
        use(FORGED[case]())
    assert refused.value.code == "unauthenticated"


def test_an_expired_token_is_refused_with_a_specific_code() -> None:
    with pytest.raises(TokenExpired) as refused:
        use(signed(exp=datetime.now(UTC) - HOUR))
    assert refused.value.code == "token-expired"


def test_the_published_key_verifies_a_token_and_nothing_private_is_published() -> None:
    (published,) = SECRET.jwks["keys"]
    token = OwnIssuer(SECRET).issue(ANN, HOUR)
    assert jwt.decode(token, jwt.PyJWK(published), ["EdDSA"], audience="turnlog")["sub"] == "ann"
    assert published.keys() == {"kty", "crv", "x", "kid", "alg", "use"}


def test_processes_with_one_secret_agree_and_others_do_not() -> None:
    other = secret_of(load_settings(api_secret="another secret of 32 characters!"))
    assert secret_of(load_settings(api_secret="0123456789abcdef" * 2)).jwks == SECRET.jwks
    assert (other.kid == SECRET.kid, other.pepper == SECRET.pepper) == (False, False)
    with pytest.raises(Unauthenticated):
        OwnIssuer(other).verify(signed())


def test_without_a_secret_the_home_gets_a_private_one(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path / "home")
    assert secret_of(settings).jwks == secret_of(settings).jwks
    file = tmp_path / "home" / "api-secret"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("")
    with pytest.raises(InvalidSetting):
        secret_of(settings)
    with pytest.raises(InvalidSetting):
        load_settings(api_secret="too short")


def test_require_names_the_missing_scope_or_role() -> None:
    ANN.require("read")
    with pytest.raises(Forbidden, match="'write'"):
        ANN.require("write")
    with pytest.raises(Forbidden, match="'admin'"):
        ANN.require("read", role="admin")


@pytest.mark.parametrize(
    ("ttl", "problem"),
    [
        (timedelta(0), "the lifetime must be positive"),
        (timedelta(hours=-1), "the lifetime must be positive"),
        (timedelta.max, "the lifetime is too long"),
        (timedelta(days=1_000), "a token is valid for at most"),
    ],
)
def test_a_lifetime_that_cannot_be_granted_is_refused_with_the_reason(ttl: timedelta, problem: str) -> None:
    with pytest.raises(InvalidGrant, match=problem):
        issue_token(load_settings(api_secret="0123456789abcdef" * 2), "acme", "ann", "user", ttl)


@pytest.mark.parametrize(
    ("role", "scopes"),
    [("root", None), ("user", ["fly"]), ("user", ["operate"]), ("admin", ["act-as-user"]), ("user", [])],
)
def test_a_token_is_not_granted_scopes_that_its_role_cannot_have(role: str, scopes: list[str] | None) -> None:
    with pytest.raises(InvalidGrant):
        granted("acme", "ann", role, scopes, None, key=False)


@pytest.mark.parametrize(
    "changed",
    [
        *({"tenant": value} for value in (None, True, 7, ["acme"])),
        *({"role": value} for value in (None, "root", True, ["admin"])),
        *({"scope": value} for value in (None, ["read"], 0)),
        *({"exp": value} for value in ("99999999999", [1], True)),
        *({"nbf": value} for value in ("0", True)),
    ],
    ids=str,
)
def test_a_claim_of_a_wrong_type_is_refused_though_the_signature_is_right(changed: dict[str, Any]) -> None:
    with pytest.raises(Unauthenticated):
        use(signed(**changed))
