"""The API finds a port if another program has its port, and refuses to be its own model."""

from pathlib import Path
from socket import create_server

import pytest

from turnlog.consumers.api.serving import OwnModel, PortTaken, check_model, listening


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


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_an_api_that_is_its_own_model_does_not_start(host: str) -> None:
    with pytest.raises(OwnModel, match="unset it"):
        check_model(f"http://{host}:8484/v1", "http://127.0.0.1:8484")


@pytest.mark.parametrize("model", [None, "http://127.0.0.1:11434/v1", "https://api.example.org/v1"])
def test_an_api_with_another_server_as_model_starts(model: str | None) -> None:
    check_model(model, "http://127.0.0.1:8484")
