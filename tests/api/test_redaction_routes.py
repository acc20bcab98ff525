"""Redaction over HTTP: the owner and an operator may redact, and a repeated request is one job."""

from helpers.api import Serve


async def test_a_redaction_sent_again_with_its_key_is_one_job_of_the_owner_or_an_operator(serve: Serve) -> None:
    turns = {"turns": [{"role": "user", "content": "My locker opens with Zebrafish-77."}]}
    async with (
        serve() as api,
        api.client() as ann,
        api.client("bob") as bob,
        api.client("root", role="admin") as operator,
        api.client("root", role="admin", tenant="acme") as elsewhere,
    ):
        seq = (await ann.post("/api/threads/t/turns", json=turns)).json()[0]["seq"]
        path, body = f"/api/threads/t/turns/{seq}/redact", {"words": "Zebrafish-77"}
        assert [(await client.post(path, json=body)).status_code for client in (bob, elsewhere)] == [404, 404]
        assert (await operator.post(f"{path}/preview", json=body)).json()["events"]["turn_recorded"] == 1
        assert (await ann.post(path, json={})).json()["code"] == "invalid-words"
        sent = [await ann.post(path, json=body, headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert [answer.status_code for answer in sent] == [202, 202], sent[1].text
        assert sent[0].json()["id"] == sent[1].json()["id"]
