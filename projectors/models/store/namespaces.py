"""Namespaces of LangGraph's store that hold what belongs to single users. Needs no LangGraph: an erasure asks, too."""

MEMORIES = "memories"


def memories_of(user_id: str) -> tuple[str, str]:
    """The store's namespace of a user's long-term memories: a label has no dots, and ids such as mail addresses do."""
    return MEMORIES, user_id.replace("%", "%25").replace(".", "%2E")
