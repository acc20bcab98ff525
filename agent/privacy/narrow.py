"""Full-width forms read as the usual ones: ４１１１ is a number, ｂｏｂ＠ｅｘａｍｐｌｅ．ｃｏｍ an address. Pure."""

import re
from collections.abc import Callable

# Of ASCII, and the ideographic space; each is one character, so places stay.
NARROW = {0xFF00 + place: 0x20 + place for place in range(1, 0x5F)} | {0x3000: 0x20}


def replaced(text: str, pattern: re.Pattern[str], made: Callable[[re.Match[str]], str | None]) -> str:
    """made: what comes in a match's place; None leaves it as it is."""
    parts, at = [], 0
    for found in pattern.finditer(text.translate(NARROW)):
        new = made(found)
        if new is not None:
            parts += [text[at : found.start()], new]
            at = found.end()
    return "".join([*parts, text[at:]]) if at else text
