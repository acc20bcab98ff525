"""Webhooks are signed as standard-webhooks requires, sent to allowed addresses only, and kept if delivery fails."""

import asyncio
import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from helpers.api import Serve
from helpers.redactions import replaced_in_log
from helpers.sample_events import event
from helpers.stage import Stage
from helpers.webhook_receiver import receiver

from turnlog.agent.access import webhooks
from turnlog.agent.access.webhooks import NotDelivered, RefusedTarget, signature
from turnlog.agent.settings import Settings
from turnlog.events.codec import encode
from turnlog.events.contracts import EventRedacted

LOOPBACK = {"webhook_networks": "127.0.0.0/8"}


def test_a_signature_equals_the_standards_example() -> None:
    key, body = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), b'{"test": 2432232314}'
    made = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", body)
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    "url",
    [
        *("https://127.0.0.1/", "https://[::1]/", "https://10.1.2.3/", "https://169.254.169.254/latest/meta-data"),
        *("https://[64:ff9b::7f00:1]/", "https://[2002:7f00:1::]/", "https://[::10.0.0.1]/", "https://[fec0::1]/"),
        *("https://a\nb/", "https://x:99999/", "https://localhost.:1/", "https://127.1/", "https://0x7f000001/"),
        *("https://[::ffff:10.0.0.1]/", "https://0.0.0.0/", "https://localhost/", "http://93.184.216.34/"),
        *("ftp://93.184.216.34/", "https://a:b@93.184.216.34/", "https:///x", "https://224.0.0.1/", "http://[::1"),
    ],
)
async def test_a_target_that_is_not_public_is_refused(url: str) -> None:
    with pytest.raises(RefusedTarget):
        await webhooks.pinned(Settings(webhook_networks="192.168.7.0/24"), url)


async def test_public_targets_and_targets_in_allowed_networks_are_accepted() -> None:
    settings = Settings(webhook_networks="192.168.7.0/24, fd00::/8")
    for url in ("https://93.184.216.34/x", "http://192.168.7.9:8080/", "https://[fd00::1]/"):
        assert str(await webhooks.pinned(settings, url)) == url


async def test_an_event_is_delivered_signed_and_without_the_users_words(serve: Serve) -> None:
    async with receiver() as target, serve("reactors", **LOOPBACK) as api, api.client(role="admin") as ann:
        made = await ann.post("/api/operations/webhooks", json={"name": "crm", "url": target.url})
        assert made.status_code == 201, made.text
        again = await ann.post("/api/operations/webhooks", json={"name": "crm", "url": target.url})
        assert (again.status_code, again.json()["code"]) == (409, "webhook-exists")
        await ann.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "I keep bees."}]})
        headers, body = await asyncio.wait_for(target.received.get(), 60)
        key = base64.b64decode(made.json()["secret"].removeprefix("whsec_"))
        id_, at = headers["webhook-id"], headers["webhook-timestamp"]
        assert headers["webhook-signature"] == signature(key, id_, at, body)
        sent: dict[str, Any] = json.loads(body)
        assert (sent["data"]["id"], sent["data"]["data"]["role"]) == (id_, "user")
        assert b"bees" not in body and "sealed" not in sent["data"]
        [listed] = (await ann.get("/api/operations/webhooks")).json()
        assert "secret" not in listed and listed["url"] == target.url
        assert (await ann.delete("/api/operations/webhooks/crm")).status_code == 204
        assert (await ann.get("/api/operations/webhooks")).json() == []


async def test_an_undeliverable_event_is_listed_sent_again_and_dropped(serve: Serve) -> None:
    async with receiver() as target, serve(**LOOPBACK) as api, api.client(role="admin") as ann:
        place, at = (api.runtime, "default"), "/api/operations/webhooks/crm/failures"
        await webhooks.create_webhook(*place, "crm", target.url, content=True)
        turns = {"turns": [{"role": "user", "content": "I keep bees."}]}
        seqs = [(await ann.post(f"/api/threads/t{n}/turns", json=turns)).json()[0]["seq"] for n in range(2)]
        [(_, hook, _)] = await webhooks.all_webhooks(api.runtime)
        target.status = 302
        for seq in seqs:
            with pytest.raises(NotDelivered, match="302"):
                await webhooks.deliver(*place, hook, await api.runtime.log.stored(seq))
            await webhooks.give_up(*place, "crm", seq, "the target answered 302")
        assert [delivery["seq"] for delivery in (await ann.get(at)).json()] == seqs
        assert (await ann.post(f"{at}/{seqs[0]}/retry")).json() == {"delivered": False}
        target.status = 200
        assert (await ann.post(f"{at}/{seqs[0]}/retry")).json() == {"delivered": True}
        assert (await ann.post(f"{at}/{seqs[1]}/drop")).status_code == 204
        assert (await ann.get(at)).json() == []
        assert (await ann.post(f"{at}/{seqs[1]}/drop")).status_code == 404
        async with api.client() as user:
            assert (await user.get("/api/operations/webhooks")).status_code == 403
    assert b"I keep bees." in target.received.get_nowait()[1]


async def test_a_redacted_event_is_sent_again_and_malformed_ones_are_failures_at_once(serve: Serve) -> None:
    async with receiver() as target, serve("reactors", **LOOPBACK) as api, api.client() as ann:
        log, place = api.runtime.log, (api.runtime, "default")
        made = await webhooks.create_webhook(*place, "crm", target.url, types=["turn_recorded"], content=True)
        broken = await log.nc.jetstream().publish("turnlog.default.x.turn_recorded", b'{"id": "no id"}')
        turns = {"turns": [{"role": "user", "content": "My locker opens with Zebrafish-77."}]}
        seq = (await ann.post("/api/threads/t/turns", json=turns)).json()[0]["seq"]
        forged = EventRedacted(seq=seq, stored_at=datetime.now(UTC), event_type="turn_recorded", envelope="{}")
        await log.nc.jetstream().publish("turnlog.default.t.event_redacted", encode(event(forged, "t")))
        sent = [await asyncio.wait_for(target.received.get(), 60)]
        await replaced_in_log(Stage(api.runtime), seq, "Zebrafish-77")
        sent.append(await asyncio.wait_for(target.received.get(), 60))
        assert [json.loads(body)["seq"] for _, body in sent] == [seq, seq]
        assert [json.loads(body)["data"]["data"]["content"] for _, body in sent] == [
            "My locker opens with Zebrafish-77.",
            "My locker opens with [redacted].",
        ]
        assert len({headers["webhook-id"] for headers, _ in sent}) == 1
        key = base64.b64decode(made.secret.removeprefix("whsec_"))
        assert all(
            h["webhook-signature"] == signature(key, h["webhook-id"], h["webhook-timestamp"], b) for h, b in sent
        )
        [failure] = await webhooks.list_failures(*place)
        assert (failure.seq, failure.error) == (broken.seq, "the event cannot be read")
        assert [webhook.failures for webhook in await webhooks.list_webhooks(*place)] == [1]
