"""Events of an archived conversation that are unencrypted in the log are sealed in its file."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from helpers.key_rings import KeysAtHand

from turnlog.agent.conversations.archive.files import ArchiveDamaged, ArchivedRow, sealed, unsealed

WHEN = datetime(2023, 5, 8, tzinfo=UTC)
CLEAR = ArchivedRow(1, WHEN, "1", "turn_recorded", None, WHEN, b'{"data":{"content":"My GPA is 3.8"}}')
OF_ANN = replace(
    CLEAR,
    seq=2,
    user="ann",
    envelope=b'{"sealed":"AAAA","sealedkey":"11111111-2222-4333-8444-555555555555"}',
)
PLACE = ("acme", "acme/2023-05/t-2.parquet")
KEYS = KeysAtHand()


def test_only_unencrypted_events_are_sealed_and_all_can_be_opened() -> None:
    first, second = sealed([CLEAR, OF_ANN], KEYS, *PLACE)
    assert b"GPA" not in first.envelope
    assert second == OF_ANN
    assert unsealed([first, second], KEYS, *PLACE) == [CLEAR, OF_ANN]


def test_without_keys_the_file_contains_the_event_unencrypted() -> None:
    assert sealed([CLEAR], None, *PLACE) == [CLEAR] == unsealed([CLEAR], None, *PLACE)


def test_a_file_that_cannot_be_opened_is_damaged_and_the_log_is_read_instead() -> None:
    [row] = sealed([CLEAR], KEYS, *PLACE)
    with pytest.raises(ArchiveDamaged, match="of tenant 'acme', which is lost or not given"):
        unsealed([row], None, *PLACE)
    with pytest.raises(ArchiveDamaged, match="lost or not given"):
        unsealed([row], KeysAtHand(destroyed=True), *PLACE)
    for changed, path in ((replace(row, seq=2), PLACE[1]), (row, "acme/2023-05/u-2.parquet")):
        with pytest.raises(ArchiveDamaged, match="was changed"):
            unsealed([changed], KEYS, "acme", path)
