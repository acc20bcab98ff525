"""Items that wait in a file come back as they were."""

import tempfile

from hypothesis import given
from hypothesis import strategies as st

from turnlog.consumers.jobs.on_file import OnFile

ITEMS = st.lists(st.tuples(st.text(), st.integers(), st.none() | st.binary()), max_size=20)


@given(ITEMS, ITEMS, st.slices(20), st.slices(20))
def test_a_sequence_on_file_is_the_list_of_its_items(
    first: list[object], more: list[object], a: slice, b: slice
) -> None:
    with tempfile.TemporaryFile(buffering=0) as file:
        kept = OnFile[object](file)
        kept.extend(first)
        kept.extend(more)
        items = [*first, *more]
        assert list(kept) == items and len(kept) == len(items)
        assert list(kept[a]) == items[a]
        assert list(kept[a][b]) == items[a][b]
        assert [kept[-n] for n in range(1, len(items) + 1)] == items[::-1]
