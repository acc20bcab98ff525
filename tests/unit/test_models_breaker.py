"""Tests the circuit breaker with a simulated clock."""

import pytest

from turnlog.agent.models.calls import Breaker
from turnlog.agent.models.errors import BreakerOpen


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def opened() -> tuple[Breaker, Clock]:
    clock = Clock()
    breaker = Breaker("it", clock=clock)
    for _ in range(5):
        breaker.admit()
        breaker.failed()
    return breaker, clock


def test_a_success_in_between_resets_the_count():
    breaker = Breaker("it", clock=Clock())
    for outcome in [breaker.failed] * 4 + [breaker.succeeded] + [breaker.failed] * 4:
        breaker.admit()
        outcome()
    assert breaker.state == "closed"


def test_an_open_breaker_says_when_to_come_back():
    breaker, clock = opened()
    clock.now = 10
    with pytest.raises(BreakerOpen) as caught:
        breaker.admit()
    assert caught.value.retry_after_s == 20


def test_half_open_admits_two_trials_at_a_time():
    breaker, clock = opened()
    clock.now = 30
    breaker.admit()
    breaker.admit()
    with pytest.raises(BreakerOpen):
        breaker.admit()


def test_a_failed_trial_opens_again_for_the_whole_time():
    breaker, clock = opened()
    clock.now = 30
    breaker.admit()
    breaker.succeeded()
    breaker.admit()
    breaker.failed()
    clock.now = 59
    assert breaker.state == "open"
    clock.now = 60
    assert breaker.state == "half-open"


def test_a_trial_that_was_cancelled_gives_its_place_back():
    breaker, clock = opened()
    clock.now = 30
    for _ in range(5):
        breaker.admit()
        breaker.released()
    assert breaker.state == "half-open"


def fail(breaker: Breaker, *askers: str) -> None:
    for asker in askers:
        breaker.admit(asker)
        breaker.failed(asker)


def test_failures_of_one_asker_block_only_that_asker():
    breaker = Breaker("it", clock=Clock())
    fail(breaker, *["ann"] * 5, "bob", "bob")
    breaker.admit("carl")
    with pytest.raises(BreakerOpen):
        breaker.admit("ann")


def test_failures_of_several_askers_open_it_for_all_and_a_failed_trial_opens_it_again():
    clock = Clock()
    breaker = Breaker("it", clock=clock)
    fail(breaker, "ann", "bob", "ann", "bob", "carl")
    with pytest.raises(BreakerOpen):
        breaker.admit("dora")
    clock.now = 30
    fail(breaker, "ann")
    clock.now = 59
    with pytest.raises(BreakerOpen):
        breaker.admit("dora")


def test_failures_are_forgotten_after_a_success_and_in_time():
    clock = Clock()
    breaker = Breaker("it", clock=clock)
    fail(breaker, *["ann"] * 5)
    clock.now = 86_400
    fail(breaker, "bob")
    breaker.admit("carl")
    breaker.succeeded("carl")
    breaker.admit("ann")
    fail(breaker, "ann", "bob", "ann", "bob")
    breaker.admit("carl")
    breaker.succeeded("carl")
    fail(breaker, "dora")
    assert breaker.state == "closed"
