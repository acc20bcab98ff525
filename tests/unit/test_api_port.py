"""The port that the API listens on, where another program has it."""

from pathlib import Path
from socket import create_server

import pytest

from turnlog.consumers.api.serving import PortTaken, listening


def test_a_taken_port_is_replaced_by_a_free_one_and_kept(tmp_path: Path) -> None:
    kept = tmp_path / "api-port"
    with create_server(("127.0.0.1", 0)) as other:
        taken: int = other.getsockname()[1]
        with listening("127.0.0.1", taken, kept) as first:
            port = first.getsockname()[1]
            with listening("127.0.0.1", taken, tmp_path / "of-another-home") as second:
                assert len({taken, port, second.getsockname()[1]}) == 3
    with listening("127.0.0.1", taken, kept) as again:
        assert again.getsockname()[1] == port
    with create_server(("127.0.0.1", port)), listening("127.0.0.1", taken, kept) as moved:
        assert kept.read_text() == str(moved.getsockname()[1]) != str(port)


def test_a_taken_port_that_was_given_is_an_error() -> None:
    with (
        create_server(("127.0.0.1", 0)) as other,
        pytest.raises(PortTaken, match="set TURNLOG_API_PORT to a free port"),
        listening("127.0.0.1", other.getsockname()[1], None),
    ):
        pass
