"""What a command says when it fails: one line with a code, whatever failed."""

import json

import pytest
import typer
from psycopg.errors import DiskFull, OperationalError

from turnlog.agent.settings import Settings
from turnlog.consumers.cli import runner

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
    monkeypatch.setattr("logging.basicConfig", lambda **_: None)  # the log of the tests stays as it is
    monkeypatch.setattr(runner, "sanitise_log_lines", lambda: None)

    async def work(settings: Settings) -> int:
        raise error

    for as_json in (False, True):
        with pytest.raises(typer.Exit) as ended:
            runner.run(work, as_json)
        shown = capsys.readouterr()
        assert ended.value.exit_code == 1
        if as_json:
            assert json.loads(shown.out)["error"]["code"] == code
        else:
            assert shown.err.endswith(f"[{code}]\n") and shown.err.count("\n") == 1
