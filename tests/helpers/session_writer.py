"""A process of writers that increment a number in the same session, for tests of concurrency.

Prints "ready" and waits for a line. Argument: [NATS URL, database URL, name of the process, number of writers] as JSON.
"""

import asyncio
import json
import sys
from collections.abc import Sequence

from turnlog.agent.conversations.sessions.sessions import Sessions
from turnlog.consumers.runtime import connection_pool
from turnlog.events.contracts import EventData, SessionUpdated
from turnlog.events.log import Log
from turnlog.events.stream import StreamOptions
from turnlog.projectors.models.sessions.state import SessionState

CHANGES = 3


async def write(nats_url: str, database_url: str, name: str, writers: int) -> None:
    def count(state: SessionState) -> Sequence[EventData]:
        slots = state.global_state.get("agent_slots", {"counter": 0, "by": {}})
        by = {**slots["by"], name: slots["by"].get(name, 0) + 1}
        return [SessionUpdated(global_state={"agent_slots": {"counter": slots["counter"] + 1, "by": by}})]

    async def writer(sessions: Sessions) -> None:
        for _ in range(CHANGES):
            await sessions.change("t", count)

    log = await Log.connect(nats_url, StreamOptions())
    async with connection_pool(database_url) as pool, Sessions(log, pool, "default") as sessions:
        await sessions.get("t")
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await asyncio.gather(*(writer(sessions) for _ in range(writers)))
    await log.close()


if __name__ == "__main__":
    asyncio.run(write(*json.loads(sys.argv[1])))
