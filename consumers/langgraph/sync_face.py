"""The synchronous methods of the saver: the async ones, run by its event loop for other threads."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from turnlog.consumers.langgraph.own_loop import WrongThread, following, refuse_closed, waited_for
from turnlog.events.log import Log

T = TypeVar("T")


class SyncFace(BaseCheckpointSaver[str]):
    """For threads other than the event loop's. Every method raises WrongThread on that one, and Closed after `open`."""

    loop: asyncio.AbstractEventLoop
    _log: Log

    @property
    def is_closed(self) -> bool:
        return self._log.is_closed

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._run(self.aget_tuple(config), "aget_tuple")

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        found: AsyncIterator[CheckpointTuple] = self.alist(config, filter=filter, before=before, limit=limit)
        while (one := self._run(following(found), "alist")) is not None:
            yield one

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self._run(self.aput(config, checkpoint, metadata, new_versions), "aput")

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self._run(self.aput_writes(config, writes, task_id, task_path), "aput_writes")

    def delete_thread(self, thread_id: str) -> None:
        self._run(self.adelete_thread(thread_id), "adelete_thread")

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._run(self.adelete_for_runs(run_ids), "adelete_for_runs")

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self._run(self.acopy_thread(source_thread_id, target_thread_id), "acopy_thread")

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self._run(self.aprune(thread_ids, strategy=strategy), "aprune")

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        found = self.aget_delta_channel_history(config=config, channels=channels)
        return self._run(found, "aget_delta_channel_history")

    def _run(self, work: Coroutine[Any, Any, T], name: str) -> T:
        with contextlib.suppress(RuntimeError):
            if asyncio.get_running_loop() is self.loop:
                work.close()
                refuse_closed(self)
                raise WrongThread(
                    "a synchronous call of TurnlogSaver in its own event loop would wait for itself; use "
                    f"`await saver.{name}(...)`, or `await graph.ainvoke(...)` instead of `graph.invoke(...)`"
                )
        return waited_for(self, work)
