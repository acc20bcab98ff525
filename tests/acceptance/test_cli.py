"""Every command runs as a process: one JSON document on stdout, logs on stderr, exit codes and plain errors."""

import asyncio
import gzip
import json
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import nats
import psycopg
import pytest
from helpers.cli import terminal
from helpers.cli_process import (
    CALL,
    COMMAND,
    ERRORS,
    Cli,
    CommandResult,
    environment,
    imports,
    write_files,
)
from helpers.preloaded_cli import run_command
from helpers.prepared_home import copy_database
from helpers.servers import eventually, processes_left_in

from turnlog.consumers.servers import start
from turnlog.projectors.models.registry import PROJECTIONS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory, prepared_home: Path, files: Path) -> Iterator[Cli]:
    """Runs `turnlog up` in the background with imported data. Its end is tested too."""
    home = copy_database(prepared_home, tmp_path_factory.mktemp("cli") / "home")
    up = run_command("up", "--detach", "--json", environment=environment(home))
    assert json.loads(up.out).keys() == {"pid", "home", "log", "api_url"}
    made = Cli(home, asyncio.run(start(home)))
    try:
        for done in made.together(
            *((*imports(files)[name], "--json") for name in ("people", "chatgpt", "openai", "jsonl"))
        ):
            assert done.code == 0, done.err
            assert done.document["turns"] > 0
        yield made
    finally:
        down = made("down", "--json")
    assert (down.code, down.document["stopped"]) == (0, True)
    assert processes_left_in(home) == []


def test_a_shell_that_has_evaluated_env_goes_on_with_its_own_home(cli: Cli) -> None:
    printed = dict(line.removeprefix("export ").split("=", 1) for line in cli("env").out.splitlines())
    variables = {name: shlex.split(value)[0] for name, value in printed.items()}
    assert cli("env", **variables).out == cli("env").out
    assert (cli("messages", "notes", **variables).code, cli("doctor", **variables).code) == (0, 0)

    async def connects_with_user_and_password_apart() -> bool:
        address = variables["NATS_URL"].rpartition("@")[2]
        user, password = variables["NATS_USER"], variables["NATS_PASSWORD"]
        async with await nats.connect(f"nats://{address}", user=user, password=password) as client:
            return client.is_connected

    assert asyncio.run(connects_with_user_and_password_apart())


def test_a_second_import_of_the_same_file_adds_nothing(cli: Cli, files: Path) -> None:
    again = cli.together(*((*call, "--json") for call in imports(files).values()))
    assert [(done.document["turns"], done.document["known"]) for done in again] == [(0, 3), (0, 2), (0, 4), (0, 2)]


def test_a_pipe_is_imported_like_a_file(cli: Cli, files: Path, tmp_path: Path) -> None:
    said = (files / "jsonl.jsonl").read_bytes()
    call = [*COMMAND, "import", "/dev/stdin", "--no-embed", "--json"]
    piped = subprocess.run(call, env=environment(cli.home), input=gzip.compress(said), capture_output=True, timeout=240)
    (tmp_path / "empty").touch()
    plain, empty = (
        run_command("import", "-", "--no-embed", "--json", environment=environment(cli.home), stdin=str(file))
        for file in (files / "jsonl.jsonl", tmp_path / "empty")
    )
    for report in (json.loads(piped.stdout), json.loads(plain.out)):
        assert (report["file"], report["turns"], report["known"]) == ("stdin", 0, 2), report
    assert json.loads(empty.out)["error"] == {
        "code": "import-failed",
        "message": "stdin is empty: there is nothing to import",
    }


def test_an_import_reports_turns_without_a_time_and_the_times_they_got(cli: Cli, files: Path) -> None:
    calls = imports(files)
    none, dated, told = cli.together((*calls["jsonl"], "--json"), (*calls["people"], "--json"), calls["openai"])
    assert (none.document["undated"], none.document["undated_from"]) == (2, "2000-01-01T00:00:00Z")
    assert (dated.document["undated"], dated.document["undated_from"]) == (0, None)
    how = "dated one second after the previous turn, the first of a conversation 2000-01-01"
    said = f"; 4 without a time.\nwithout a time, {how}: tools, M1; tools, M2; tools, M3; …\n"
    assert told.out.endswith(said)


def test_a_dry_run_says_what_is_in_a_file_and_stores_nothing(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "dry.jsonl"
    file.write_text('{"thread": "dry", "text": "hello", "mood": "good"}')
    dry, stored = cli.together(("import", str(file), "--dry-run", "--json"), ("threads", "--json"))
    assert (dry.code, dry.document["dry_run"], dry.document["turns"], dry.document["threads"]) == (0, True, 1, 1)
    assert dry.document["left_out"] == [{"reason": "the unknown field 'mood'", "count": 1, "first": ["line 1"]}]
    assert "dry" not in {row["thread_id"] for row in stored.document}


def test_bad_lines_are_rejected_by_place_and_the_rest_is_imported(cli: Cli, tmp_path: Path) -> None:
    mixed, hopeless = tmp_path / "mixed.jsonl", tmp_path / "hopeless.jsonl"
    mixed.write_text('{"thread": "mixed", "role": "user", "content": "fine"}\nno json\n{"role": "wizard"}')
    hopeless.write_text("no json\n")
    some, none = cli.together(
        ("import", str(mixed), "--format", "jsonl", "--no-embed", "--json"),
        ("import", str(hopeless), "--format", "jsonl", "--no-embed", "--json"),
    )
    assert (some.code, some.document["turns"], some.document["rejected_count"]) == (1, 1, 2)
    assert [rejected["where"] for rejected in some.document["rejected"]] == ["line 2", "line 3"]
    assert "rejected: line 2: " in some.err
    assert none.error["code"] == "import-failed"
    assert "contains no turn in the format jsonl: line 1" in none.error["message"]


def test_threads_and_messages(cli: Cli) -> None:
    threads, mine, messages, plain = cli.together(
        ("threads", "--json"),
        ("threads", "--user", "team", "--json"),
        ("messages", "conv-1", "--json"),
        ("messages", "tools", "--limit", "3"),
    )
    assert {"conv-1", "c-1", "tools", "notes"} <= {row["thread_id"] for row in threads.document}
    named = {"thread_id", "label", "user_id", "message_count", "last_active_at", "archived"}
    assert threads.document[0].keys() == named
    [conversation] = mine.document
    assert (conversation["label"], conversation["message_count"]) == ("conv-1", 3)
    assert [row["source_id"] for row in messages.document] == ["D1:1", "D1:2", "D1:3"]
    head, *lines = plain.out.splitlines()
    assert (head.split(), len(lines)) == (["SEQ", "TIME", "SPEAKER", "TEXT"], 3)
    assert '[call search {"q": "x"}]' in plain.out


def test_a_context_has_its_budget_tiers_messages_and_receipt(cli: Cli) -> None:
    whole, small, plain, vague = cli.together(
        ("context", "tools", "--json"),
        ("context", "conv-1", "--query", "Where?", "--window", "256", "--json"),
        ("context", "conv-1"),
        ("context", "conv-1", "--hybrid", "--as-of", "1", "--json"),
    )
    context = whole.document
    assert [tier["tier"] for tier in context["tiers"]] == ["all"]
    assert context["tiers"][0].keys() >= {"tier", "tokens", "items"}
    assert 0 < context["tiers"][0]["tokens"] <= context["budget"]
    assert [m["role"] for m in context["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert context["messages"][2]["tool_calls"] == [CALL]
    assert context["messages"][3]["tool_call_id"] == "call_1"
    assert len(context["receipt"]["context_hash"]) == 64
    assert small.document["messages"][-1] == {"role": "user", "content": "Where?"}
    assert small.document["window"] == 256
    assert "everything fits" in plain.out
    assert whole.document["receipt"]["relevant"] == []
    assert vague.error["code"] == "bad-query"


def test_recall_by_thread_by_user_and_by_file(cli: Cli, tmp_path: Path) -> None:
    batch = tmp_path / "questions.jsonl"
    asked = [{"query": "marathon", "thread": "conv-1", "k": 1}, {"query": "x"}, {"query": "boats", "thread": "conv-1"}]
    batch.write_text("\n".join([*map(json.dumps, asked), "no json", '{"query": "x", "thread": "nope"}']))
    by_thread, by_user, by_file, plain, read = cli.together(
        ("recall", "Who ran a marathon?", "--thread", "conv-1", "-k", "2", "--explain", "--json"),
        ("recall", "sister", "--user", "team", "--json"),
        ("recall", "--batch", str(batch), "-k", "2"),
        ("recall", "牛奶", "--thread", "notes", "--keyword-only"),
        ("recall", "Who ran a marathon? Also, who has a sister?", "--thread", "conv-1", "--keyword-only", "--explain"),
    )
    [first, _] = by_thread.document["items"]
    assert (first["source_id"], first["thread"]) == ("D1:1", "conv-1")
    assert first.keys() >= {"source_id", "event_id", "seq", "score", "text", "parts"}
    assert by_user.document["items"][0]["source_id"] == "D1:2"
    answers = by_file.lines
    assert by_file.code == 1
    assert [len(answer["items"]) for answer in answers] == [1, 0, 2, 0, 0]
    assert answers[0]["items"][0]["source_id"] == "D1:1"
    assert ["error" in answer for answer in answers] == [False, True, False, True, True]
    assert "牛奶" in plain.out
    asked = by_thread.document["question"]
    assert (asked["kind"], [part["text"] for part in asked["parts"]]) == ("fact", ["Who ran a marathon?"])
    assert by_user.document["question"] is None
    assert read.out.splitlines()[:3] == [
        "asks for a fact, in the words of people",
        "  1: 'Who ran a marathon?'",
        "  2: 'who has a sister?'",
    ]


def test_recall_says_when_it_goes_by_words_alone(cli: Cli) -> None:
    closed = {"MEMORY_EMBEDDING_BASE_URL": "http://127.0.0.1:9/v1", "MEMORY_EMBEDDING_MODEL": "another"}
    done = cli("recall", "marathon", "--thread", "conv-1", "--json", **closed)
    assert done.document["degraded"].startswith("keyword search only: ")
    assert done.document["items"][0]["source_id"] == "D1:1"
    assert "keyword search only: " in done.err


def test_an_export_imports_again_to_the_same_turns(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    exported, openai, listed = cli.together(
        ("export", "conv-1", "--output", str(path), "--json"),
        ("export", "tools", "--format", "openai"),
        ("export", "tools", "--json"),
    )
    assert exported.document == {"thread": "conv-1", "messages": 3, "output": str(path)}
    again = cli("import", str(path), "--no-embed", "--json")
    assert (again.document["turns"], again.document["known"]) == (0, 3)
    assert openai.document["messages"] if isinstance(openai.document, dict) else openai.document
    assert [line["role"] for line in listed.document] == ["user", "assistant", "tool", "assistant"]


def test_an_export_typed_at_a_terminal_goes_to_its_file(cli: Cli, tmp_path: Path) -> None:
    path, command = tmp_path / "team.json", [*COMMAND, "export", "--user", "team", "--raw"]
    with terminal("") as screen, Path(screen).open("w") as shown, path.open("w") as file:
        done = subprocess.run(command, env=environment(cli.home), stdin=shown, stdout=file, stderr=shown)
    assert done.returncode == 0
    assert "marathon" in str(json.loads(path.read_text()))


def test_tail_shows_existing_and_new_events(cli: Cli, tmp_path: Path) -> None:
    done = cli("tail", "--from", "1", "--no-follow", "--thread", "conv-1", "--json")
    assert [line["type"] for line in done.lines][:4] == ["thread_opened", *["turn_recorded"] * 3]
    assert done.lines[1]["event"]["data"]["source_id"] == "D1:1"
    assert cli("tail", "--from", "1", "--no-follow", "--thread", "conv-1", TURNLOG_TENANT="other").out == ""
    following = cli.begin("tail", "--from", "1", "--json")
    assert following.stdout is not None
    assert json.loads(following.stdout.readline())["seq"] == 1
    following.send_signal(signal.SIGINT)
    _, errors = following.communicate(timeout=240)
    assert (following.returncode, b"Traceback" in errors) == (130, False)


def test_lag_rebuild_and_doctor(cli: Cli) -> None:
    lag, whole, thread, doctor = cli.together(
        ("lag", "--json"),
        ("rebuild", "messages", "--json"),
        ("rebuild", "thread_activity", "--thread", "conv-1", "--json"),
        ("doctor", "--model", "--json"),
    )
    projections = lag.document["projections"]
    assert {row["projection"]: row["behind"] for row in projections}.keys() >= {"messages", "vectors", "usage"}
    assert whole.document.keys() >= {"projection", "events", "seconds", "events_per_s"}
    assert whole.document["events"] > 0
    assert thread.code == 0
    assert doctor.code == 0
    assert all(row.keys() == {"check", "ok", "detail", "fix", "loops", "warning"} for row in doctor.document)
    assert doctor.document[-1]["check"] == "model: embedding"
    everything = cli("rebuild", "--all", "--json")
    assert len(everything.document) == len(projections) == len(PROJECTIONS)
    backlog = {"model", "chunks", "memories", "texts_per_s", "more", "waits", "seconds_left"}
    assert lag.document["embedding"].keys() == backlog


def test_verify_finds_a_row_that_somebody_changed_and_a_rebuild_repairs_it(cli: Cli) -> None:
    assert cli("verify", "messages", "--json").code == 0
    with psycopg.connect(cli.servers.database_url, autocommit=True) as conn:
        conn.execute("UPDATE turnlog.messages SET role = 'system' WHERE source_id = 'D1:1'")
    tampered = cli("verify", "messages", "--json")
    assert tampered.code == 1
    [report] = tampered.document
    assert not report["clean"]
    assert report["differences"]
    assert cli("rebuild", "messages").code == 0
    assert cli("verify").code == 0


async def test_a_poison_event_is_listed_shown_kept_and_dropped(cli: Cli) -> None:
    async with await nats.connect(cli.servers.nats_url) as client:
        ack = await client.jetstream().publish("turnlog.default.poison.turn_recorded", b"no json")
    seq = str(ack.seq)

    async def is_parked() -> bool:
        return bool((await call(cli, "dead-letters", "list", "--json")).document)

    await eventually(is_parked)
    listed = await call(cli, "dead-letters", "list", "--json")
    assert {str(row["seq"]) for row in listed.document} == {seq}
    shown = await call(cli, "dead-letters", "show", seq, "--json")
    assert (shown.document["seq"], shown.document["event"]) == (ack.seq, "no json")
    assert (await call(cli, "dead-letters", "retry", seq, "--json")).code == 1
    dropped = await call(cli, "dead-letters", "drop", seq, "--yes", "--json")
    assert (dropped.code, dropped.document["dropped"]) == (0, ack.seq)


async def call(cli: Cli, *arguments: str) -> CommandResult:
    return await asyncio.to_thread(cli, *arguments)


def test_chat_streams_or_answers_as_a_document(cli: Cli) -> None:
    answer, plain = cli.together(
        ("chat", "conv-1", "-m", "Who ran a marathon?", "--json"), ("chat", "talk", "-m", "hello")
    )
    assert answer.document.keys() >= {"thread", "answer", "answer_id", "seq", "model"}
    assert "Lisbon" in answer.document["answer"]
    assert plain.out.startswith("[offline")
    assert "model" not in plain.err  # the answer itself says that there is no language model


def test_chat_says_what_it_remembered_or_forgot_or_why_it_did_not(cli: Cli) -> None:
    english, chinese, nobody, asked, document = cli.together(
        ("chat", "rex", "-m", "Hey Bob, remember my dog is called Rex", "--user", "rex"),
        ("chat", "rex-zh", "-m", "记住她对花生过敏", "--user", "rex"),
        ("chat", "rex-nobody", "-m", "remember her name is Lucy"),
        ("chat", "rex-asks", "-m", "Do you remember my dog?", "--user", "rex"),
        ("chat", "rex-json", "-m", "Remember my cat is called Tom", "--user", "rex", "--json"),
    )
    assert "Remembered: my dog is called Rex" in english.err
    assert "已记住：她对花生过敏" in chinese.err
    assert "Not remembered: memories belong to a person, so start the chat with --user NAME" in nobody.err
    assert "emembered" not in asked.err
    assert document.document["remembered"]["contents"] == ["my cat is called Tom"]
    forgotten, unknown, everything = cli.together(
        ("chat", "rex-forget", "-m", "Please forget that my cat is called Tom", "--user", "rex"),
        ("chat", "rex-forget-zh", "-m", "把我的生日忘了吧", "--user", "rex"),
        ("chat", "rex-forget-all", "-m", "Please forget everything about me", "--user", "rex"),
    )
    assert "Forgotten: my cat is called Tom" in forgotten.err
    assert "Tom" not in forgotten.out
    assert "Nothing is forgotten: `turnlog clear --user rex --memories` forgets all memories" in everything.err
    assert "没有忘记任何内容：没有记忆符合“生日”。`turnlog memories --user rex` 列出记忆" in unknown.err


def test_a_past_context_is_compared_with_its_receipt_and_a_fork_begins_there(cli: Cli) -> None:
    cli("chat", "travel", "-m", "Lisbon is warm.")
    cli("chat", "travel", "-m", "And Oslo?")
    (first, _) = cli("receipts", "travel", "--json").document
    at = str(first["as_of_seq"])
    past, changed, fork, plain, early = cli.together(
        ("context", "travel", "--as-of", at, "--json"),
        ("context", "travel", "--as-of", at, "--window", "4000", "--json"),
        ("fork", "travel", "--at", at, "--as", "travel-2", "--label", "What if", "--json"),
        ("receipts", "travel"),
        ("context", "travel", "--as-of", "1", "--json"),
    )
    assert past.document["receipt_matches"] is True
    assert past.document["recorded_receipt"]["context_hash"] == past.document["receipt"]["context_hash"]
    assert [m["content"] for m in past.document["messages"]][1:] == ["Lisbon is warm."]
    assert (changed.document["receipt_matches"], changed.document["window"]) == (None, 4000)
    assert (fork.document["parent"], fork.document["message_count"]) == ("travel", 1)
    assert "all " in plain.out.splitlines()[1]
    assert "is before its first turn" in early.error["message"]
    again, shown, told = cli.together(
        ("fork", "travel", "--at", at, "--as", "travel-2", "--json"),
        ("messages", "travel-2", "--json"),
        ("context", "travel", "--as-of", at),
    )
    assert again.error["code"] == "thread-exists"
    assert [m["content"] for m in shown.document] == ["Lisbon is warm."]
    assert "exactly the messages that the model got" in told.out


def test_a_worker_says_that_it_runs_and_ends_on_a_signal(cli: Cli) -> None:
    worker = cli.begin("worker", "analytics")
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"worker analytics runs\n"
    worker.send_signal(signal.SIGTERM)
    _, errors = worker.communicate(timeout=240)
    assert (worker.returncode, b"Traceback" in errors) == (0, False)


def test_every_error_is_one_document_that_says_cause_and_fix(cli: Cli) -> None:
    for (call, (code, said)), done in zip(
        ERRORS.items(), cli.together(*((*call, "--json") for call in ERRORS)), strict=True
    ):
        assert (call, done.error["code"]) == (call, code)
        assert said in done.error["message"], call
        assert done.err == ""


def test_a_closed_output_pipe_is_no_error(cli: Cli) -> None:
    reading = cli.begin("tail", "--from", "1")
    assert reading.stdout is not None
    assert reading.stdout.readline()
    reading.stdout.close()
    cli("chat", "piped", "-m", "hello")
    assert reading.wait(90) == 0
    assert reading.stderr is not None and reading.stderr.read() == b""
    reading.stderr.close()
