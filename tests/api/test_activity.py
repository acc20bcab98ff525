"""Operators of a tenant read the hourly counts of the analytics subscriber."""

from helpers.api import Serve
from helpers.servers import eventually


async def test_activity_counts_turns_by_hour_and_role_and_is_for_operators(serve: Serve) -> None:
    async with (
        serve("analytics") as api,
        api.client() as ann,
        api.client("root", role="admin") as root,
        api.client("root", role="admin", tenant="acme") as other,
    ):
        turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello!"}]
        await ann.post("/api/threads/t/turns", json={"turns": turns})

        async def counted() -> bool:
            rows = (await root.get("/api/operations/activity", params={"hours": 2})).json()
            roles = {row["role"]: row["events"] for row in rows if row["role"]}
            return roles == {"user": 1, "assistant": 1}

        await eventually(counted)
        assert (await ann.get("/api/operations/activity")).status_code == 403
        assert (await other.get("/api/operations/activity")).json() == []
