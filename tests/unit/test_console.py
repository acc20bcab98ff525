"""Commands print an error as one line with a code, and wrap lines at a terminal without breaking words."""

import io
import json
import re
from pathlib import Path
from uuid import uuid4

import pytest
import typer
from psycopg.errors import DiskFull, OperationalError

from turnlog.agent.answering.asking import Answered, Restarted, Text
from turnlog.agent.settings import Settings
from turnlog.consumers.cli import chatting, runner
from turnlog.consumers.cli.console import Words, shown
from turnlog.consumers.cli.options import Given

ROOT = Path(__file__).parents[2]
FULL = "could not extend file: No space left on device"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DiskFull(f"{FULL}\nHINT:  Check free disk space."), "disk-full"),
        (OSError(28, "No space left on device"), "disk-full"),
        (OSError(5, "Input/output error"), "internal-error"),
        (OperationalError("the connection is closed"), "internal-error"),
    ],
)
def test_an_error_is_one_line_with_a_code(
    error: Exception, code: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logging.basicConfig", lambda **_: None)  # keeps the logging of the tests unchanged
    monkeypatch.setattr(runner, "sanitise_log_lines", lambda: None)

    async def work(settings: Settings) -> int:
        raise error

    for as_json in (False, True):
        monkeypatch.setattr(runner, "given", lambda as_json=as_json: Given(json=as_json))
        with pytest.raises(typer.Exit) as ended:
            runner.run(work)
        shown = capsys.readouterr()
        assert ended.value.exit_code == 1
        if as_json:
            assert json.loads(shown.out)["error"]["code"] == code
        else:
            assert shown.err.endswith(f"[{code}]\n") and shown.err.count("\n") == 1


ANSWERED = Answered("t", uuid4(), uuid4(), 1, None, "")


def test_a_terminal_gets_lines_that_end_between_words_and_a_file_whole_ones() -> None:
    said = "projection messages waits for its key, and no event behind it is applied 你好世界"
    for is_terminal in (True, False):
        written = io.StringIO()
        Words(file=written, force_terminal=is_terminal, width=60).print(said, markup=False)
        lines = [line.strip() for line in written.getvalue().splitlines()]
        assert " ".join(lines) == said and len(lines) == 1 + is_terminal


def test_words_between_colons_are_shown_as_they_were_written() -> None:
    written = io.StringIO()
    Words(file=written).print("my :dog: said [bold]hi[/bold]", markup=False)
    assert written.getvalue() == "my :dog: said [bold]hi[/bold]\n"


def test_an_answer_that_comes_in_pieces_breaks_no_word_at_the_edge_of_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chatting, "out", Words(file=io.StringIO(), force_terminal=True, width=20))
    flow = chatting.Flow("en")
    for text in ("The quick brown fox jum", "ps over the lazy dog 它遇到了一只非常大", "的狗\n", "\x1b[31m!"):
        flow.show(Text(text))
    flow.show(Restarted())
    flow.show(ANSWERED)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "The quick brown fox",
        "jumps over the lazy",
        "dog 它遇到了一只非常",
        "大的狗",
        "\ufffd[31m!",
        "[the answer starts",
        "again]",
        "",
    ]


def test_an_answer_in_a_pipe_is_written_as_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    flow, said = chatting.Flow("en"), ("The quick ", "brown fox " * 30)
    for text in said:
        flow.show(Text(text))
    flow.show(ANSWERED)
    assert capsys.readouterr().out == "".join(said) + "\n"


def test_a_long_key_is_never_broken_on_a_narrow_terminal() -> None:
    file, key = io.StringIO(), "tl_" + "x" * 300
    narrow = Words(file=file, force_terminal=True, width=40, highlight=False)
    narrow.print(f"the key is {key}", markup=False)
    narrow.print("words that are broken between two of them at the end of a line", markup=False)
    first, *others = file.getvalue().splitlines()
    assert key in first and [line.strip() for line in others] == [
        "words that are broken between two of",
        "them at the end of a line",
    ]


def test_characters_that_could_reorder_a_line_are_replaced_as_on_the_page() -> None:
    (acting,) = re.findall(r"const ACTING = /(.+)/g;", (ROOT / "consumers/page/html.js").read_text("utf-8"))
    signs = [chr(code) for code in range(0xFFFD) if chr(code) != "\r"]
    assert [sign for sign in signs if shown(sign) != sign] == [sign for sign in signs if re.match(acting, sign)]
    assert shown("a\u2066b\u200fc\u061cd👩\u200d🔬\r") == "a\ufffdb\ufffdc\ufffdd👩\u200d🔬\ufffd"
