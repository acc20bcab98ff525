"""Runs many `turnlog` commands one after the other in this process, for tests of their refusals.

Argument: lists of words as JSON. Prints [exit code, stdout] of each command as JSON.
"""

import json
import sys

from typer.testing import CliRunner

from turnlog.consumers.cli import app

if __name__ == "__main__":
    results = [CliRunner().invoke(app, words) for words in json.loads(sys.argv[1])]
    print(json.dumps([[result.exit_code, result.stdout] for result in results]))
