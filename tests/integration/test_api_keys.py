"""API keys on real servers are created and revoked by events, used, and erased; their rows are checked."""

from datetime import UTC, datetime, timedelta

import jwt
import pytest
from helpers.api import token_of
from helpers.projection_spec import Spec
from helpers.sample_events import event
from helpers.servers import eventually, rows
from helpers.stage import player
from pydantic import SecretStr

from turnlog.agent.access.access import Access
from turnlog.agent.access.api_keys import create_key, list_keys, revoke_key
from turnlog.agent.access.identity import Forbidden, TokenExpired, Unauthenticated
from turnlog.agent.access.secret import ALGORITHM, secret_of
from turnlog.agent.access.web_tokens import LEEWAY_S
from turnlog.agent.privacy.personal_data import erase_person, plan_erasure
from turnlog.agent.runtime import Runtime
from turnlog.consumers.erasing import erasure_reach
from turnlog.events.contracts import ApiKeyCreated, ApiKeyRevoked, Erased
from turnlog.events.errors import NotFound
from turnlog.events.subjects import access_thread
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.operations.api_keys import ACCESS_KEYS
from turnlog.projectors.rebuild.verify import verify

SECRET = SecretStr("0123456789abcdef" * 2)
KEY = ApiKeyCreated(key_id="k1", digest="5e" * 32, role="user", scopes=("read",))
REVOKED = ApiKeyRevoked(key_id="k1")


async def test_the_state_of_a_key_follows_from_its_events_even_if_repeated(db: Connection) -> None:
    ann = access_thread("ann")
    made = [event(KEY, ann, 1, user="ann"), event(KEY, ann, 2, user="ann"), event(REVOKED, ann, 3, user="ann")]
    again = event(KEY, ann, 4, user="ann")
    state = "SELECT id, user_id, revoked_at IS NOT NULL FROM api_keys"
    await Spec(db, ACCESS_KEYS).when(*made, again).then(state, [("k1", "ann", True)])
    await Spec(db, ACCESS_KEYS).when(*made, event(Erased(), ann, 5)).then(state, [])


async def test_a_token_is_verified_once_and_refused_when_it_expires(nats_url: str, database_url: str) -> None:
    async with player(nats_url, database_url, (), api_secret=SECRET)() as stage:
        access = stage.runtime.cached(Access)
        token = token_of(stage.runtime, "ann")
        assert await access.identify(token) is await access.identify(token)
        with pytest.raises(Unauthenticated):
            await access.identify(token[:-4] + "AAAA")
        secret = secret_of(stage.runtime.settings)
        claims = jwt.decode(token, options={"verify_signature": False})
        claims["exp"] = datetime.now(UTC) - timedelta(seconds=LEEWAY_S - 2)
        ends_soon = jwt.encode(claims, secret.signing, ALGORITHM, {"kid": secret.kid})
        assert (await access.identify(ends_soon)).user == "ann"

        async def is_refused() -> bool:
            try:
                await access.identify(ends_soon)
            except TokenExpired:
                return True
            return False

        await eventually(is_refused, 20)


async def test_a_key_works_until_it_is_revoked_or_its_user_is_erased(
    nats_url: str, database_url: str, db: Connection
) -> None:
    async with player(nats_url, database_url, ("projectors",), api_secret=SECRET)() as stage:
        runtime = stage.runtime
        access = runtime.cached(Access)
        made = await create_key(runtime, "acme", "ann", scopes=["read"], label="website", ttl=timedelta(days=1))
        other = await create_key(runtime, "acme", "bob", role="vip")
        principal = await access.identify(made.key)
        assert (principal.tenant, principal.user, principal.role, principal.scopes) == ("acme", "ann", "user", {"read"})
        assert (principal.key_id, principal.expires_at) == (made.id, made.expires_at)
        assert await rows(db, "SELECT key_id FROM api_key_uses") == [(made.id,)]
        assert [(key.user, key.label, key.used_at is None) for key in await list_keys(runtime, "acme")] == [
            ("ann", "website", False),
            ("bob", None, True),
        ]
        await another_process_refuses_it_once_revoked(runtime, made.key, made.id)
        assert await list_keys(runtime, "default") == []
        await is_erased_with_its_user(runtime, other.key, db)
        assert (await verify(runtime.log, database_url, ACCESS_KEYS)).clean


async def another_process_refuses_it_once_revoked(runtime: Runtime, key: str, key_id: str) -> None:
    elsewhere = Access(runtime)
    await elsewhere.identify(key)
    with pytest.raises(NotFound):
        await revoke_key(runtime, "default", key_id)
    assert (await revoke_key(runtime, "acme", key_id)).revoked_at is not None
    with pytest.raises(Unauthenticated, match="revoked"):
        await elsewhere.identify(key)


async def is_erased_with_its_user(runtime: Runtime, key: str, db: Connection) -> None:
    assert (await Access(runtime).identify(key)).role == "vip"
    reach = erasure_reach(runtime.settings)
    await erase_person(runtime, await plan_erasure(runtime, "acme", "bob", reach), reach)
    with pytest.raises(Unauthenticated, match="no such"):
        await Access(runtime).identify(key)
    assert await rows(db, "SELECT user_id FROM api_keys") == [("ann",)]
    assert len(await rows(db, "SELECT key_id FROM api_key_uses")) == 1


async def test_a_key_whose_row_was_changed_is_refused(nats_url: str, database_url: str, db: Connection) -> None:
    """Someone who can publish events or write rows does not know the pepper."""
    async with player(nats_url, database_url, ("projectors",), api_secret=SECRET)() as stage:
        runtime, access = stage.runtime, stage.runtime.cached(Access)
        made = await create_key(runtime, "acme", "ann")
        for change, back in (
            ("role = 'admin'", "role = 'user'"),
            ("tenant = 'other'", "tenant = 'acme'"),
            ("user_id = 'bob'", "user_id = 'ann'"),
            ("scopes = scopes || '{operate}'", "scopes = array_remove(scopes, 'operate')"),
            ("expires_at = now() + interval '1 day'", "expires_at = NULL"),
        ):
            await db.execute(f"UPDATE api_keys SET {change}".encode())
            with pytest.raises(Unauthenticated, match="no such"):
                await access.identify(made.key)
            await db.execute(f"UPDATE api_keys SET {back}".encode())
        await access.identify(made.key)
        for wrong in (made.key[:-1] + ("A" if made.key[-1] != "A" else "B"), made.key + "A", "tl_x_y", "tl_"):
            with pytest.raises(Unauthenticated):
                await access.identify(wrong)


async def test_only_a_key_with_act_as_user_names_another_user_and_a_ticket_works_once(
    nats_url: str, database_url: str
) -> None:
    async with player(nats_url, database_url, ("projectors",), api_secret=SECRET)() as stage:
        runtime, access = stage.runtime, stage.runtime.cached(Access)
        backend = await create_key(runtime, "acme", "backend", "admin", ["read", "operate", "act-as-user"])
        acting = await access.identify(backend.key, "ann")
        assert (acting.tenant, acting.user, acting.role, acting.scopes) == ("acme", "ann", "user", {"read"})
        plain = await create_key(runtime, "acme", "ann")
        ticket = await access.issue_ticket(acting)
        assert await Access(runtime).redeem(ticket) == acting
        late = await access.issue_ticket(acting)
        await revoke_key(runtime, "acme", backend.id)
        for spent in (ticket, late, "no ticket"):
            with pytest.raises(Unauthenticated):
                await access.redeem(spent)
        for credential in (plain.key, token_of(runtime, "ann", tenant="acme")):
            assert (await access.identify(credential, "ann")).user == "ann"
            with pytest.raises(Forbidden, match="act-as-user"):
                await access.identify(credential, "bob")
