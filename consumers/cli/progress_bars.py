"""Progress bars of commands that take long."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from turnlog.consumers.cli.console import err


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f}/s" if speed else "", style="progress.data.speed")


@contextmanager
def progress(label: str, total: float | None = None) -> Iterator[Callable[[float, float | None], None]]:
    """Shows a progress bar with rate and time left on stderr, if that is a terminal; yields update(completed, total).

    rich would redirect printed output to the bar's console, but a document belongs on stdout.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
    )
    watched = err.is_terminal
    with Progress(*columns, console=err, disable=not watched, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(label, total=total)

        def update(completed: float, total: float | None = None) -> None:
            bar.update(task, completed=completed, total=total)

        yield update
