"""Tests tables of the command line on terminals of 60 and 100 columns and in a pipe."""

import io
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from rich.cells import cell_len

from turnlog.agent.access.throttle.guards import Guard
from turnlog.consumers.cli import console, text_tables
from turnlog.consumers.cli.console import Words
from turnlog.consumers.cli.limits import LEFT
from turnlog.consumers.cli.text_tables import Table, short_ids, table

SAID = "好的，已经记住：上海，GPA 3.8，简短回答，花生过敏。我们可以从匹配的学校开始看，也可以先整理活动与奖项，再决定。"
PLAIN = "I am allergic to peanuts, so please keep that in mind for every restaurant that you recommend to me."
ROWS = [("7f9c2d4e-0001", "林薇", 7, "", SAID), ("t", "ann", 1_234, "", PLAIN)]
COLUMNS: dict[str, Callable[[tuple[object, ...]], object]] = {
    head: lambda row, at=at: row[at] for at, head in enumerate(("THREAD", "USER", "MESSAGES", "STATE", "TEXT"))
}


def printed(monkeypatch: pytest.MonkeyPatch, width: int | None, rows: list[tuple[object, ...]]) -> list[str]:
    """Returns the lines of the table on a terminal of this width. width: None means a pipe."""
    file = io.StringIO()
    words = Words(file=file, force_terminal=width is not None, width=width, no_color=True, highlight=False)
    for module in (console, text_tables):
        monkeypatch.setattr(module, "out", words)
    console.say(map(str, table(rows, COLUMNS).lines))
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 100])
def test_a_long_text_continues_under_its_own_column_or_row(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    head, *lines = printed(monkeypatch, width, [*ROWS])
    assert head.split() == ["THREAD", "USER", "MESSAGES", "TEXT"], "a column without anything is left out"
    assert max(map(cell_len, lines)) <= width
    starts = [line for line in lines if not line.startswith(" ")]
    indent = 4 if width == 60 else head.index("TEXT")
    assert [line.split()[:3] for line in starts] == [["7f9c2d4e-0001", "林薇", "7"], ["t", "ann", "1,234"]]
    more = [line for line in lines if line.startswith(" ")]
    assert {len(line) - len(line.lstrip()) for line in more} == {indent}
    assert not [line for line in more if line.lstrip()[0] in "，。"], "no line begins with a closing mark"
    assert "".join("".join(lines).split()).endswith("".join(PLAIN.split()))


def test_a_pipe_gets_whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    _, first, second = printed(monkeypatch, None, [*ROWS])
    assert first.endswith(SAID) and second.endswith(PLAIN)
    assert cell_len(first.removesuffix(SAID)) == cell_len(second.removesuffix(PLAIN))


def test_columns_that_do_not_fit_follow_under_the_row_with_their_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = "0b5e8f6c-93a4-4dc6-a018-53c181eff0e8-chat"
    lines = printed(monkeypatch, 50, [(thread, "a-long-user-name", 3, "archived", "Trip")])
    assert lines == ["THREAD", thread, "    user a-long-user-name, messages 3, state", "    archived", "    Trip"]


def test_a_long_line_of_any_command_continues_with_a_deeper_indent(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(console, "out", Words(file=file, force_terminal=True, width=20, highlight=False))
    console.say(["  the quick brown fox jumps", "我叫李明，我住在上海，我喜欢简短的回答。"])
    assert file.getvalue().splitlines() == [
        "  the quick brown",
        "    fox jumps",
        "我叫李明，我住在上",
        "  海，我喜欢简短的回",
        "  答。",
    ]


def test_ids_are_shortened_to_distinct_prefixes() -> None:
    assert short_ids(["a442fe0f-1891", "93a4dc66-a018"]) == {"a442fe0f-1891": "a442fe0f", "93a4dc66-a018": "93a4dc66"}
    assert [*short_ids(["01a20196-0e29", "01a20196-4b01"]).values()] == ["01a20196-0", "01a20196-4"]


def test_numbers_are_aligned_to_the_right_and_keep_their_heads_under_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = [("ann", "", "$0.0043", "903 ms"), ("林薇", "", "$12.50", "12,004 ms")]
    heads = Table(["USER", "NOTHING", "COST", "TIME"], spent, whole=True)
    assert [str(line) for line in heads] == [
        "USER  NOTHING     COST       TIME",
        "ann            $0.0043     903 ms",
        "林薇            $12.50  12,004 ms",
    ]
    monkeypatch.setattr(text_tables, "out", Words(file=io.StringIO(), force_terminal=True, width=24, no_color=True))
    assert [str(line) for line in heads][:3] == ["USER  NOTHING     COST", "ann            $0.0043", "    time 903 ms"]


@pytest.mark.parametrize("width", [60, 100])
def test_the_table_of_remaining_quotas_fits_a_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    guards = [
        Guard("tokens_per_day", 200_000, 1_234, 198_766, datetime(2026, 11, 28, tzinfo=UTC)),
        Guard("usd_per_month", 20, 0.5, 19.5, None),
    ]
    monkeypatch.setattr(text_tables, "out", Words(file=io.StringIO(), force_terminal=True, width=width, no_color=True))
    head, *lines = [str(line) for line in table(guards, LEFT).lines]
    assert head.split()[:4] == ["LIMIT", "USED", "OF", "LEFT"] and max(map(cell_len, [head, *lines])) <= width
    assert lines[0].split()[:4] == ["tokens_per_day", "1,234", "200,000", "198,766"]
    assert "2026-11-28 00:00" in "\n".join(lines)
    assert [line.index("766") + 3 for line in lines if "766" in line] == [head.index("LEFT") + 4]
