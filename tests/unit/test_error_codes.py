"""Every interface's table of error codes names only existing codes, and every code has a deliberate entry."""

import ast
import functools
import json
import re
from pathlib import Path

import pytest
from psycopg.errors import QueryCanceled
from psycopg_pool import PoolTimeout
from starlette.requests import Request

from turnlog.agent.answering.asking import NoAnswer
from turnlog.agent.answering.fallback import CATEGORIES, REFUSALS, category_of, why_zh
from turnlog.agent.context.message_units import SAYS_NOTHING
from turnlog.agent.context.receipt import REASONS_ZH
from turnlog.agent.context.selection import OVER_BUDGET, TOO_LARGE
from turnlog.agent.memory.preferences import VALUES_ZH, InvalidPreference, checked
from turnlog.consumers.api.dialects.openai.errors import CODES, response_of
from turnlog.consumers.api.problems import STATUS, Refused, Stopping, problem, problem_of, reader_language
from turnlog.consumers.workers.answering import FINAL
from turnlog.events.contracts import UserPreferences
from turnlog.events.errors import TurnlogError
from turnlog.projectors.engine.lag import NotProjectedInTime

ROOT = Path(__file__).parent.parent.parent
# Errors of commands, of process starts and of internal libraries, which no request can cause.
NEVER_OVER_HTTP = {
    "already-up",
    "backup-failed",
    "bad-option",
    "closed",
    "export-failed",
    "invalid-index",
    "invalid-item",
    "invalid-kek",
    "invalid-prompt",
    "invalid-route",
    "invalid-rules",
    "invalid-schedule",
    "invalid-sql",
    "invalid-setting",
    "invalid-team",
    "invalid-time",
    "invalid-tool",
    "metrics-port-taken",
    "no-tenant-role",
    "not-confirmed",
    "not-settled",
    "not-up",
    "not-written",
    "open-to-all",
    "own-model",
    "port-taken",
    "server-start-failed",
    "server-stop-failed",
    "server-unavailable",
    "type-not-allowed",
    "wrong-client",
    "wrong-kek",
    "wrong-thread",
}


@functools.cache
def codes() -> set[str]:
    """Returns the code of every error class in the packages."""
    return {
        str(line.value.value)
        for folder in ("events", "projectors", "agent", "consumers")
        for path in (ROOT / folder).rglob("*.py")
        if "    code = " in (source := path.read_text())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        for line in node.body
        if isinstance(line, ast.Assign)
        and isinstance(line.value, ast.Constant)
        and [target.id for target in line.targets if isinstance(target, ast.Name)] == ["code"]
    }


def written() -> dict[str, int]:
    """Returns the codes that the API uses without an error class, with their status. OAuth has separate codes."""
    statuses = {}
    for path in {*(ROOT / "consumers/api").rglob("*.py")} - {ROOT / "consumers/api/mcp/oauth.py"}:
        for node in ast.walk(ast.parse(path.read_text())):
            parts = getattr(node, "args" if isinstance(node, ast.Call) else "elts", [])[:2]
            values = [part.value for part in parts if isinstance(part, ast.Constant)]
            if len(values) == 2 and isinstance(values[0], int) and values[0] >= 400 and isinstance(values[1], str):
                statuses[values[1]] = values[0]
    return statuses


def test_every_code_has_a_deliberate_status() -> None:
    known = codes() | written().keys()
    assert len(known) > 90 and len(written()) > 10
    assert written().items() <= STATUS.items()
    assert {*STATUS, *NEVER_OVER_HTTP} - known == set(), "codes that no error has"
    assert known - {*STATUS, *NEVER_OVER_HTTP} == set(), "add them to STATUS of consumers/api/problems.py"
    assert STATUS.keys() & NEVER_OVER_HTTP == set()


def test_tables_of_other_interfaces_name_codes_that_exist() -> None:
    assert {*CATEGORIES, *REFUSALS, *CODES} - codes() == set()


def test_every_code_has_a_deliberate_message_for_people() -> None:
    assert (STATUS.keys() & codes()) - {*CATEGORIES, *REFUSALS} == set(), (
        "add them to one table of agent/answering/fallback.py"
    )
    assert CATEGORIES.keys() & REFUSALS == set()


def test_every_code_says_why_in_chinese() -> None:
    unsaid = [code for code in {*STATUS, *REFUSALS} if why_zh(code) == why_zh("unknown")]
    assert sorted(unsaid) == [
        "error",
        "internal-error",
        "model-bad-answer",
        "model-empty-answer",
        "model-malformed",
        "no-answer",
    ]
    token = reader_language.set("zh")
    try:
        assert json.loads(bytes(problem_of(NoAnswer("x", "thread-parked")).body))["title"] == why_zh("thread-parked")
    finally:
        reader_language.reset(token)


def test_a_refused_preference_says_in_the_language_of_the_reader_what_is_allowed() -> None:
    token = reader_language.set("zh")
    try:
        for preference in ({"language": 5}, {"timezone": "Mars/Base"}, {"retention_days": 10}, {"school": ["x"] * 21}):
            with pytest.raises(InvalidPreference) as refused:
                checked(preference, most_days=9)
            (name,) = preference
            assert json.loads(bytes(problem_of(refused.value).body))["detail"].startswith(f"偏好 {name}")
            assert json.loads(bytes(problem_of(refused.value, "en").body))["detail"].startswith(f"{name}: ")
    finally:
        reader_language.reset(token)


def test_every_preference_has_chinese_words_for_its_values() -> None:
    assert VALUES_ZH.keys() == UserPreferences.model_fields.keys()


def test_every_reason_to_leave_a_turn_out_has_chinese_words() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "agent/context").glob("*.py") if path.name != "receipt.py")
    written = re.findall(r'Remark\([\w.\[\]]+, "([^"]+)"', sources)
    assert len(written) > 5 and {*written, SAYS_NOTHING, OVER_BUDGET, TOO_LARGE} == REASONS_ZH.keys()


def test_every_end_of_an_answer_has_words_for_a_person() -> None:
    assert {code for kind in FINAL for code in codes_below(kind)} - {*CATEGORIES, *REFUSALS} == set()


def codes_below(kind: type[TurnlogError]) -> set[str]:
    return {kind.code}.union(*map(codes_below, kind.__subclasses__()))


def test_a_person_who_can_only_wait_is_never_told_something_unknown() -> None:
    waits = [code for code, status in STATUS.items() if status in (402, 429, 503) and code in codes()]
    assert [code for code in waits if category_of(code) == "unknown"] == []


def test_late_rows_are_reported_as_retryable() -> None:
    answer = problem_of(NotProjectedInTime("messages did not reach sequence 9"))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


@pytest.mark.parametrize("error", [QueryCanceled(), PoolTimeout(), Stopping("x"), Refused(503, "stopping", "x")])
def test_every_503_says_when_to_ask_again(error: Exception) -> None:
    answer = response_of(error, Request({"type": "http", "headers": []}))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert problem(503, "stopping", "x").headers["retry-after"] == "5"
