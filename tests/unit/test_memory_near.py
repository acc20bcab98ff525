"""Near vectors are found without comparing all pairs, with the same result as by comparing all pairs."""

import numpy as np
from numpy.typing import NDArray

from turnlog.agent.memory.upkeep.near_vectors import BRUTE_FORCE_UP_TO, near_pairs


def vectors(count: int, copies: int, seed: int = 7) -> NDArray[np.float16]:
    """Returns random directions around a common one, as compressed models make them, and near copies of some."""
    chance = np.random.default_rng(seed)
    made = chance.normal(size=(count, 64)) + 2 * chance.normal(size=(1, 64))
    near = made[chance.integers(0, count, copies)] + 0.05 * chance.normal(size=(copies, 64))
    return chance.permutation(np.concatenate([made, near])).astype(np.float16)


def all_pairs(vectors: NDArray[np.float16], least: float) -> set[tuple[int, int]]:
    unit = vectors.astype(np.float32)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    return {(int(a), int(b)) for a, b in np.argwhere(np.triu(unit @ unit.T, 1) >= least)}


def test_every_near_pair_of_few_vectors_is_found() -> None:
    few = vectors(300, 30)
    pairs = [(pair.first, pair.second) for pair in near_pairs(few, 0.99)]
    assert set(pairs) == all_pairs(few, 0.99)
    assert len(pairs) == len(set(pairs)) >= 30


def test_nearly_every_near_pair_of_many_vectors_is_found_once() -> None:
    many = vectors(BRUTE_FORCE_UP_TO, 400)
    pairs = [(pair.first, pair.second) for pair in near_pairs(many, 0.99)]
    wanted = all_pairs(many, 0.99)
    assert set(pairs) <= wanted
    assert len(pairs) == len(set(pairs)) >= 0.97 * len(wanted)


def test_no_vector_and_one_vector_have_no_pairs() -> None:
    assert list(near_pairs(np.zeros((0, 3), np.float16), 0.9)) == []
    assert list(near_pairs(np.ones((1, 3), np.float16), 0.9)) == []


def test_a_zero_vector_is_near_to_no_other() -> None:
    assert list(near_pairs(np.zeros((3, 4), np.float16), 0.5)) == []
