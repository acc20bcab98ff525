"""A saver that runs every call on TurnlogSaver and on LangGraph's in-memory saver, and compares the results."""

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.memory import InMemorySaver

from turnlog.consumers.langgraph import TurnlogSaver

_NOT_COMPARED = frozenset({"pending_sends"})


class MirroredSaver(BaseCheckpointSaver[str]):
    """Runs calls on both savers. reads: the number of compared results."""

    def __init__(self, saver: TurnlogSaver, reference: InMemorySaver | None = None) -> None:
        super().__init__(serde=saver.serde)
        self.saver, self.reference = saver, reference or InMemorySaver(serde=saver.serde)
        self.reads = 0

    def get_next_version(self, current: str | None, channel: None) -> str:
        return self.saver.get_next_version(current, channel)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> "MirroredSaver":
        return MirroredSaver(self.saver.with_allowlist(extra_allowlist), self.reference.with_allowlist(extra_allowlist))  # type: ignore[arg-type]

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        ours, theirs = await self.saver.aget_tuple(config), await self.reference.aget_tuple(config)
        self.reads += 1
        assert_same(shown(ours), shown(theirs))
        return ours

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        ours = [saved async for saved in self.saver.alist(config, filter=filter, before=before, limit=limit)]
        theirs = [saved async for saved in self.reference.alist(config, filter=filter, before=before, limit=limit)]
        self.reads += len(ours)
        assert_same(list(map(shown, ours)), list(map(shown, theirs)))
        for saved in ours:
            yield saved

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        theirs = await self.reference.aput(config, checkpoint, metadata, new_versions)
        ours = await self.saver.aput(config, checkpoint, metadata, new_versions)
        assert ours == theirs
        return ours

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await self.reference.aput_writes(config, writes, task_id, task_path)
        await self.saver.aput_writes(config, writes, task_id, task_path)


def shown(loaded: CheckpointTuple | None) -> Any:
    """Returns all parts of a tuple with their types, and dicts sorted by key, because JSONB does not keep the order of
    keys."""
    if loaded is None:
        return None
    checkpoint = {key: value for key, value in loaded.checkpoint.items() if key not in _NOT_COMPARED}
    parts = (_place(loaded.config), checkpoint, loaded.metadata, _place(loaded.parent_config), loaded.pending_writes)
    return tuple(exact(part) for part in parts)


def _place(config: RunnableConfig | None) -> Any:
    """Returns the relevant part of a config, because the in-memory saver returns everything that it was called with."""
    names = ("thread_id", "checkpoint_ns", "checkpoint_id")
    return [config["configurable"].get(name) for name in names] if config else None


def assert_same(ours: Any, theirs: Any, path: str = "") -> None:
    """Fails at the first difference and names its path."""
    if ours == theirs:
        return
    if type(ours) is type(theirs) and isinstance(ours, list | tuple) and len(ours) == len(theirs):
        for at, (own, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(own, other, f"{path}/{own[0] if isinstance(own, tuple) and len(own) == 2 else at}")
    raise AssertionError(f"{path}: {str(ours)[:1000]} is not {str(theirs)[:1000]}")


def exact(value: Any) -> Any:
    if isinstance(value, BaseMessage):
        return (type(value), exact(value.__dict__), exact(value.__pydantic_extra__))
    if isinstance(value, dict):
        return (dict, sorted((repr(key), exact(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return (list, [exact(item) for item in value])
    return (type(value), repr(value))
