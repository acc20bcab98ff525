"""The embedded Postgres uses a share of the available memory."""

from pathlib import Path

import psutil
import pytest

from turnlog.consumers.servers.postgres_server import buffers_mb, memory, render

MB = 2**20


@pytest.mark.parametrize(
    ("memory_mb", "buffers"), [(256, 128), (512, 128), (2_048, 512), (4_096, 1_024), (65_536, 1_024)]
)
def test_buffers_are_a_quarter_of_the_memory_within_bounds(memory_mb: int, buffers: int) -> None:
    assert buffers_mb(memory_mb * MB) == buffers


@pytest.mark.parametrize(("limit", "expected"), [(f"{700 * MB}\n", 700 * MB), ("max\n", None), (None, None)])
def test_a_containers_memory_limit_is_used(tmp_path: Path, limit: str | None, expected: int | None) -> None:
    file = tmp_path / "memory.max"
    if limit is not None:
        file.write_text(limit)
    assert memory(file) == (expected or psutil.virtual_memory().total)


def test_the_configuration_has_buffers_for_the_memory(tmp_path: Path) -> None:
    assert f"shared_buffers = '{buffers_mb(memory())}MB'" in render(tmp_path)
