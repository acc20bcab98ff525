"""The plan of due work for a thread is a pure decision, which properties test on many threads."""

from collections.abc import Sequence

from helpers.context_messages import assistant, tool, turn, user
from hypothesis import given
from hypothesis import strategies as st

from turnlog.agent.conversations.summarising.derive import PIECE_TEXTS, PIECE_TOKENS, pieces
from turnlog.agent.conversations.summarising.due_work import KEPT, Facts, Plan, plan, prune_through
from turnlog.agent.conversations.summarising.facts import texts
from turnlog.agent.settings import Settings
from turnlog.projectors.models.conversation.message import Message

SETTINGS = Settings(home="unused", max_messages_per_thread=200)
OFF = Settings(home="unused", enable_summary=False)


def chat(count: int) -> list[Message]:
    return [turn("user" if n % 2 else "assistant", f"m{n}", seq=n) for n in range(1, count + 1)]


def due(count: int, summarised: int = 0, tagged: int = 0, settings: Settings = SETTINGS) -> Plan:
    return plan(Facts(chat(count), summarised, tagged), settings)


def test_nothing_is_due_for_an_empty_or_a_short_thread() -> None:
    assert due(0).nothing
    assert due(9).nothing


def test_topics_are_due_from_ten_untagged_messages_on() -> None:
    assert due(10) == Plan(tag_through=10)
    assert due(19, tagged=10).nothing
    assert due(20, tagged=10) == Plan(tag_through=20)


def test_a_summary_is_due_from_thirty_messages_on_without_the_newest_ten() -> None:
    assert due(29, tagged=29).nothing
    assert due(30, tagged=30) == Plan(summarise_through=20)


def test_a_summary_is_due_again_after_five_more_messages() -> None:
    assert due(34, summarised=20, tagged=34).nothing
    assert due(35, summarised=20, tagged=35) == Plan(summarise_through=25)


def test_without_summaries_other_work_is_still_due() -> None:
    assert due(40, settings=OFF) == Plan(tag_through=40)
    assert due(201, settings=OFF) == Plan(tag_through=21, prune_through=21)


def test_over_two_hundred_messages_the_oldest_go_and_are_tagged_and_summarised_before() -> None:
    assert due(200, 190, 200).nothing
    assert due(201, 190, 200) == Plan(prune_through=21)
    assert due(201) == Plan(summarise_through=21, tag_through=21, prune_through=21)
    assert due(600).prune_through == 420


def test_the_cut_moves_after_a_result_whose_call_is_pruned() -> None:
    messages = chat(201)
    messages[19:23] = [assistant("", "a", "b", seq=20), tool("a", seq=21), user("meanwhile", seq=22), tool("b", seq=23)]
    assert prune_through(messages, 200) == 23


def test_the_cut_moves_before_a_call_whose_result_is_among_the_newest() -> None:
    messages = chat(201)
    messages[19] = assistant("", "a", seq=20)
    messages[-1] = tool("a", seq=201)
    assert prune_through(messages, 200) == 19


def test_a_result_without_a_call_does_not_prevent_pruning() -> None:
    messages = chat(201)
    messages[21] = tool("never called", seq=22)
    assert prune_through(messages, 200) == 21


@st.composite
def threads(draw: st.DrawFn) -> list[Message]:
    """Generates turns with calls whose results come soon, late or never."""
    messages: list[Message] = []
    waiting: list[str] = []
    for seq in range(1, draw(st.integers(1, 90)) + 1):
        kind = draw(st.sampled_from(["user", "assistant", "call", "result"]))
        if kind == "call":
            waiting.append(f"call_{seq}")
            messages.append(assistant("", waiting[-1], seq=seq))
        elif kind == "result" and waiting:
            messages.append(tool(waiting.pop(draw(st.integers(0, len(waiting) - 1))), seq=seq))
        else:
            messages.append(turn("user" if kind == "user" else "assistant", "words", seq=seq))
    return messages


@given(threads(), st.integers(30, 60))
def test_pruning_never_separates_a_call_from_its_result_and_keeps_the_newest_messages(
    messages: list[Message], limit: int
) -> None:
    through = prune_through(messages, limit)
    if through is None:
        return
    gone, left = [m for m in messages if m.seq <= through], [m for m in messages if m.seq > through]
    assert len(messages) > limit
    assert len(left) >= KEPT
    assert not called(gone) & {m.tool_call_id for m in left}


def called(messages: Sequence[Message]) -> set[str | None]:
    return {call["id"] for message in messages for call in message.tool_calls}


@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 400))
def test_completed_work_is_not_due_again(count: int, summarised: int, tagged: int) -> None:
    """After at most three rounds nothing is due, and no progress is lost."""
    messages = chat(count)
    for _ in range(3):
        planned = plan(Facts(messages, summarised, tagged), SETTINGS)
        assert (planned.summarise_through or summarised) >= summarised
        assert (planned.tag_through or tagged) >= tagged
        summarised, tagged = planned.summarise_through or summarised, planned.tag_through or tagged
        messages = [m for m in messages if m.seq > (planned.prune_through or 0)]
    assert plan(Facts(messages, summarised, tagged), SETTINGS).nothing


@given(st.lists(st.text("ab ", max_size=40), max_size=200))
def test_pieces_hold_every_text_in_order_within_their_bounds(texts: list[str]) -> None:
    made = pieces(texts, lambda text: len(text) * 40)
    assert [text for piece in made for text in piece] == texts
    assert all(len(piece) <= PIECE_TEXTS for piece in made)
    assert all(sum(len(text) * 40 for text in piece) <= PIECE_TOKENS for piece in made)


def test_a_text_longer_than_a_piece_is_cut() -> None:
    asked: list[int] = []

    def count(text: str) -> int:
        asked.append(len(text))
        return len(text) // 2

    [[text]] = pieces(["x" * 10_000_000], count)
    assert PIECE_TOKENS * 2 - 4 <= len(text) <= PIECE_TOKENS * 2 + 1
    assert max(asked) <= PIECE_TOKENS * 6


def test_summaries_and_topics_read_nothing_that_only_repeats_memory() -> None:
    told = [
        turn("user", "My corgi is called Sesame."),
        turn("tool", '{"items": []}', name="recall_memory", tool_call_id="c1"),
        turn("assistant", "[offline, no language model configured] I found:", model="offline-extractive"),
        turn("tool", "12 degrees", name="weather", tool_call_id="c2"),
    ]
    assert texts(told) == ["user: My corgi is called Sesame.", "weather: 12 degrees"]
