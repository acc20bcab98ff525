"""The reads of calls that came together, on one connection: all items by key in one query, then search by search."""

from collections.abc import Sequence

from langgraph.store.base import Item, Result, SearchItem

from turnlog.consumers.langgraph.store_database import connection
from turnlog.consumers.langgraph.store_ops import Key
from turnlog.consumers.runtime import Pool
from turnlog.projectors.store_lookup import (
    ItemSearch,
    NamespaceListing,
    StoredItem,
    items_by_key,
    list_namespaces,
    search_items,
)
from turnlog.projectors.writer import Connection

Read = Key | ItemSearch | NamespaceListing


class StoreReader:
    def __init__(self, pool: Pool, tenant: str) -> None:
        self._pool, self._tenant = pool, tenant

    async def read(self, calls: Sequence[Sequence[Read]]) -> list[list[Result]]:
        """One list of results a call, in the order of its reads. Raises DatabaseUnavailable."""
        places = [(read.namespace, read.key) for call in calls for read in call if isinstance(read, Key)]
        async with connection(self._pool) as conn:
            items = await items_by_key(conn, self._tenant, places) if places else {}
            return [[await self._result(conn, read, items) for read in call] for call in calls]

    async def _result(
        self, conn: Connection, read: Read, items: dict[tuple[tuple[str, ...], str], StoredItem]
    ) -> Result:
        match read:
            case Key(namespace, key):
                found = items.get((namespace, key))
                return _item(found) if found else None
            case ItemSearch():
                return [_search_item(found) for found in await search_items(conn, self._tenant, read)]
            case NamespaceListing():
                return await list_namespaces(conn, self._tenant, read)


def _item(found: StoredItem) -> Item:
    return Item(
        value=found.value,
        key=found.key,
        namespace=found.namespace,
        created_at=found.created_at,
        updated_at=found.updated_at,
    )


def _search_item(found: StoredItem) -> SearchItem:
    return SearchItem(found.namespace, found.key, found.value, found.created_at, found.updated_at, score=found.score)
