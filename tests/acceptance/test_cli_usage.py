"""Wrong options, wrong settings and full disks end a command with a plain error."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.cli import environment_of
from helpers.cli_process import COMMAND, environment
from helpers.preloaded_cli import run_command

pytestmark = pytest.mark.slow


def test_numbers_that_servers_refuse_are_usage_errors(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_an_error_on_stderr(nats_url: str, database_url: str, tmp_path: Path, unbuffered: str) -> None:
    with Path("/dev/full").open("wb") as full:
        call, env = (
            [*COMMAND, "threads", "--json"],
            environment_of(nats_url, database_url, tmp_path) | {"PYTHONUNBUFFERED": unbuffered},
        )
        done = subprocess.run(call, env=env, stdout=full, stderr=subprocess.PIPE, timeout=240)
    assert done.returncode == 1
    [error] = done.stderr.decode().splitlines()
    assert error == "error: [Errno 28] No space left on device. Make room on that disk and run this again [disk-full]"


def test_a_wrong_setting_is_named_and_its_secret_is_not(nats_url: str, database_url: str, tmp_path: Path) -> None:
    wrong = {
        ("DATABASE_URL", "postgresql://ann:s3cret@127.0.0.1:9/x"): "database-unavailable",
        ("DATABASE_URL", "no url"): "database-unavailable",
        ("NATS_URL", "nats://ann:s3cret@127.0.0.1:9"): "log-unavailable",
        ("TURNLOG_PARTITIONS", "many"): "invalid-setting",
    }
    right = environment_of(nats_url, database_url, tmp_path)
    with ThreadPoolExecutor(len(wrong)) as pool:
        results = pool.map(lambda set_: run_command("threads", "--json", environment=right | dict([set_])), wrong)
    for (variable, _), code, done in zip(wrong, wrong.values(), results, strict=True):
        error = json.loads(done.out)["error"]
        assert (done.code, error["code"]) == (1, code)
        assert variable in error["message"]
        assert "factory" not in error["message"]  # because that default depends on other settings
        assert "s3cret" not in done.out + done.err


def test_without_json_an_error_is_one_line_on_stderr(nats_url: str, database_url: str, tmp_path: Path) -> None:
    done = run_command("messages", "nope", environment=environment_of(nats_url, database_url, tmp_path))
    assert (done.code, done.out) == (1, "")
    assert done.err == "error: there is no thread 'nope'; `turnlog threads` lists them [not-found]\n"
