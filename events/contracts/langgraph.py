"""Events of LangGraph's checkpointer and store. Values are plain JSON, or a serializer's bytes in base64."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from turnlog.events.contracts.base import EventContract, Frozen


class Blob(Frozen):
    """One value of a channel. encoding: the serializer's type tag; data: its bytes as base64, None for none."""

    channel: str
    version: str
    encoding: str
    data: str | None = None


class ListGrowth(Frozen):
    """The items `first …` of a list, which begins with the first base_count items of base_list.

    Items name a recorded turn (`turn`: event id) with what a turn does not hold, or hold a serialized value.
    """

    list_id: str
    first: int = Field(ge=0)
    base_list: str | None = None
    base_count: int = Field(default=0, ge=0)
    items: tuple[dict[str, Any], ...] = ()


class CheckpointSaved(EventContract):
    """A LangGraph checkpoint: its channels' new values only. checkpoint and metadata as LangGraph writes them."""

    PERSONAL: ClassVar[dict[str, Any]] = {"checkpoint": {}, "metadata": {}, "blobs": (), "lists": ()}
    MIXES_SPEAKERS: ClassVar[bool] = True
    UNSEARCHED: ClassVar[frozenset[str]] = frozenset({"blobs", "lists"})
    CONVERSES: ClassVar[bool] = True
    type: Literal["checkpoint_saved"] = "checkpoint_saved"
    checkpoint_ns: str = ""
    checkpoint_id: str
    parent_checkpoint_id: str | None = None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    run_id: str | None = None
    blobs: tuple[Blob, ...] = ()
    lists: tuple[ListGrowth, ...] = ()


class PendingWrite(Frozen):
    """One write of a task. idx: its place, negative for LangGraph's special channels."""

    idx: int
    channel: str
    encoding: str
    data: str


class CheckpointWritesSaved(EventContract):
    """Writes of one task on top of a checkpoint. replace: they replace earlier ones at the same idx."""

    PERSONAL: ClassVar[dict[str, Any]] = {"writes": ()}
    MIXES_SPEAKERS: ClassVar[bool] = True
    UNSEARCHED: ClassVar[frozenset[str]] = frozenset({"writes"})
    CONVERSES: ClassVar[bool] = True
    type: Literal["checkpoint_writes_saved"] = "checkpoint_writes_saved"
    checkpoint_ns: str = ""
    checkpoint_id: str
    task_id: str
    task_path: str = ""
    replace: bool = False
    writes: tuple[PendingWrite, ...]


class CheckpointsDropped(EventContract):
    """Removes checkpoints of one namespace, with their writes and what only they used."""

    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["checkpoints_dropped"] = "checkpoints_dropped"
    checkpoint_ns: str = ""
    checkpoint_ids: tuple[str, ...]
    reason: Literal["run", "prune"]


class StoreItemPut(EventContract):
    """An item of LangGraph's store, whole. vectors: field path → SHA-256 (hex) of the text under `model` in the
    embedding cache; without a model they are still to be embedded.
    """

    PERSONAL: ClassVar[dict[str, Any]] = {"value": {}, "vectors": {}}
    MIXES_SPEAKERS: ClassVar[bool] = False
    UNSEARCHED: ClassVar[frozenset[str]] = frozenset({"vectors"})
    type: Literal["store_item_put"] = "store_item_put"
    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any]
    model: str | None = None
    vectors: dict[str, str] = Field(default_factory=dict)


class StoreItemDeleted(EventContract):
    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["store_item_deleted"] = "store_item_deleted"
    namespace: tuple[str, ...]
    key: str
