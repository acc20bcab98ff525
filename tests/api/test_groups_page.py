"""The Slack bot of docs/groups.md stores events as Slack sends them."""

import hashlib
import hmac
import json
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from helpers.api import Serve

from turnlog.agent.access.api_keys import create_key

PAGE = Path(__file__).parents[2] / "docs" / "groups.md"
SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
THREAD = "slack/T061EG9R6/C0LAN2Q65/1515449438.000011"


def message(event_id: str, user: str, text: str, **more: str) -> dict[str, Any]:
    """An event as docs.slack.dev/reference/events/message.channels shows it."""
    event = {"type": "message", "channel": "C0LAN2Q65", "user": user, "text": text, "event_ts": "1515449522.000016"}
    return {
        "token": "XXYYZZ",
        "team_id": "T061EG9R6",
        "api_app_id": "A0MDYCDME",
        "event": event
        | {"ts": "1515449522.000016", "channel_type": "channel", "thread_ts": "1515449438.000011"}
        | more,
        "type": "event_callback",
        "event_id": event_id,
        "event_time": 1515449522,
    }


def signed(body: bytes, secret: str = SECRET) -> dict[str, str]:
    now = str(int(time.time()))
    made = hmac.new(secret.encode(), f"v0:{now}:".encode() + body, hashlib.sha256).hexdigest()
    return {"X-Slack-Request-Timestamp": now, "X-Slack-Signature": f"v0={made}", "Content-Type": "application/json"}


async def test_the_slack_bot_stores_each_message_once_as_its_speakers(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    [program] = re.findall(r"```python slack\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    async with serve() as api:
        key = await create_key(api.runtime, "default", "slack-bot", "user", ["read", "write", "act-as-user"])
        for name, value in (("SLACK_SIGNING_SECRET", SECRET), ("SERVER_URL", api.url), ("SERVER_KEY", key.key)):
            monkeypatch.setenv(name, value)
        bot: dict[str, Any] = {}
        exec(compile(program, str(PAGE), "exec"), bot)
        transport = httpx.ASGITransport(bot["app"])
        async with bot["turnlog"] as turnlog, httpx.AsyncClient(transport=transport, base_url="http://bot") as slack:

            async def send(event: dict[str, Any], secret: str = SECRET) -> httpx.Response:
                body = json.dumps(event).encode()
                return await slack.post("/slack/events", content=body, headers=signed(body, secret))

            challenge = {
                "type": "url_verification",
                "challenge": "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P",
            }
            assert (await send(challenge)).json() == {"challenge": challenge["challenge"]}
            nuts = message("Ev1", "U061F7AUR", "I am allergic to nuts.")
            assert (await send(nuts, "another secret")).status_code == 401
            for event in (
                nuts,
                nuts,
                message("Ev2", "U0G9QF9C6", "Noted."),
                message("Ev3", "U061F7AUR", "joined", subtype="channel_join"),
                message("Ev4", "U0BOT", "Hello.", bot_id="B1"),
            ):
                assert (await send(event)).status_code == 200
            found = await turnlog.get(f"/api/threads/{quote(THREAD, safe='')}/turns")
        assert [(turn["user"], turn["name"], turn["content"], turn["origin"]) for turn in found.json()["items"]] == [
            ("bob@example.com", "Bob", "I am allergic to nuts.", "person"),
            ("slack-bot", "U0G9QF9C6", "Noted.", "participant"),
        ]
