"""LangGraph's own conformance suite passes on the real log and tables, with every capability."""

from collections.abc import AsyncIterator

import pytest
from langgraph.checkpoint.conformance import validate
from langgraph.checkpoint.conformance.capabilities import Capability, DetectedCapabilities
from langgraph.checkpoint.conformance.initializer import RegisteredCheckpointer, checkpointer_test

from turnlog.consumers.langgraph import TurnlogSaver
from turnlog.consumers.runtime import connection_pool
from turnlog.events.log import Log
from turnlog.projectors.engine.engine import Runner


@pytest.fixture
async def saver(log: Log, database_url: str, running_projectors: Runner) -> AsyncIterator[TurnlogSaver]:
    async with connection_pool(database_url) as pool:
        yield TurnlogSaver(log, pool)


def registered(saver: TurnlogSaver) -> RegisteredCheckpointer:
    @checkpointer_test(name="TurnlogSaver")
    async def turnlog_saver() -> AsyncIterator[TurnlogSaver]:
        yield saver

    return turnlog_saver


def test_turnlog_knows_eight_capabilities_and_the_saver_has_them_all() -> None:
    assert len(Capability) == 8
    assert set(Capability) == {capability for capability in Capability if capability in _detected()}


def _detected() -> frozenset[Capability]:
    return DetectedCapabilities.from_instance(TurnlogSaver.__new__(TurnlogSaver)).detected


@pytest.mark.parametrize("capability", [capability.value for capability in Capability])
async def test_a_capability_conforms(saver: TurnlogSaver, capability: str) -> None:
    report = await validate(registered(saver), capabilities={capability})
    result = report.results[capability]
    assert result.failures == []
    assert result.detected
    assert result.passed
    assert result.tests_passed > 0
    assert result.tests_failed == result.tests_skipped == 0
