"""The profile reactor: a language model writes a user's profile text when enough lines of the profile have changed."""

from turnlog.agent.memory.deciding.writing import MemoriesParked, MemoryWriter, Place
from turnlog.agent.models.protocol import ChatModel
from turnlog.agent.models.spending_limit import ledger
from turnlog.agent.recall.profile_text import NAME as NAME
from turnlog.agent.recall.profile_text import write_profile_text
from turnlog.agent.runtime import Runtime
from turnlog.consumers.workers.durable_consumer import Delivery
from turnlog.events.errors import InvalidEvent, InvalidToken, NotFound
from turnlog.events.stored import recorded


class ProfileReactor:
    """Writes profile texts; its durable consumer calls work() with the memories_embedded events of one thread. Raises
    RetryLater."""

    def __init__(self, runtime: Runtime, chat: ChatModel) -> None:
        self._runtime, self._chat = runtime, chat
        self._writer = MemoryWriter(runtime.log, runtime.pool)
        self._ledger = ledger(NAME, runtime.settings, is_local=False)

    async def work(self, deliveries: list[Delivery]) -> None:
        try:
            event = recorded(await self._runtime.log.stored(max(delivery.seq for delivery in deliveries))).event
            place = Place.of_thread(event.tenant, event.user or "", event.thread)
            if place.shadow is None:
                await write_profile_text(self._runtime, self._writer, self._chat, self._ledger, place)
        except (InvalidEvent, InvalidToken, MemoriesParked, NotFound):
            return  # the projectors park the event, it was erased, or the thread is not a memory thread
