"""The types of docs/typescript are those of the server's document; skipped where `make clients` installed no Node."""

import json
import subprocess
from pathlib import Path

import pytest
from installed import HOME, node

from turnlog.consumers.api.app import document

TYPES = Path(__file__).parents[2] / "docs/typescript/turnlog.d.ts"
GENERATOR = HOME / "node_modules/openapi-typescript/bin/cli.js"
OPTIONAL = "--default-non-nullable=false"  # a field with a default need not be sent


@pytest.mark.skipif(not GENERATOR.exists(), reason="needs what `make clients` installs")
def test_the_types_are_those_of_the_servers_document(tmp_path: Path) -> None:
    given, found = tmp_path / "openapi.json", tmp_path / "found.d.ts"
    given.write_text(json.dumps(document()), "utf-8")
    subprocess.run([node(), GENERATOR, given, OPTIONAL, "--output", found], check=True, capture_output=True)
    same = found.read_text("utf-8") == TYPES.read_text("utf-8")
    assert same, "start the server, and run npm run generate in docs/typescript"
