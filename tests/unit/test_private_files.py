"""Only their owner can read private folders and files."""

import logging
import os
import stat
from pathlib import Path

import pytest

from turnlog.agent.private_files import open_private, private_folder


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_new_and_formerly_public_files_are_closed_to_others(tmp_path: Path) -> None:
    wide = tmp_path / "wide"
    wide.mkdir()
    wide.chmod(0o755)
    (wide / "file").touch()
    (wide / "file").chmod(0o644)
    for folder in (wide, tmp_path / "new" / "home"):
        os.close(open_private(private_folder(folder) / "file", os.O_WRONLY))
        assert (rights(folder), rights(folder / "file")) == (0o700, 0o600)


def test_a_folder_that_all_users_share_stays_open_and_a_warning_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o1777)
    with caplog.at_level(logging.WARNING):
        private_folder(tmp_path)
    assert rights(tmp_path) == 0o1777
    assert f"other users can read {tmp_path}" in caplog.text


def test_a_folder_that_lets_the_user_of_the_servers_through_stays_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    assert rights(private_folder(tmp_path)) == 0o711
