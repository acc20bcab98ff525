"""pytest --slow-callbacks: lists the callbacks that blocked an event loop for more than 50 ms, slowest first.

It only reports and fails no test, because the duration of a callback also depends on the machine.
"""

import asyncio
import time
from asyncio import Handle
from collections.abc import Iterator

import pytest

SLOW_S, SHOWN = 0.05, 30
KEY = "slow callback"


class SlowCallbacks:
    def __init__(self) -> None:
        self.found: list[tuple[float, str]] = []

    def watch(self) -> None:
        run = Handle._run

        def timed(handle: Handle) -> None:
            started = time.perf_counter()
            run(handle)
            if (took := time.perf_counter() - started) > SLOW_S:
                self.found.append((took, _name(handle)))

        Handle._run = timed  # type: ignore[method-assign]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.found.clear()
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Stores the callbacks in the test's properties, which reach the terminal from other processes too."""
        item.user_properties += [(KEY, (took, name, item.nodeid)) for took, name in self.found]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        reports = [
            report for some in terminalreporter.stats.values() for report in some if hasattr(report, "user_properties")
        ]
        slow = {tuple(value) for report in reports for key, value in report.user_properties if key == KEY}
        terminalreporter.section(f"{len(slow)} callbacks over {SLOW_S * 1000:.0f} ms")
        for took, name, test in sorted(slow, reverse=True)[:SHOWN]:
            terminalreporter.line(f"{took * 1000:6.0f} ms  {name}  {test}")


def _name(handle: Handle) -> str:
    callback = handle._callback
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"task {getattr(owner.get_coro(), '__qualname__', owner.get_coro())}"
    return str(getattr(callback, "__qualname__", callback))
