"""Loads the modules of the selected tests when it is imported, as pytest's collection does."""

import json
import os

import pytest

os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
# Output is not captured, because some libraries keep the streams that exist when they are loaded.
pytest.main(["--collect-only", "--capture=no", "-p", "no:cacheprovider", *json.loads(os.environ["TESTS_TO_LOAD"])])
