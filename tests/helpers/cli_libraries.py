"""Loads all libraries that commands use, and data that a process reads once from files.

The modules of the command line are not loaded, because each process creates its console from its own environment.
"""

import gc
import pkgutil
from importlib import import_module

from turnlog.agent.context.tokens import counter_for
from turnlog.agent.memory.extraction.rules import load_rules
from turnlog.agent.settings import Settings

MODULES = [
    "anyio._backends._asyncio",
    "pytest",  # a fork runs its parent's main module again, which is pytest's main module
    "rich.progress",
    "rjieba",
    "turnlog.consumers.roles",
    "typer._adapters",
]
PACKAGES = ["turnlog.agent", "turnlog.projectors"]

for name in MODULES:
    import_module(name)
for package in PACKAGES:
    for module in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
        import_module(module.name)
load_rules()
counter_for(Settings.model_fields["model"].default)
# None of these objects is garbage, and a fork that searches them for garbage would copy their memory pages.
gc.freeze()
