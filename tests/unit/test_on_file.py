"""Items that are stored in a file are read back unchanged."""

import tempfile
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from turnlog.agent.operations.jobs.compaction import OnFile

Item = tuple[str, int, datetime | None]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
TIMES = st.none() | st.datetimes(timezones=st.just(UTC))
ITEMS = st.lists(st.tuples(TEXTS, st.integers(-(2**60), 2**60), TIMES), max_size=20)


@given(ITEMS, ITEMS, st.slices(20), st.slices(20))
def test_a_sequence_on_file_is_the_list_of_its_items(first: list[Item], more: list[Item], a: slice, b: slice) -> None:
    with tempfile.TemporaryFile() as file:
        kept = OnFile(file, TypeAdapter(Item))
        kept.extend(first)
        kept.extend(more)
        items = [*first, *more]
        assert list(kept) == items and len(kept) == len(items)
        assert list(kept[a]) == items[a]
        assert list(kept[a][b]) == items[a][b]
        assert [kept[-n] for n in range(1, len(items) + 1)] == items[::-1]
