"""`python -m turnlog.consumers.cli` is the command `turnlog`."""

from turnlog.consumers.cli import main

main()
