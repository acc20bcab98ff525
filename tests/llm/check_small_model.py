"""Tests turnlog with a real local model on a small machine (`make llm-test`): answers must come in time.

The content of the answers does not matter.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from socket import create_server
from typing import Any

import pytest
from helpers.cli_process import COMMAND, environment

TURNS, AT_MOST_S = 76, 60.0
PLACES = "the harbour", "the library", "a garden", "the old market", "my sister's kitchen", "the office"
THINGS = "painted a boat", "read a novel", "planted beans", "bought apples", "baked bread", "wrote a report"
QUESTIONS = (
    "What did I say about my work?",
    "Which books did I read?",
    "What should I do this weekend?",
    "Tell me everything that you know about me.",
)
TEAM_QUESTIONS = "Where is my order A101?", "Please refund my order, I want my money back"


@pytest.fixture
def model() -> Iterator[str]:
    """Yields the base URL of a running model server."""
    with create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = [sys.executable, str(Path(__file__).parent / "small_model.py"), str(port)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
        try:
            assert running.stdout is not None
            yield running.stdout.readline().strip() + "/v1"
        finally:
            running.terminate()


@pytest.fixture
def turnlog(model: str, home: Path) -> Iterator[Any]:
    """Starts `turnlog up`. Yields a function that runs a command, e.g. turnlog("chat", …), and returns its output."""

    def run(*words: str) -> str:
        env = environment(home, API_BASE_URL=model)
        done = subprocess.run([*COMMAND, *words], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("up", "--detach")
    yield run
    run("down")


def conversation(path: Path) -> Path:
    def turn(n: int) -> dict[str, str]:
        friend = "Bo" if n % 4 else "Cy"
        about = f"On day {n // 2 + 1} I was in {PLACES[n // 2 % 6]} and {THINGS[n // 3 % 6]} with {friend}."
        said = {"user": about, "assistant": f"That sounds good. How was it in {PLACES[n // 2 % 6]}?"}
        role = "assistant" if n % 2 else "user"
        return {"thread": "diary", "user": "ann", "role": role, "content": said[role], "source_id": str(n)}

    path.write_text("\n".join(json.dumps(turn(n)) for n in range(TURNS)))
    return path


@pytest.mark.timeout(900)
def test_four_questions_are_answered_in_time(turnlog: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turnlog("import", str(conversation(tmp_path / "diary.jsonl")), "--no-embed")
    took = []
    for question in QUESTIONS:
        began = time.monotonic()
        answered = json.loads(turnlog("chat", "diary", "--user", "ann", "--message", question, "--json"))
        took.append(time.monotonic() - began)
        with capsys.disabled():
            words = len(answered["answer"].split())
            print(f"\n{took[-1]:5.1f} s, {words:4} words, {answered['finish_reason']}: {question}", end="", flush=True)
        assert answered["answer"].strip()
    assert max(took) < AT_MOST_S


@pytest.fixture
def support_team(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the servers that `turnlog` starts use the team in tests/teams/support."""
    tests = Path(__file__).parents[1]
    monkeypatch.setenv("TURNLOG_TEAM", str(tests / "teams" / "support"))
    monkeypatch.setenv("PYTHONPATH", str(tests))


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("support_team")
def test_a_team_runs_without_an_error_for_any_model_output(turnlog: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for question in TEAM_QUESTIONS:
        answered = json.loads(turnlog("chat", "shop", "--user", "ann", "--message", question, "--json"))
        with capsys.disabled():
            print(f"\n{question} {answered['answer'][:100]!r}", end="", flush=True)
        assert answered["answer"].strip()
    runs = json.loads(turnlog("runs", "--user", "ann", "--json"))
    assert [run["status"] for run in runs] == ["solved"] * len(TEAM_QUESTIONS)
    assert all(run["tokens_in"] for run in runs), "the model answered, not the planner by rules"


def test_the_offline_model_makes_the_vectors_and_doctor_says_so(turnlog: Any) -> None:
    models = next(line for line in turnlog("doctor").splitlines() if "models" in line)
    assert "the server has no embeddings" in models
