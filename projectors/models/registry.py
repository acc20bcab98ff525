"""Lists all read models, in the order in which people see them, and finds them by name."""

from turnlog.events.errors import NotFound
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.models.checkpoints.projection import CHECKPOINTS
from turnlog.projectors.models.chunks.projection import VECTORS
from turnlog.projectors.models.conversation.messages import MESSAGES
from turnlog.projectors.models.conversation.summaries import SUMMARIES
from turnlog.projectors.models.conversation.thread_activity import THREAD_ACTIVITY
from turnlog.projectors.models.conversation.topics import TOPICS
from turnlog.projectors.models.memories.entities import ENTITIES
from turnlog.projectors.models.memories.profile_texts import PROFILE_TEXTS
from turnlog.projectors.models.memories.projection import MEMORIES
from turnlog.projectors.models.operations.agents import AGENTS_MODEL
from turnlog.projectors.models.operations.api_keys import ACCESS_KEYS
from turnlog.projectors.models.operations.archives import ARCHIVES
from turnlog.projectors.models.operations.jobs import JOBS
from turnlog.projectors.models.operations.limits import LIMITS_MODEL
from turnlog.projectors.models.operations.usage import USAGE
from turnlog.projectors.models.runs.projection import AGENT_RUNS
from turnlog.projectors.models.sessions.projection import SESSIONS
from turnlog.projectors.models.store.projection import STORE_ITEMS

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
    PROFILE_TEXTS,
    JOBS,
    LIMITS_MODEL,
    AGENTS_MODEL,
    ARCHIVES,
    ACCESS_KEYS,
    AGENT_RUNS,
)
BY_NAME = {projection.name: projection for projection in PROJECTIONS}


def find(name: str) -> Projection:
    """Returns the projection with this name. Raises NotFound, whose message lists the names."""
    if name not in BY_NAME:
        raise NotFound(f"there is no projection {name!r}; there are {', '.join(BY_NAME)}")
    return BY_NAME[name]
