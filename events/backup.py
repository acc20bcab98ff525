"""Backs up and restores a stream in the form of `nats stream backup`: a folder with backup.json and stream.tar.s2."""

import asyncio
import json
from pathlib import Path
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

from turnlog.events.errors import TurnlogError
from turnlog.events.log import nats_errors

CHUNK_BYTES = 128 * 1024
SILENCE_S = 30.0
STATE, DATA = "backup.json", "stream.tar.s2"


class BackupFailed(TurnlogError):
    """A backup of a stream could not be written or restored."""

    code = "backup-failed"


async def back_up(nc: Client, stream: str, folder: Path) -> int:
    """Writes the current stream without its consumers to the folder; returns its last sequence. Raises BackupFailed,
    LogUnavailable."""
    inbox, chunks = nc.new_inbox(), asyncio.Queue[Msg]()
    with nats_errors(f"cannot back up the stream {stream}"):
        subscription = await nc.subscribe(inbox, cb=chunks.put)
        try:
            ask = {"deliver_subject": inbox, "no_consumers": True, "chunk_size": CHUNK_BYTES}
            about = await _asked(nc, f"$JS.API.STREAM.SNAPSHOT.{stream}", ask)
            state = {"config": about["config"], "state": about["state"]}
            (folder / STATE).write_text(json.dumps(state))
            with (folder / DATA).open("wb") as file:
                while (chunk := await asyncio.wait_for(chunks.get(), SILENCE_S)).data:
                    file.write(chunk.data)
                    if chunk.reply:
                        await nc.publish(chunk.reply)
        finally:
            await subscription.unsubscribe()
    if (chunk.headers or {}).get("Status", "204")[0] != "2":
        raise BackupFailed(f"NATS ended the backup of the stream {stream}: {chunk.headers}")
    return int(about["state"]["last_seq"])


def backed_up(folder: Path) -> dict[str, Any]:
    """Returns the configuration and state of the stream in a backup. Raises BackupFailed."""
    try:
        backup: dict[str, Any] = json.loads((folder / STATE).read_text())
        return {"config": backup["config"], "state": backup["state"]}
    except (OSError, ValueError, KeyError) as error:
        raise BackupFailed(f"{folder} contains no backup of a stream ({STATE}, {DATA}): {error}") from None


async def restore(nc: Client, stream: str, folder: Path) -> None:
    """Creates the stream, which must not exist, from a backup. Raises BackupFailed, LogUnavailable."""
    with nats_errors(f"cannot restore the stream {stream}"):
        where = (await _asked(nc, f"$JS.API.STREAM.RESTORE.{stream}", backed_up(folder)))["deliver_subject"]
        with (folder / DATA).open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                await nc.request(where, chunk, timeout=SILENCE_S)
        _checked(json.loads((await nc.request(where, b"", timeout=SILENCE_S)).data))


async def _asked(nc: Client, subject: str, ask: dict[str, Any]) -> dict[str, Any]:
    return _checked(json.loads((await nc.request(subject, json.dumps(ask).encode(), timeout=SILENCE_S)).data))


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        raise BackupFailed(f"NATS refused: {answer['error'].get('description')}")
    return answer
