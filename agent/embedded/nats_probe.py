"""Asks a nats-server whether it is ours and ready: a client handshake by hand.

The client library would do, but logs every refused attempt; protocol: docs.nats.io, "NATS protocol".
"""

import asyncio
import json
from contextlib import suppress
from enum import Enum

from turnlog.agent.embedded.nats_config import NatsAddress


class Answer(Enum):
    """What a nats-server at an address said."""

    NOT_YET = "nobody listens"
    STRANGER = "another server, or another token"
    READY = "ours, and it takes the token"


async def probe(address: NatsAddress, name: str) -> Answer:
    """One handshake; a server that listens has finished its JetStream recovery."""
    try:
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
    except (OSError, TimeoutError):
        return Answer.NOT_YET
    try:
        async with asyncio.timeout(5):
            return await _handshake(reader, writer, address.token, name)
    except (OSError, TimeoutError, ValueError):
        return Answer.STRANGER
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _handshake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str, name: str) -> Answer:
    verb, _, info = (await reader.readline()).partition(b" ")
    if verb != b"INFO" or json.loads(info).get("server_name") != name:
        return Answer.STRANGER
    connect = {"auth_token": token, "verbose": False, "pedantic": False, "lang": "python", "version": "0"}
    writer.write(b"CONNECT " + json.dumps(connect).encode() + b"\r\nPING\r\n")
    return Answer.READY if (await reader.readline()).startswith(b"PONG") else Answer.STRANGER
