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
    openapi, generated = tmp_path / "openapi.json", tmp_path / "generated.d.ts"
    openapi.write_text(json.dumps(document()), "utf-8")
    subprocess.run([node(), GENERATOR, openapi, OPTIONAL, "--output", generated], check=True, capture_output=True)
    same = generated.read_text("utf-8") == TYPES.read_text("utf-8")
    assert same, "start the server, and run npm run generate in docs/typescript"
