"""In a scope's vector space the query's difference from the mean counts, but the model's scale does not."""

import numpy as np
import pytest

from turnlog.agent.recall.space import Space

ROWS = np.random.default_rng(3).normal(size=(40, 6)).astype(np.float32) + 5


def unit(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True), dtype=np.float32)


def test_scores_are_z_scores_over_the_scope() -> None:
    rows = unit(ROWS)
    space = Space.of(rows)
    assert space is not None
    direction = space.direction(rows[7])
    assert direction is not None
    scores = (rows @ direction.toward - direction.middle) / direction.spread
    assert float(scores.mean()) == pytest.approx(0, abs=1e-3)
    assert float(scores.std()) == pytest.approx(1, abs=1e-3)


def test_a_chunk_is_nearer_to_itself_than_the_mean_is_though_all_vectors_are_alike() -> None:
    rows = unit(ROWS)
    space = Space.of(rows)
    assert space is not None
    for row in rows:
        direction = space.direction(9 * row)  # its length does not matter
        assert direction is not None
        assert row @ direction.toward > direction.middle


def test_rows_that_do_not_differ_have_no_space() -> None:
    assert Space.of(unit(np.ones((5, 4)))) is None
    assert Space.of(unit(ROWS[:2])) is None
