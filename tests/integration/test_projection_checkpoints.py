"""The read model `checkpoints` stores LangGraph's state in rows that refer to turns and lists.

Also tests which rows are dropped with a checkpoint.
"""

from base64 import b64encode
from typing import Any

import pytest
from helpers.projection_spec import Spec, seq
from helpers.sample_events import event, turn

from turnlog.events.contracts import (
    Blob,
    CheckpointSaved,
    CheckpointsDropped,
    CheckpointWritesSaved,
    Event,
    HistoryPruned,
    ListGrowth,
    PendingWrite,
    ThreadDeleted,
)
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.checkpoints.projection import CHECKPOINTS
from turnlog.projectors.models.conversation.messages import MESSAGES
from turnlog.projectors.models.conversation.thread_lookup import pruned_through, thread_overview

pytestmark = pytest.mark.slow

SIZES = (
    "SELECT (SELECT count(*) FROM checkpoints), (SELECT count(*) FROM checkpoint_blobs), "
    "(SELECT count(*) FROM checkpoint_writes), (SELECT count(*) FROM checkpoint_lists)"
)
IDS = "SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id FROM checkpoints ORDER BY 1, 2, 3"
BLOBS = "SELECT channel, version, convert_from(blob, 'UTF8') FROM checkpoint_blobs ORDER BY 1, 2, 3"
LISTS = "SELECT list_id, first, base_list, base_count, json_array_length(items) FROM checkpoint_lists ORDER BY 1, 2"


def data(text: str) -> str:
    return b64encode(text.encode()).decode()


def blob(channel: str, version: int, text: str, encoding: str = "msgpack") -> Blob:
    return Blob(channel=channel, version=str(version), encoding=encoding, data=data(text))


def listed(version: int, list_id: str) -> Blob:
    return blob("messages", version, f'{{"list": "{list_id}", "count": 1}}', "turnlog.list")


def saved(
    number: int,
    *blobs: Blob,
    parent: int | None = None,
    versions: dict[str, int] | None = None,
    thread: str = "t",
    **more: Any,
) -> Event:
    """Returns checkpoint c<number>. versions: the versions of its channels; the default is those of its blobs."""
    having = {blob.channel: blob.version for blob in blobs} if versions is None else versions
    checkpoint = CheckpointSaved(
        checkpoint_id=f"c{number}",
        parent_checkpoint_id=f"c{parent}" if parent is not None else None,
        checkpoint={"v": 4, "channel_versions": having, **more.pop("checkpoint", {})},
        metadata=more.pop("metadata", {}),
        blobs=blobs,
        **more,
    )
    return event(checkpoint, thread)


def grown(list_id: str, first: int = 0, base: str | None = None, items: int = 1) -> ListGrowth:
    return ListGrowth(list_id=list_id, first=first, base_list=base, base_count=first, items=({"value": 1},) * items)


def written(number: int, *texts: str, replace: bool = False, path: str = "p", thread: str = "t") -> Event:
    writes = tuple(PendingWrite(idx=at, channel="a", encoding="msgpack", data=data(t)) for at, t in enumerate(texts))
    batch = CheckpointWritesSaved(
        checkpoint_id=f"c{number}", task_id="task", task_path=path, replace=replace, writes=writes
    )
    return event(batch, thread)


def dropped(*numbers: int, ns: str = "") -> Event:
    ids = tuple(f"c{number}" for number in numbers)
    return event(CheckpointsDropped(checkpoint_ns=ns, checkpoint_ids=ids, reason="prune"))


async def test_a_checkpoint_is_a_row_with_its_run_and_its_sequence(db: Connection) -> None:
    await (
        Spec(db, CHECKPOINTS)
        .given(saved(1, blob("plan", 1, "x"), run_id="r", metadata={"step": 1}))
        .when(saved(2, parent=1, versions={"plan": 1}))
        .then(
            "SELECT checkpoint_id, parent_checkpoint_id, checkpoint -> 'channel_versions' ->> 'plan', "
            "metadata ->> 'step', run_id, seq FROM checkpoints ORDER BY 1",
            [("c1", None, "1", "1", "r", seq(1)), ("c2", "c1", "1", None, None, seq(2))],
        )
    )


async def test_remains_of_an_erased_checkpoint_make_no_row(db: Connection) -> None:
    tombstone = CheckpointSaved(checkpoint_id="c2", parent_checkpoint_id="c1", checkpoint={}, metadata={}, run_id="r")
    again = CheckpointSaved(checkpoint_id="c1", checkpoint={}, metadata={})
    await (
        Spec(db, CHECKPOINTS)
        .given(saved(1, blob("plan", 1, "x")))
        .when(event(tombstone), event(again))
        .then("SELECT checkpoint_id, checkpoint ->> 'v', seq FROM checkpoints", [("c1", "4", seq(1))])
    )


async def test_a_checkpoint_that_is_saved_again_changes_but_its_parent_and_older_values_stay(db: Connection) -> None:
    spec = Spec(db, CHECKPOINTS).given(saved(1, blob("plan", 1, "first"), parent=0))
    spec = spec.when(saved(1, blob("plan", 1, "second"), parent=7, metadata={"step": 2}))
    await spec.then("SELECT parent_checkpoint_id, metadata ->> 'step', seq FROM checkpoints", [("c0", "2", seq(2))])
    await spec.then(BLOBS, [("plan", "1", "first")])


async def test_writes_stay_unless_they_are_replaced(db: Connection) -> None:
    query = "SELECT idx, convert_from(blob, 'UTF8'), task_path FROM checkpoint_writes ORDER BY 1"
    spec = Spec(db, CHECKPOINTS).given(written(1, "a", path="first"))
    await spec.when(written(1, "b", "c", path="second")).then(query, [(0, "a", "first"), (1, "c", "second")])
    replaced = spec.when(written(1, "b", replace=True, path="second"))
    await replaced.then(query, [(0, "b", "first")])
    await replaced.when(written(1, "d")).then(query, [(0, "b", "first")])


async def test_a_list_grows_by_rows_and_another_begins_with_it(db: Connection) -> None:
    await (
        Spec(db, CHECKPOINTS)
        .given(saved(1, listed(1, "l"), lists=(grown("l", items=2),)))
        .when(saved(2, listed(2, "l"), lists=(grown("l", 2),)), saved(3, listed(3, "m"), lists=(grown("m", 1, "l"),)))
        .then(LISTS, [("l", 0, None, 0, 2), ("l", 2, None, 2, 1), ("m", 1, "l", 1, 1)])
    )


@pytest.mark.nightly
async def test_values_used_only_by_dropped_checkpoints_are_dropped(db: Connection) -> None:
    spec = Spec(db, CHECKPOINTS).given(
        saved(1, blob("a", 1, "one"), blob("s", 1, "shared")),
        written(1, "w"),
        saved(2, blob("a", 2, "two"), parent=1, versions={"a": 2, "s": 1}),
        written(2, "w"),
        saved(3, blob("a", 3, "three"), parent=2, versions={"a": 3, "s": 1}),
        written(3, "w"),
        saved(2, blob("a", 1, "other thread"), thread="u"),
        saved(2, blob("a", 1, "other namespace"), checkpoint_ns="child:1"),
    )
    await spec.then(SIZES, [(5, 6, 3, 0)])
    spec = spec.when(dropped(1, 2))
    await spec.then(IDS, [("t", "", "c3", None), ("t", "child:1", "c2", None), ("u", "", "c2", None)])
    await spec.then(
        BLOBS, [("a", "1", "other namespace"), ("a", "1", "other thread"), ("a", "3", "three"), ("s", "1", "shared")]
    )
    await spec.then("SELECT checkpoint_id FROM checkpoint_writes", [("c3",)])
    again = spec.when(saved(1, blob("a", 1, "anew")), dropped(3))
    await again.then(IDS, [("t", "", "c1", None), ("t", "child:1", "c2", None), ("u", "", "c2", None)])


async def test_a_list_stays_while_another_list_begins_with_it(db: Connection) -> None:
    spec = Spec(db, CHECKPOINTS).given(
        saved(1, listed(1, "base"), lists=(grown("base"),)),
        saved(2, listed(2, "between"), parent=1, lists=(grown("between", 1, "base"),)),
        saved(3, listed(3, "kept"), parent=2, lists=(grown("kept", 2, "between"),)),
        saved(4, listed(4, "alone"), parent=3, lists=(grown("alone"),)),
        saved(1, listed(1, "of the child"), checkpoint_ns="child:1", lists=(grown("of the child", 1, "alone"),)),
    )
    kept = [("base",), ("between",), ("kept",)]
    await spec.when(dropped(1, 2, 4), dropped(1, ns="child:1")).then("SELECT list_id FROM checkpoint_lists", kept)
    names = "SELECT list_id FROM checkpoint_lists ORDER BY 1"
    await spec.when(dropped(1, 2, 3, 4)).then(names, [("alone",), ("of the child",)])
    await spec.when(dropped(1, 2, 3, 4), dropped(1, ns="child:1")).then(SIZES, [(0, 0, 0, 0)])


async def test_writes_that_came_before_their_checkpoint_wait_for_it(db: Connection) -> None:
    spec = Spec(db, CHECKPOINTS).given(saved(1), saved(2, parent=1), written(3, "early")).when(dropped(1))
    await spec.when(saved(3, parent=2)).then(
        "SELECT c.checkpoint_id FROM checkpoints c JOIN checkpoint_writes w USING (checkpoint_id)", [("c3",)]
    )


async def test_turns_alone_make_no_checkpoint(db: Connection) -> None:
    await Spec(db, CHECKPOINTS).given(turn("one"), turn("two", "assistant")).then(SIZES, [(0, 0, 0, 0)])


async def test_the_state_contains_everything_after_the_last_pruning(db: Connection) -> None:
    pruned = event(HistoryPruned(through_seq=seq(3), removed=3, remaining=1))
    early = event(HistoryPruned(through_seq=seq(1), removed=1, remaining=0))
    turns = [turn(str(at)) for at in range(4)]

    async def state(thread: str = "t") -> tuple[int, int, int]:
        now = await thread_overview(db, "default", thread)
        return now.pruned_through, now.last_seq, now.count

    await Spec(db, MESSAGES).given(*turns).then("SELECT count(*) FROM messages", [(4,)])
    await Spec(db, CHECKPOINTS).given(pruned).then(SIZES, [(0, 1, 0, 0)])
    assert await state() == (seq(3), seq(4), 1)
    await Spec(db, CHECKPOINTS).given(pruned, early).then(SIZES, [(0, 2, 0, 0)])
    assert await pruned_through(db, "default", "t") == seq(3)
    assert await state("nobody") == (0, 0, 0)


async def test_an_unrelated_channel_of_the_same_name_does_not_prune(db: Connection) -> None:
    mine = saved(1, blob("pruned_through", 1, "not a number"))
    await Spec(db, CHECKPOINTS).given(mine).then(SIZES, [(1, 1, 0, 0)])
    assert await pruned_through(db, "default", "t") == 0
    assert (await thread_overview(db, "default", "t")).pruned_through == 0


async def test_pruning_history_survives_dropped_checkpoints(db: Connection) -> None:
    pruned = event(HistoryPruned(through_seq=seq(1), removed=1, remaining=0))
    spec = Spec(db, CHECKPOINTS).given(pruned, saved(1, blob("pruned_through", 1, "mine"))).when(dropped(1))
    await spec.then(SIZES, [(0, 1, 0, 0)])
    assert await pruned_through(db, "default", "t") == seq(1)


async def test_a_deleted_thread_leaves_nothing(db: Connection) -> None:
    of = [saved(1, listed(1, "l"), lists=(grown("l"),), thread=thread) for thread in "tu"]
    await (
        Spec(db, CHECKPOINTS)
        .given(*of, written(1, "a"), written(1, "b", thread="u"))
        .when(event(ThreadDeleted()))
        .then(
            "SELECT thread_id FROM checkpoints UNION ALL SELECT thread_id FROM checkpoint_blobs "
            "UNION ALL SELECT thread_id FROM checkpoint_writes UNION ALL SELECT thread_id FROM checkpoint_lists",
            [("u",)] * 4,
        )
    )
