"""Wrong options end a command with exit code 2 before any server starts."""

from pathlib import Path

from helpers.cli_process import environment
from helpers.preloaded_cli import run_command


def test_numbers_that_no_server_takes_are_usage_errors(tmp_path: Path) -> None:
    beyond = str(2**64)
    for call in (
        ("threads", "--limit", beyond),
        ("tail", "--no-follow", "--from", beyond),
        ("dead-letters", "show", beyond),
        ("dead-letters", "show", "0"),
    ):
        done = run_command(*call, environment=environment(tmp_path))
        assert (call, done.code, "Invalid value" in done.err) == (call, 2, True)


def test_an_unknown_option_is_a_usage_error(tmp_path: Path) -> None:
    done = run_command("threads", "--nope", environment=environment(tmp_path))
    assert (done.code, done.out) == (2, "")
    assert "No such option: --nope" in done.err
    assert list(tmp_path.iterdir()) == []
