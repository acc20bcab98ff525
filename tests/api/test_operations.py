"""Operators use lag, dead letters, rebuilds, usage, keys and tickets over HTTP, only for their own tenant."""

import json
from datetime import datetime, timedelta
from typing import Any

import httpx2
import pytest
from helpers.api import Serve

from turnlog.agent.access.access import Access
from turnlog.agent.access.api_keys import NewKey, create_key
from turnlog.agent.access.identity import Unauthenticated
from turnlog.events.subjects import publish_subject

pytestmark = pytest.mark.slow

USAGE = """
INSERT INTO usage
SELECT 'default', date '2026-11-01' + n, 'p' || n, 'agent', 'answer', 'openai', 'm', 1, 9, 9, n, 0, 5, 5
FROM generate_series(0, 4) n"""
SAID = {"turns": [{"role": "user", "content": "My corgi is called Sesame."}]}


async def test_an_operator_sees_lag_usage_and_rebuilds_the_tenants_rows(serve: Serve) -> None:
    async with serve() as api, api.client("root", role="admin") as admin, api.client() as ann:
        await ann.post("/api/threads/t/turns", json=SAID)
        await ann.get("/api/threads/t/turns")  # waits until the rows exist
        lag = (await admin.get("/api/operations/lag")).json()
        assert "messages" in {row["projection"] for row in lag["projections"]}
        assert {job["job"] for job in (await admin.get("/api/operations/schedule")).json()} >= {"decay", "caches"}
        empty: Any = {"items": [], "next": None}
        for path, none in (("/api/operations/usage", empty), ("/api/operations/users/ann/usage", [])):
            assert (await admin.get(path)).json() == none
            assert (await ann.get(path)).status_code == 403
        async with api.runtime.pool.connection() as conn:
            await conn.execute("DELETE FROM messages")
        assert (await ann.get("/api/threads/t/turns")).json()["items"] == []
        begun = await admin.post("/api/operations/rebuild", json={})
        assert (begun.status_code, begun.json()["state"]) == (202, "running"), begun.text
        path = f"/api/jobs/{begun.json()['id']}"
        async with admin.stream("GET", f"{path}/events") as response:
            lines = [line async for line in response.aiter_lines() if line.startswith(("event:", "data:"))]
        assert lines[-2] == "event: done", lines
        assert "messages" in {row["projection"] for row in json.loads(lines[-1][5:])["result"]}
        assert len((await ann.get("/api/threads/t/turns")).json()["items"]) == 1
        assert (await admin.get(path)).json()["state"] == "done"
        assert (await ann.get(path)).status_code == 404
        assert (await ann.get("/api/jobs")).json() == []


async def test_usage_is_paged_by_descending_cost(serve: Serve) -> None:
    async with serve() as api, api.client("root", role="admin") as admin:
        async with api.runtime.pool.connection() as conn:
            await conn.execute(USAGE)
        for by, keys in (("user", ["p4", "p3", "p2", "p1", "p0"]), ("day", [f"2026-11-0{n}" for n in range(5, 0, -1)])):
            seen, cursor = list[str](), {}
            while True:
                page = (await admin.get("/api/operations/usage", params={"by": by, "limit": 2, **cursor})).json()
                assert len(page["items"]) <= 2
                seen += [row["key"] for row in page["items"]]
                if page["next"] is None:
                    break
                cursor = {"cursor": page["next"]}
            assert seen == keys


async def test_operators_see_only_dead_letters_of_their_tenant(serve: Serve) -> None:
    async with (
        serve() as api,
        api.client("root", role="admin") as admin,
        api.client("root", role="admin", tenant="acme") as other,
    ):
        subject = publish_subject("default", "t", "turn_recorded")
        seq = (await api.runtime.log.nc.jetstream().publish(subject, b"{")).seq
        await api.runtime.wait_until_projected()
        letters = (await admin.get("/api/operations/dead-letters")).json()["items"]
        assert {letter["seq"] for letter in letters} == {seq}
        letter = f"/api/operations/dead-letters/{seq}"
        assert (await admin.get(letter)).json()["event"] == "{"
        assert (await other.get("/api/operations/dead-letters")).json()["items"] == []
        refused = [
            await other.get(letter),
            await other.post(f"{letter}/drop", json={}),
            await other.post("/api/operations/dead-letters/retry", json={"seq": seq}),
        ]
        assert [answer.status_code for answer in refused] == [404, 404, 404]
        again = await admin.post("/api/operations/dead-letters/retry", json={"seq": seq})
        assert again.json() == {"applied": [], "parked": [seq]}
        assert (await admin.post(f"{letter}/drop", json={})).status_code == 200
        assert {letter["status"] for letter in (await admin.get("/api/operations/dead-letters")).json()["items"]} == {
            "dropped"
        }


async def test_keys_open_routes_until_they_are_revoked_and_tickets_once(serve: Serve) -> None:
    async with serve() as api, api.client("root", role="admin") as admin, api.client() as ann:
        made = (await admin.post("/api/operations/keys", json={"user": "root", "scopes": ["read"]})).json()
        header = {"Authorization": f"Bearer {made['key']}"}
        assert (await ann.get("/api/threads", headers=header)).status_code == 200
        assert [key["id"] for key in (await admin.get("/api/operations/keys")).json()["items"]] == [made["id"]]
        revoked = await admin.delete(f"/api/operations/keys/{made['id']}")
        assert (revoked.status_code, revoked.json()["revoked_at"] is None) == (200, False)
        assert (await ann.get("/api/threads", headers=header)).status_code == 401
        ticket = (await ann.post("/api/tickets")).json()["ticket"]
        access = api.runtime.cached(Access)
        assert (await access.redeem(ticket)).user == "ann"
        with pytest.raises(Unauthenticated):
            await access.redeem(ticket)


async def test_a_key_cannot_create_a_key_with_more_rights(serve: Serve) -> None:
    """A former gap allowed a key for operations only, valid for an hour, to create keys with all rights and no
    expiry."""
    async with serve() as api:
        hour: dict[str, Any] = {"role": "admin", "ttl": timedelta(hours=1)}
        operator = await create_key(api.runtime, "default", "op", scopes=["operate"], **hour)
        maker = await create_key(api.runtime, "default", "op", scopes=["operate", "keys"], **hour)
        backend = await create_key(
            api.runtime, "default", "op", "admin", ["operate", "keys", "read", "ask", "act-as-user"]
        )
        anns = await create_key(api.runtime, "default", "ann")
        foreign = await create_key(api.runtime, "other", "op", "admin", ["keys"])

        async def sent(by: NewKey, method: str = "POST", path: str = "", **fields: Any) -> httpx2.Response:
            header = {"Authorization": f"Bearer {by.key}"}
            async with httpx2.AsyncClient(base_url=api.url, headers=header, timeout=60) as client:
                body = {"json": fields} if method == "POST" else {}
                return await client.request(method, f"/api/operations/keys{path}", **body)

        async def listed(by: NewKey) -> set[str]:
            return {item["id"] for item in (await sent(by, "GET")).json()["items"]}

        for refused in (
            await sent(operator, "GET"),
            await sent(operator, user="op", role="admin", scopes=["operate"]),
            await sent(operator, "DELETE", f"/{operator.id}"),
            await sent(maker, user="ann"),
            await sent(maker, user="op", scopes=["read"]),
            await sent(maker, user="op", role="admin", scopes=["operate"], days=1),
            await sent(maker, user="op", role="admin", scopes=["operate", "act-as-user"]),
            await sent(backend, user="ann", role="admin", scopes=["operate"]),
            await sent(backend, user="ann", role="vip", scopes=["read"]),
            await sent(backend, user="ann", role="admin", scopes=["read", "act-as-user"]),
            await sent(backend, user="ann", scopes=["erase"]),
        ):
            assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), refused.text
        child = (await sent(maker, user="op", role="admin", scopes=["keys"])).json()
        assert datetime.fromisoformat(child["expires_at"]) == maker.expires_at
        made = await sent(backend, user="ann", scopes=["read", "ask"])
        assert (made.status_code, made.json()["expires_at"]) == (201, None)

        assert await listed(maker) == {operator.id, maker.id, child["id"]}
        assert await listed(backend) == {operator.id, maker.id, backend.id, child["id"], made.json()["id"]}
        assert await listed(foreign) == {foreign.id}
        for by, key in ((maker, backend), (maker, anns), (backend, anns), (foreign, maker)):
            assert (await sent(by, "DELETE", f"/{key.id}")).status_code == 404
        assert (await sent(maker, "DELETE", f"/{operator.id}")).status_code == 200
