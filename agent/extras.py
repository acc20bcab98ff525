"""Loads libraries that `pip install turnlog` does not install, because they are large and few users need them."""

import importlib
from types import ModuleType

from turnlog.events.errors import TurnlogError


class MissingExtra(TurnlogError):
    """A library of one of turnlog's extras is not installed."""

    code = "missing-extra"


def install(extra: str) -> str:
    """Returns the command that installs an extra."""
    return f"pip install 'turnlog[{extra}]'"


def parquet() -> tuple[ModuleType, ModuleType]:
    """Returns pyarrow and pyarrow.parquet, which load slowly. Raises MissingExtra."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise MissingExtra(f"Parquet files need {error.name}: {install('parquet')}") from None
