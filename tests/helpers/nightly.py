"""What is done at full size with --nightly, and at a part of it in every other run."""

FULL = False  # set by --nightly, before tests are collected


def examples(full: int) -> int:
    """How many examples a slow property tries: a third of them in every other run."""
    return full if FULL else full // 3
