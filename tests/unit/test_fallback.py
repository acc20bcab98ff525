"""The text that replaces a failed answer fits the kind of error."""

from typing import get_args

import pytest

from turnlog.agent.answering.asking import NoAnswer
from turnlog.agent.answering.fallback import Category, Locale, fallback_of
from turnlog.agent.models.errors import (
    BreakerOpen,
    ModelMalformed,
    ModelModerated,
    ModelQuotaExceeded,
    ModelRateLimited,
    ModelRefused,
    ModelTimedOut,
    ModelUnavailable,
    NoEmbeddings,
    NotAnAPI,
)
from turnlog.consumers.api.problems import STATUS, problem_of
from turnlog.consumers.workers.answering import FINAL
from turnlog.events.errors import InvalidToken, TurnlogError

ERRORS: dict[Category, TurnlogError] = {
    "rate_limit": ModelRateLimited("slower"),
    "quota": ModelQuotaExceeded("spent"),
    "timeout": ModelTimedOut("slow"),
    "circuit_open": BreakerOpen("open", retry_after_s=12.4),
    "network": ModelUnavailable("away"),
    "moderation": ModelModerated("no"),
    "unknown": ModelMalformed("no JSON"),
}


@pytest.mark.parametrize("category", ERRORS)
def test_a_lost_answer_is_explained_by_its_cause_in_both_languages(category: Category) -> None:
    error = ERRORS[category]
    said = {locale: fallback_of(NoAnswer(str(error), error.code), locale) for locale in get_args(Locale)}
    assert {fallback.category for fallback in said.values()} == {category}
    assert said["zh"].message != said["en"].message and said["en"].message.isascii()
    assert said["zh"].should_retry == (category not in ("moderation", "quota"))


def test_fallbacks_have_the_specified_words_and_retry_times() -> None:
    slow = fallback_of(ERRORS["timeout"], "zh")
    assert (slow.message, slow.suggestions) == (
        "处理时间较长，请稍后再试或简化您的问题。",
        ("简化问题", "分步询问"),
    )
    assert fallback_of(ERRORS["network"], "zh").retry_after_s == 5
    assert fallback_of(ERRORS["circuit_open"], "zh").retry_after_s == 12
    assert fallback_of(NoAnswer("unknown why"), "zh").retry_after_s == 10


@pytest.mark.parametrize(("locale", "wait"), [("zh", "30"), (None, "30")])
def test_an_answer_that_an_open_breaker_prevented_may_be_asked_for_again(locale: Locale | None, wait: str) -> None:
    error = NoAnswer("the breaker is open", ERRORS["circuit_open"].code)
    answer = problem_of(error, locale)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, wait)
    assert problem_of(NoAnswer("no JSON", ERRORS["unknown"].code), locale).status_code == 502


@pytest.mark.parametrize("kind", [*FINAL[1:], ModelRefused, NotAnAPI, NoEmbeddings, InvalidToken])
def test_a_person_is_told_to_ask_again_only_if_that_helps(kind: type[TurnlogError]) -> None:
    said = {locale: fallback_of(NoAnswer("why", kind.code), locale) for locale in get_args(Locale)}
    assert {(fallback.should_retry, fallback.retry_after_s) for fallback in said.values()} == {(False, None)}
    assert said["zh"].message != said["en"].message and "try again" not in said["en"].message.lower()
    answer = problem_of(NoAnswer("why", kind.code))
    assert (answer.status_code, "retry-after" in answer.headers) == (STATUS[kind.code], False)
