"""An event is shown with its causes, its effects and the rows that refer to it; a tenant's events are listed."""

import httpx2
from helpers.api import Api, server_events


async def shown(client: httpx2.AsyncClient, seq: int) -> dict[str, list[dict[str, object]]]:
    response = await client.get(f"/api/threads/t/events/{seq}")
    assert response.status_code == 200, response.text
    return response.json()  # type: ignore[no-any-return]


async def test_an_event_shows_only_causes_effects_and_rows_of_its_person(api: Api) -> None:
    async with api.client() as ann, api.client("bob") as bob:
        await ann.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "Before."}]})
        answer = (await ann.post("/api/threads/t/answers", json={"message": "My birthday is 3 May."})).json()
        turns = (await ann.get("/api/threads/t/turns")).json()["items"]
        asked, answered = turns[1]["seq"], answer["seq"]
        question = await shown(ann, asked)
        assert question["causes"] == []
        effects = [effect["type"] for effect in question["effects"]]
        assert effects[0] == "answer_requested" and {"turn_recorded", "answer_receipt"} <= set(effects)
        assert [row["content"] for row in rows_of(question, "messages")] == ["My birthday is 3 May."]
        causes = (await shown(ann, answered))["causes"]
        assert [cause["type"] for cause in causes] == ["turn_recorded", "answer_requested"]
        assert causes[0]["seq"] == asked
        for client, seq in ((bob, asked), (ann, 10**9)):
            assert (await client.get(f"/api/threads/t/events/{seq}")).status_code == 404
        await bob.post("/api/threads/of-bob/turns", json={"turns": [{"role": "user", "content": "Mine."}]})
        mine = (await bob.get("/api/threads/of-bob/turns")).json()["items"][0]["seq"]
        assert (await ann.get(f"/api/threads/t/events/{mine}")).status_code == 404


def rows_of(event: dict[str, list[dict[str, object]]], table: str) -> list[dict[str, object]]:
    return next(rows["rows"] for rows in event["rows"] if rows["table"] == table)  # type: ignore[misc]


async def test_operators_follow_the_events_of_their_tenant(api: Api) -> None:
    async with (
        api.client("root", role="admin") as root,
        api.client() as ann,
        api.client("eve", tenant="others") as other,
    ):
        assert (await ann.get("/api/operations/events")).status_code == 403
        for client in (ann, other):
            await client.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "Hello."}]})
        async with root.stream("GET", "/api/operations/events", params={"newest": 100}) as response:
            assert response.status_code == 200
            again = await ann.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "Again."}]})
            tenants = []
            async for event in server_events(response):
                tenants.append(event["data"]["event"]["tenant"])
                if event["data"]["seq"] == again.json()[-1]["seq"]:
                    assert "Again." not in str(event["data"]), "what other people said stays sealed"
                    break
        assert set(tenants) == {"default"}
