"""`turnlog encryption-key …` run as processes."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from helpers.key_rings import KEK
from helpers.preloaded_cli import run_command


@pytest.fixture
def environment(nats_url: str, database_url: str, tmp_path: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
    return kept | {"NATS_URL": nats_url, "DATABASE_URL": database_url, "TURNLOG_HOME": str(tmp_path), "COLUMNS": "400"}


async def turnlog(environment: dict[str, str], *words: str, **more: str) -> tuple[int, Any]:
    """Returns the exit code and the JSON document on stdout."""
    done = await asyncio.to_thread(run_command, *words, "--json", environment={**environment, **more})
    assert "Traceback" not in done.err
    return done.code, json.loads(done.out)


async def test_keys_from_no_encryption_to_a_changed_kek(environment: dict[str, str]) -> None:
    code, status = await turnlog(environment, "encryption-key", "status")
    assert (code, status) == (0, {"sealing": False, "kek": None, "keys": []})
    code, findings = await turnlog(environment, "doctor")
    [finding] = [finding for finding in findings if finding["check"] == "encryption"]
    assert (code, finding["ok"], "TURNLOG_KEK" in finding["fix"]) == (1, False, True)
    code, refused = await turnlog(environment, "encryption-key", "rotate", "--user", "ann")
    assert (code, refused["error"]["code"]) == (1, "invalid-kek")

    code, unseen = await turnlog(environment, "encryption-key", "rotate", "--user", "ann", TURNLOG_KEK=KEK)
    assert (code, unseen["error"]["code"]) == (1, "not-found")
    await turnlog(environment, "remember", "I like tea", "--user", "ann", TURNLOG_KEK=KEK)
    code, rotated = await turnlog(environment, "encryption-key", "rotate", "--user", "ann", TURNLOG_KEK=KEK)
    assert (code, rotated["user"]) == (0, "ann")
    code, refused = await turnlog(environment, "encryption-key", "status")
    assert (code, refused["error"]["code"]) == (1, "wrong-kek")

    _, made = await turnlog(environment, "encryption-key", "new-kek")
    both = {"TURNLOG_KEK": made["kek"], "TURNLOG_KEK_OLD": KEK}
    code, findings = await turnlog(environment, "doctor", **both)
    [finding] = [finding for finding in findings if finding["check"] == "encryption"]
    assert (finding["ok"], "turnlog encryption-key rewrap" in finding["fix"]) == (True, True)
    code, done = await turnlog(environment, "encryption-key", "rewrap", **both)
    assert (code, done["rewrapped"]) == (0, 2)
    code, status = await turnlog(environment, "encryption-key", "status", TURNLOG_KEK=made["kek"])
    assert (code, status["sealing"], status["kek"]["source"]) == (0, True, "TURNLOG_KEK")
    [use] = status["keys"]
    assert (use["kek_id"], use["users"], use["current"]) == (done["kek"], 1, 1)


async def test_up_and_workers_store_plaintext_only_on_request(environment: dict[str, str]) -> None:
    for words in (("up",), ("up", "--detach"), ("worker", "projectors")):
        code, refused = await turnlog(environment, *words)
        assert (code, refused["error"]["code"]) == (1, "invalid-kek")
        assert "TURNLOG_PLAINTEXT=yes" in refused["error"]["message"]
    code, findings = await turnlog(environment, "doctor", TURNLOG_PLAINTEXT="yes")
    [finding] = [finding for finding in findings if finding["check"] == "encryption"]
    assert finding["ok"] and "not encrypted" in finding["detail"]


async def test_the_earlier_names_of_commands_work_with_a_note_on_stderr(environment: dict[str, str]) -> None:
    for earlier, name in (("keys status", "encryption-key"), ("key list", "api-key")):
        done = await asyncio.to_thread(run_command, *earlier.split(), "--json", environment=environment)
        assert (done.code, bool(json.loads(done.out))) == (0, name == "encryption-key")
        assert done.err == f"`turnlog {earlier.split()[0]}` is now `turnlog {name}`; use that name\n"
