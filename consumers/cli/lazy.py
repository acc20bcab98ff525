"""Imports of commands' modules that run later.

A command's module imports at its top what its commands call, such as `from turnlog.agent.answering import asking`, and
that loads libraries for a second. --help and completion need none of it, so these modules run at the first use of one
of their names (`importlib.util.LazyLoader`). It works for imports of a module, not for those of names from it.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import LazyLoader
from types import ModuleType

LATER = ("turnlog.agent.", "turnlog.projectors.", "turnlog.consumers.")


class _LaterFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(LATER) or fullname.startswith("turnlog.consumers.cli."):
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and isinstance(spec.loader, Loader):
            spec.loader = LazyLoader(spec.loader)
        return spec


def import_lazily(name: str) -> ModuleType:
    """Imports a command's module; modules of turnlog that it imports run when they are first used."""
    finder = _LaterFinder()
    sys.meta_path.insert(0, finder)
    try:
        return import_module(name)
    finally:
        sys.meta_path.remove(finder)
