"""Makes copies of the repository outside the working tree, with a folder from which Python imports their `turnlog`."""

import os
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def tracked_files(repository: Path = REPOSITORY) -> list[Path]:
    """Returns the paths, relative to the repository, of all files that git tracks and that exist."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=repository, check=True, capture_output=True, text=True)
    return [Path(name) for name in listed.stdout.split("\0") if name and (repository / name).is_file()]


def copy_working_tree(to: Path) -> Path:
    """Copies the tracked files in their current state. Returns `to`."""
    for path in tracked_files():
        (to / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / path, to / path)
    return to


def copy_commit(commit: str, to: Path) -> Path:
    """Writes the files of a commit. Returns `to`."""
    to.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=REPOSITORY, check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", to], input=archive.stdout, check=True)
    return to


def importable(copy: Path) -> Path:
    """Creates a folder of links with the layout of pyproject's package-dir, and returns it. In PYTHONPATH it comes
    before the installed turnlog."""
    folders = tomllib.loads((copy / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-dir"]
    library = copy / "build" / "importable"
    for package, folder in sorted(folders.items()):
        destination = library.joinpath(*package.split("."))
        if package == "turnlog":
            destination.mkdir(parents=True)
            for path in (copy / folder).iterdir():
                (destination / path.name).symlink_to(path)
        else:
            destination.symlink_to(copy / folder)
    return library


def environment_of_copy(copy: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the environment for commands that import turnlog and the test helpers from the copy."""
    path = os.pathsep.join([str(copy / "build" / "importable"), str(copy / "tests")])
    return {**environment, "PYTHONPATH": path}
