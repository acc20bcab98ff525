"""Detects that a streamed text repeats itself, because small models may repeat a sentence until their window is
full."""

LEAST_TIMES = 5
LEAST_BYTES = 1_200
# Short pieces, such as dashes or zeros in a table, are more often repeated on purpose than sentences.
SHORT_PERIOD, LEAST_BYTES_OF_SHORT = 12, 4_000
LONGEST_PERIOD = 1_200
_KEPT = LEAST_TIMES * LONGEST_PERIOD
_PROBE = 32
_LOOK_EVERY = 128


class Repetition:
    """Keeps the end of one text, about twice _KEPT bytes of UTF-8 at most, and checks it every _LOOK_EVERY bytes."""

    def __init__(self) -> None:
        self._end = bytearray()
        self._unseen = 0

    def add(self, piece: str) -> bool:
        """Adds a piece; returns whether the text now ends in a repetition."""
        added = piece.encode("utf-8", "surrogatepass")
        self._end += added
        self._unseen += len(added)
        if self._unseen < _LOOK_EVERY:
            return False
        self._unseen = 0
        if len(self._end) > 2 * _KEPT:
            del self._end[:-_KEPT]
        return ends_in_repetition(bytes(self._end))


def ends_in_repetition(text: bytes) -> bool:
    """Returns whether the text ends with exactly the same piece LEAST_TIMES or more in a row.

    The piece has at most LONGEST_PERIOD bytes, and all repetitions together at least LEAST_BYTES. A refrain, equal rows
    of a table or equal objects of a JSON list are shorter, and numbered lists or rows with different values are not
    equal. Bytes of UTF-8 are counted, because a Chinese character says about as much as three Latin letters. Pure.
    """
    probe = text[-_PROBE:]
    last = len(text) - len(probe)
    earlier = text.rfind(probe, 0, len(text) - 1)
    while earlier >= 0 and (period := last - earlier) <= LONGEST_PERIOD:
        if _is_periodic(text, period, max(LEAST_BYTES, LEAST_TIMES * period)):
            return period >= SHORT_PERIOD or _is_periodic(text, period, LEAST_BYTES_OF_SHORT)
        earlier = text.rfind(probe, 0, earlier + len(probe) - 1)
    return False


def _is_periodic(text: bytes, period: int, length: int) -> bool:
    return length <= len(text) and text[-length + period :] == text[-length:-period]
