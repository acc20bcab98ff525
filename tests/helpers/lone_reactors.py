"""Runs one reactor alone on a stage, with short pauses after failures of the model."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from helpers.stage import Stage

from turnlog.consumers.workers.app import Interval, Subscription, consuming
from turnlog.consumers.workers.durable_consumer import DurableConsumer
from turnlog.consumers.workers.reactors import extraction, segments
from turnlog.consumers.workers.reactors.extraction import ExtractionReactor
from turnlog.consumers.workers.reactors.segments import SegmentReactor
from turnlog.events.subjects import type_filter


@asynccontextmanager
async def extracting(stage: Stage) -> AsyncIterator[None]:
    """Extracts memories while the block runs; a failed model is retried twice without a pause."""
    reactor = ExtractionReactor(stage.runtime, stage.runtime.models, pauses_s=(0.0, 0.0), poll_s=0.05)
    consumer = DurableConsumer(stage.runtime.pool, extraction.NAME, reactor.work)
    subscription = Subscription(consumer, type_filter("turn_recorded"))
    async with consuming(stage.runtime, "reactors", [subscription], [Interval("extraction-sweep", reactor.sweep)]):
        yield


@asynccontextmanager
async def making_checkpoints(stage: Stage, pause_s: float = 0.0) -> AsyncIterator[None]:
    """Makes checkpoints of sessions while the block runs. pause_s: the pause before each of the three retries."""
    reactor = SegmentReactor(stage.runtime, stage.runtime.models, [pause_s] * len(segments.PAUSES_S))
    consumer = DurableConsumer(stage.runtime.pool, segments.NAME, reactor.work)
    subscription = Subscription(consumer, type_filter("segment_checkpoint_requested"))
    async with consuming(stage.runtime, "reactors", [subscription]):
        yield
