"""The bots of docs/groups.md store messages in the formats of Slack, Discord and Teams."""

import hashlib
import hmac
import importlib
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from helpers.api import Api, Serve
from helpers.json_server import answering
from helpers.markdown_examples import files

from turnlog.agent.access.api_keys import create_key

SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
APP_ID = "5e7f1c2a-6e55-4b44-9f5c-0e2f6e1c6a10"
SERVICE = "https://smba.trafficmanager.net/amer/"
CONVERSATION = "19:253b1f341670408fb6fe51050b6e5ceb@thread.skype;messageid=1485983194839"


class Bot:
    """A program of the page and its conversation in turnlog."""

    def __init__(self, module: Any, path: str) -> None:
        self._turnlog: httpx.AsyncClient = sys.modules["group_chat"].turnlog
        self._chat = httpx.AsyncClient(transport=httpx.ASGITransport(module.app), base_url="http://bot")
        self._path = path

    async def send(self, body: bytes, headers: Mapping[str, str]) -> httpx.Response:
        return await self._chat.post(self._path, content=body, headers=headers)

    async def turns(self, thread: str) -> list[tuple[str, str, str, str]]:
        items = (await self._turnlog.get(f"/api/threads/{quote(thread, safe='')}/turns")).json()["items"]
        return [(turn["user"], turn["name"], turn["content"], turn["origin"]) for turn in items]


@asynccontextmanager
async def bots(
    api: Api, folder: Path, monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]
) -> AsyncIterator[list[Bot]]:
    """Yields the bots of Slack, Discord and Teams."""
    key = await create_key(api.runtime, "default", "chat-bot", "user", ["read", "write", "act-as-user"])
    for variable, value in {**environment, "SERVER_URL": api.url, "SERVER_KEY": key.key}.items():
        monkeypatch.setenv(variable, value)
    for file, program in files("docs/groups.md").items():
        (folder / file).write_text(program)
    monkeypatch.syspath_prepend(str(folder))
    paths = {"slack_bot": "/slack/events", "discord_bot": "/discord/interactions", "teams_bot": "/api/messages"}
    try:
        yield [Bot(importlib.import_module(name), path) for name, path in paths.items()]
    finally:
        await sys.modules["group_chat"].turnlog.aclose()
        for name in ("group_chat", *paths):
            sys.modules.pop(name, None)


def slack_message(event_id: str, user: str, text: str, **more: str) -> dict[str, Any]:
    """Returns an event in the form of docs.slack.dev/reference/events/message.channels."""
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


def signed_by_slack(body: bytes, secret: str = SECRET) -> dict[str, str]:
    now = str(int(time.time()))
    made = hmac.new(secret.encode(), f"v0:{now}:".encode() + body, hashlib.sha256).hexdigest()
    return {"X-Slack-Request-Timestamp": now, "X-Slack-Signature": f"v0={made}", "Content-Type": "application/json"}


def discord_command(id_: str, user: str, name: str, text: str) -> bytes:
    """Returns an interaction in the form of docs.discord.com/developers/interactions/receiving-and-responding."""
    author = {"id": user, "username": name, "global_name": None, "avatar": None, "discriminator": "0"}
    option = {"name": "text", "type": 3, "value": text}
    return json.dumps(
        {
            "type": 2,
            "token": "A_UNIQUE_TOKEN",
            "id": id_,
            "application_id": "845027738276462632",
            "guild_id": "290926798626357999",
            "channel_id": "645027906669510667",
            "member": {"user": author, "roles": [], "joined_at": "2017-03-13T19:19:14.040000+00:00"},
            "data": {"options": [option], "type": 1, "name": "say", "id": "771825006014889984"},
            "locale": "en-US",
            "version": 1,
        }
    ).encode()


def signed_by_discord(key: Ed25519PrivateKey, body: bytes) -> dict[str, str]:
    now = str(int(time.time()))
    return {"X-Signature-Timestamp": now, "X-Signature-Ed25519": key.sign(now.encode() + body).hex()}


def teams_message(id_: str, user: str, name: str, text: str, channel: str = "msteams") -> bytes:
    """Returns an activity in the form of learn.microsoft.com/microsoftteams/platform/bots."""
    return json.dumps(
        {
            "type": "message",
            "id": id_,
            "timestamp": "2026-02-01T21:06:34.839Z",
            "serviceUrl": SERVICE,
            "channelId": channel,
            "from": {"id": "29:1XJKJMvc5GBtc2JwZq0oj8tHZmzrQgFmB39ATiQWA85gQtHieVkKilBZ9XHoq9j7Zaqt", "name": name}
            | {"aadObjectId": user},
            "conversation": {"isGroup": True, "id": CONVERSATION, "conversationType": "channel"},
            "recipient": {"id": "28:c9e8c047-2a34-40a1-b28a-b162d5f5327c", "name": "Notes"},
            "text": f"<at>Notes</at> {text}",
            "textFormat": "plain",
        }
    ).encode()


def signed_by_teams(key: RSAPrivateKey, **changed: Any) -> dict[str, str]:
    now = time.time()
    claims = {
        "iss": "https://api.botframework.com",
        "aud": APP_ID,
        "serviceurl": SERVICE,
        "nbf": now,
        "exp": now + 3600,
    }
    token = jwt.encode(claims | changed, key, "RS256", {"kid": "k1"})
    return {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}


async def test_the_bots_store_each_message_once_as_its_speakers(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    discord_key, teams_key = Ed25519PrivateKey.generate(), generate_private_key(65537, 2048)
    listed = {**jwt.get_algorithm_by_name("RS256").to_jwk(teams_key.public_key(), as_dict=True), "kid": "k1"}
    documents: dict[str, Any] = {"/keys": {"keys": [{**listed, "endorsements": ["msteams"]}]}}
    with answering(lambda path, *_: documents[path]) as (url, _queries):
        documents["/metadata"] = {"jwks_uri": f"{url}keys"}
        environment = {
            "SLACK_SIGNING_SECRET": SECRET,
            "DISCORD_PUBLIC_KEY": discord_key.public_key().public_bytes_raw().hex(),
            "MICROSOFT_APP_ID": APP_ID,
            "BOT_METADATA": f"{url}metadata",
        }
        async with serve() as api, bots(api, tmp_path, monkeypatch, environment) as (slack, discord, teams):
            await slack_stores_messages(slack)
            await discord_stores_commands(discord, discord_key)
            await teams_stores_messages(teams, teams_key)


async def slack_stores_messages(bot: Bot) -> None:
    async def send(event: dict[str, Any], secret: str = SECRET) -> httpx.Response:
        body = json.dumps(event).encode()
        return await bot.send(body, signed_by_slack(body, secret))

    challenge = {"type": "url_verification", "challenge": "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"}
    assert (await send(challenge)).json() == {"challenge": challenge["challenge"]}
    nuts = slack_message("Ev1", "U061F7AUR", "I am allergic to nuts.")
    assert (await send(nuts, "another secret")).status_code == 401
    for event in (
        nuts,
        nuts,
        slack_message("Ev2", "U0G9QF9C6", "Noted."),
        slack_message("Ev3", "U061F7AUR", "joined", subtype="channel_join"),
        slack_message("Ev4", "U0BOT", "Hello.", bot_id="B1"),
    ):
        assert (await send(event)).status_code == 200
    assert await bot.turns("slack/T061EG9R6/C0LAN2Q65/1515449438.000011") == [
        ("bob@example.com", "Bob", "I am allergic to nuts.", "person"),
        ("chat-bot", "U0G9QF9C6", "Noted.", "participant"),
    ]


async def discord_stores_commands(bot: Bot, key: Ed25519PrivateKey) -> None:
    ping = b'{"type": 1}'
    assert (await bot.send(ping, signed_by_discord(key, ping))).json() == {"type": 1}
    nuts = discord_command("786008729715212338", "53908232506183680", "bob", "I am allergic to nuts.")
    for forged in (signed_by_discord(Ed25519PrivateKey.generate(), nuts), signed_by_discord(key, ping), {}):
        assert (await bot.send(nuts, forged)).status_code == 401
    for body in (nuts, nuts, discord_command("786008729715212339", "80351110224678912", "nelly", "Noted.")):
        shown = await bot.send(body, signed_by_discord(key, body))
    assert shown.json() == {"type": 4, "data": {"content": "Noted.", "allowed_mentions": {"parse": []}}}
    assert await bot.turns("discord/290926798626357999/645027906669510667") == [
        ("bob@example.com", "Bob", "I am allergic to nuts.", "person"),
        ("chat-bot", "nelly", "Noted.", "participant"),
    ]


async def teams_stores_messages(bot: Bot, key: RSAPrivateKey) -> None:
    bob = "8c0a1a67-50ce-4114-bb6c-da9c5dbcf6ca"
    nuts = teams_message("1485983194839", bob, "Bob Stone", "I am allergic to nuts.")
    for body, forged in (
        (nuts, {"Authorization": signed_by_teams(key)["Authorization"][:-9] + "AAAAAAAAA"}),
        (nuts, signed_by_teams(key, aud="another bot")),
        (nuts, signed_by_teams(key, iss="https://example.com")),
        (nuts, signed_by_teams(key, serviceurl="https://example.com/")),
        (nuts, signed_by_teams(key, exp=time.time() - 3600)),
        (teams_message("1", bob, "Bob Stone", "Hi.", channel="webchat"), signed_by_teams(key)),
        (nuts, {}),
    ):
        assert (await bot.send(body, forged)).status_code == 401
    other = teams_message("1485983194840", "0f9a2f2e-5f0a-4f1e-8f11-7f2b8a4f5a01", "Cy", "Noted.")
    for body in (nuts, nuts, other):
        assert (await bot.send(body, signed_by_teams(key))).status_code == 200
    assert await bot.turns(f"teams/{CONVERSATION}") == [
        ("bob@example.com", "Bob", "I am allergic to nuts.", "person"),
        ("chat-bot", "Cy", "Noted.", "participant"),
    ]
