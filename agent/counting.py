"""Writes numbers with their nouns, for messages to people."""


def counted(count: int, noun: str, many: str | None = None) -> str:
    """Returns a number with its noun: 1 thread, 2,400 threads. many: an irregular plural."""
    return f"{count:,} {noun if count == 1 else many or f'{noun}s'}"
