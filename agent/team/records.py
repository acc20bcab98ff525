"""A user's own documents, which tools read and write. They are items of the store, and each write is an event."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import Event, StoreItemPut
from turnlog.events.local_time import now_there
from turnlog.events.subjects import check_tenant
from turnlog.projectors.models.store.lookup import ItemSearch, items_by_key, search_items
from turnlog.projectors.models.store.projection import store_thread

SOURCE = "turnlog/team"
READS = ("store_items",)
MOST = 1_000  # maximum number of documents of a kind


@dataclass(frozen=True, slots=True)
class StoredRecords:
    """The documents of one user in one team, in the store's namespaces (team, user, kind). Raises NotProjectedInTime,
    LogUnavailable, InvalidToken."""

    runtime: Runtime
    tenant: str
    user: str
    team: str

    async def get(self, kind: str, key: str) -> dict[str, Any] | None:
        """Returns a document; None if there is none."""
        item_key = (await self._settled(kind), key)
        async with self.runtime.pool.connection() as conn:
            items = await items_by_key(conn, self.tenant, [item_key])
        return items[item_key].value if item_key in items else None

    async def all(self, kind: str) -> dict[str, dict[str, Any]]:
        """Returns the documents of a kind by key, newest first, at most MOST."""
        namespace = await self._settled(kind)
        async with self.runtime.pool.connection() as conn:
            items = await search_items(conn, self.tenant, ItemSearch(namespace, limit=MOST))
        return {item.key: item.value for item in items}

    async def put(self, kind: str, key: str, value: Mapping[str, Any], effect: UUID) -> None:
        """Stores a document in place of the previous one. effect: the event's id derives from it, so that a repeated
        call changes nothing."""
        namespace = self._namespace(kind)
        await self.runtime.log.append(
            Event(
                id=uuid.uuid5(effect, f"{kind}/{key}"),
                source=SOURCE,
                time=now_there(),
                tenant=check_tenant(self.tenant),
                thread=store_thread(namespace),
                user=self.user,
                data=StoreItemPut(namespace=namespace, key=key, value=dict(value)),
            )
        )

    async def _settled(self, kind: str) -> tuple[str, str, str]:
        namespace = self._namespace(kind)
        await self.runtime.wait_until_thread_projected(self.tenant, store_thread(namespace), READS)
        return namespace

    def _namespace(self, kind: str) -> tuple[str, str, str]:
        """Returns the namespace of a kind. Ids are escaped, because labels cannot contain dots, but ids such as mail
        addresses do.
        """
        return self.team, self.user.replace("%", "%25").replace(".", "%2E"), kind
