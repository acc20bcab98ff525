"""Checks that the types in docs/typescript match the OpenAPI document. Skipped unless `make clients` installed Node."""

import json
import subprocess
from pathlib import Path

import pytest
from installed import HOME, node

from turnlog.consumers.api.app import document

TYPES = Path(__file__).parents[2] / "docs/typescript/turnlog.d.ts"
GENERATOR = HOME / "node_modules/openapi-typescript/bin/cli.js"
OPTIONAL = "--default-non-nullable=false"  # fields with a default are optional


@pytest.mark.skipif(not GENERATOR.exists(), reason="needs what `make clients` installs")
def test_the_types_match_the_servers_document(tmp_path: Path) -> None:
    given, found = tmp_path / "openapi.json", tmp_path / "found.d.ts"
    given.write_text(json.dumps(document()), "utf-8")
    subprocess.run([node(), GENERATOR, given, OPTIONAL, "--output", found], check=True, capture_output=True)
    same = found.read_text("utf-8") == TYPES.read_text("utf-8")
    assert same, "start the server, and run npm run generate in docs/typescript"
