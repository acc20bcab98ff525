"""All read models by name, in the order they are listed to people."""

from turnlog.events.errors import NotFound
from turnlog.projectors.archives import ARCHIVES
from turnlog.projectors.checkpoints import CHECKPOINTS
from turnlog.projectors.entities import ENTITIES
from turnlog.projectors.jobs import JOBS
from turnlog.projectors.memories import MEMORIES
from turnlog.projectors.messages import MESSAGES
from turnlog.projectors.projection import Projection
from turnlog.projectors.sessions import SESSIONS
from turnlog.projectors.store_items import STORE_ITEMS
from turnlog.projectors.summaries import SUMMARIES
from turnlog.projectors.thread_activity import THREAD_ACTIVITY
from turnlog.projectors.topics import TOPICS
from turnlog.projectors.usage import USAGE
from turnlog.projectors.vectors import VECTORS

PROJECTIONS: tuple[Projection, ...] = (
    THREAD_ACTIVITY,
    MESSAGES,
    CHECKPOINTS,
    SUMMARIES,
    VECTORS,
    TOPICS,
    USAGE,
    SESSIONS,
    STORE_ITEMS,
    MEMORIES,
    ENTITIES,
    JOBS,
    ARCHIVES,
)
BY_NAME = {projection.name: projection for projection in PROJECTIONS}


def find(name: str) -> Projection:
    """Raises NotFound with the names there are."""
    if name not in BY_NAME:
        raise NotFound(f"there is no projection {name!r}; there are {', '.join(BY_NAME)}")
    return BY_NAME[name]
