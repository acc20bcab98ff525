"""All that commands load, loaded by importing this: modules, and what a process makes once of files.

The modules of the command line are not among them: each process makes its console from its own environment.
"""

import gc
import pkgutil
from importlib import import_module

from turnlog.agent.context.tokens import counter_for
from turnlog.agent.memory.extraction.rules import load_rules
from turnlog.agent.settings import Settings

MODULES = [
    "anyio._backends._asyncio",
    "pytest",  # a fork runs its parent's main module again, which is pytest's
    "rich.progress",
    "rjieba",
    "turnlog.consumers.roles",
    "typer._adapters",
]
PACKAGES = ["turnlog.agent", "turnlog.projectors"]

for name in MODULES:
    import_module(name)
for package in PACKAGES:
    for one in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
        import_module(one.name)
load_rules()
counter_for(Settings.model_fields["model"].default)
# No object of these is garbage, and a fork that looks for some copies the pages that it looks at.
gc.freeze()
