"""Lists are stored as rows of added items; after any change each version reads back equal."""

from collections.abc import Sequence
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from turnlog.consumers.langgraph.checkpoint.growth import MAX_BASES, Known, Row, Source, common, grow, read, source_of

Versions = list[tuple[str, int, list[int]]]


class Table:
    """Stores the rows that grow() writes, as the tables do."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {}
        self._ids = count()

    def new_id(self) -> str:
        return f"list {next(self._ids)}"

    def write(self, list_id: str, first: int, base: Source | None, items: Sequence[int]) -> None:
        own = self.rows.setdefault(list_id, [])
        assert all(row.first != first for row in own), "a row is written once"
        own.append(Row(list_id, first, base.list_id if base else None, first if base else 0, tuple(items)))

    def put(self, known: Known[int] | None, value: list[int]) -> Known[int]:
        prefix = common(known.items, value, int.__eq__) if known else 0
        return grow(known, prefix, value[prefix:], self.new_id, self.write)


def edited(value: list[int], edit: tuple[str, int, int], fresh: int) -> list[int]:
    kind, at, many = edit
    index = at % (len(value) + 1)
    match kind:
        case "append":
            return [*value, *range(fresh, fresh + many)]
        case "insert":
            return [*value[:index], fresh, *value[index:]]
        case "replace":
            return [*value[:index], fresh, *value[index + 1 :]]
        case "remove":
            return value[:index] + value[index + many :]
        case "cut":
            return value[:index]
    return value


EDITS = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "insert", "replace", "remove", "cut", "same"]),
        st.integers(0, 30),
        st.integers(1, 3),
    ),
    max_size=60,
)


@given(EDITS, st.lists(st.integers(0, 59)), st.lists(st.tuples(st.integers(0, 59), st.integers(0, 59))))
def test_every_version_of_a_list_reads_back_equal(
    edits: list[tuple[str, int, int]], restarts: list[int], forks: list[tuple[int, int]]
) -> None:
    """restarts: edits before which another process takes over. forks: (edit, version that it continues)."""
    table, versions = Table(), Versions()
    known: Known[int] | None = None
    value: list[int] = []
    for number, edit in enumerate(edits):
        if versions and number in dict(forks):
            list_id, length, value = versions[dict(forks)[number] % len(versions)]
            known = Known(source_of(table.rows, list_id), read(table.rows, list_id, length))
        elif versions and number in restarts:
            list_id, length, value = versions[-1]
            known = Known(source_of(table.rows, list_id), read(table.rows, list_id, length))
        value = edited(value, edit, 1_000 * (number + 1))
        known = table.put(known, value)
        versions.append((known.source.list_id, len(value), value))
        assert known.source.depth < MAX_BASES
    for list_id, length, expected in versions:
        assert read(table.rows, list_id, length) == expected


def test_a_list_that_only_grows_writes_each_item_once() -> None:
    table, known = Table(), None
    for length in range(1, 50):
        known = table.put(known, list(range(length)))
    assert [len(row.items) for rows in table.rows.values() for row in rows] == [1] * 49
    assert len(table.rows) == 1


def test_another_process_continues_in_a_new_list_based_on_the_first() -> None:
    table = Table()
    mine = table.put(None, [1, 2, 3])
    theirs = Known(mine.source, [1, 2, 3])
    table.put(theirs, [1, 2, 3, 4])
    table.put(mine, [1, 2, 3, 5])
    assert [(row.list_id, row.first, row.base_list, row.items) for own in table.rows.values() for row in own] == [
        ("list 0", 0, None, (1, 2, 3)),
        ("list 0", 3, None, (5,)),
        ("list 1", 3, "list 0", (4,)),
    ]


def test_a_long_chain_of_base_lists_is_cut_by_writing_a_complete_list() -> None:
    table, known = Table(), None
    for length in range(1, 3 * MAX_BASES):
        known = table.put(known and Known(known.source, known.items), list(range(length)))
    whole = [own for own in table.rows.values() if own[0].base_list is None]
    assert len(whole) == 3


def test_a_fork_near_the_beginning_rests_on_the_list_that_holds_it() -> None:
    table, known = Table(), None
    for length in range(1, 10):
        known = table.put(known and Known(known.source, known.items), list(range(length)))
    assert known is not None
    fork = table.put(known, [0, 1, 99])
    assert fork.source.depth == 2
    assert read(table.rows, fork.source.list_id, 3) == [0, 1, 99]


def test_items_whose_rows_are_gone_are_left_out() -> None:
    table = Table()
    known = table.put(table.put(None, [1]), [1, 2])
    fork = table.put(Known(known.source, known.items), [1, 2, 3])
    del table.rows[known.source.list_id]
    assert read(table.rows, fork.source.list_id, 3) == [3]
    assert read(table.rows, "unknown", 3) == []
