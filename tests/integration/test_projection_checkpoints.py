"""P3 checkpoints: the conversation state in LangGraph's tables, every turn stored once."""

from samples import event, turn
from spec import Spec, seq

from turnlog.events.contracts import HistoryPruned, ThreadDeleted
from turnlog.projectors.checkpoints import CHECKPOINTS, State, checkpoint_id, pruned_through, thread_state
from turnlog.projectors.writer import Connection

SIZES = "SELECT (SELECT count(*) FROM checkpoints), (SELECT count(*) FROM checkpoint_writes)"


async def test_every_turn_is_a_checkpoint_that_names_it(db: Connection) -> None:
    await (
        Spec(db, CHECKPOINTS)
        .given(turn("one"), turn("two", "assistant"))
        .then(
            "SELECT c.checkpoint_id, c.checkpoint->>'id', w.channel, convert_from(w.blob, 'UTF8') FROM checkpoints c "
            "JOIN checkpoint_writes w USING (tenant, thread_id, checkpoint_ns, checkpoint_id) ORDER BY 1",
            [(checkpoint_id(seq(n)), checkpoint_id(seq(n)), "messages", str(seq(n))) for n in (1, 2)],
        )
    )


async def test_the_state_is_what_came_after_the_last_pruning(db: Connection) -> None:
    pruned = event(HistoryPruned(through_seq=seq(3), removed=3, remaining=1))
    spec = Spec(db, CHECKPOINTS).given(*(turn(str(i)) for i in range(4)))
    await spec.then(SIZES, [(4, 4)])
    assert await thread_state(db, "default", "t") == State(0, seq(4), 4)
    await spec.when(pruned, turn("after")).then(SIZES, [(6, 6)])
    assert await thread_state(db, "default", "t") == State(seq(3), seq(6), 2)
    assert await pruned_through(db, "default", "t") == seq(3)


async def test_an_earlier_pruning_does_not_bring_turns_back(db: Connection) -> None:
    late, early = (event(HistoryPruned(through_seq=seq(n), removed=n, remaining=0)) for n in (3, 1))
    await Spec(db, CHECKPOINTS).given(*(turn(str(i)) for i in range(4)), late, early).then(SIZES, [(6, 6)])
    assert await thread_state(db, "default", "t") == State(seq(3), seq(4), 1)


async def test_a_fully_pruned_or_unknown_thread_has_an_empty_state(db: Connection) -> None:
    spec = Spec(db, CHECKPOINTS).given(turn(), event(HistoryPruned(through_seq=seq(1), removed=1, remaining=0)))
    await spec.then(SIZES, [(2, 2)])
    assert await thread_state(db, "default", "t") == State(seq(1), 0, 0)
    assert await thread_state(db, "default", "nobody") == State(0, 0, 0)


async def test_a_deleted_thread_leaves_no_checkpoint(db: Connection) -> None:
    await (
        Spec(db, CHECKPOINTS)
        .given(turn(), event(HistoryPruned(through_seq=seq(1), removed=1, remaining=0)), turn(thread="u"))
        .when(event(ThreadDeleted()))
        .then(
            "SELECT thread_id FROM checkpoints UNION ALL SELECT thread_id FROM checkpoint_blobs "
            "UNION ALL SELECT thread_id FROM checkpoint_writes",
            [("u",), ("u",)],
        )
    )
