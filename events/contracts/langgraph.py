"""Events of LangGraph's checkpointer and store. Values are plain JSON, or a serializer's bytes in base64."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from turnlog.events.contracts.base import EventContract, Frozen


class Blob(Frozen):
    """One value of a channel. encoding: the serializer's type tag. data: the serialized value as base64, or None."""

    channel: str
    version: str
    encoding: str
    data: str | None = None


class ListGrowth(Frozen):
    """The items of a list from position `first` on. The list begins with the first base_count items of base_list.

    An item is a serialized value, or the event id of a recorded turn (`turn`) with the data that the turn lacks.
    """

    list_id: str
    first: int = Field(ge=0)
    base_list: str | None = None
    base_count: int = Field(default=0, ge=0)
    items: tuple[dict[str, Any], ...] = ()


class CheckpointSaved(EventContract):
    """A LangGraph checkpoint with the new values of its channels. checkpoint, metadata: as LangGraph writes them."""

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
    """One write of a task. idx: its position in the task; negative for LangGraph's special channels."""

    idx: int
    channel: str
    encoding: str
    data: str


class CheckpointWritesSaved(EventContract):
    """Writes of one task on top of a checkpoint. replace: True if they replace earlier writes with the same idx."""

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
    """Removes checkpoints of one namespace, with their writes and the values and lists that only they used."""

    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["checkpoints_dropped"] = "checkpoints_dropped"
    checkpoint_ns: str = ""
    checkpoint_ids: tuple[str, ...]
    reason: Literal["run", "prune"]


class StoreItemPut(EventContract):
    """An entire item of LangGraph's store. vectors: field path → SHA-256 (hex) of its text, under which the embedding
    cache has the vector of `model`. model: None if the texts are still to be embedded, or if there are none.
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
