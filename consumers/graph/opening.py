"""The conversation graph with all it needs, for a program that has nothing of turnlog open yet."""

import contextlib
from collections.abc import AsyncIterator, Sequence

from turnlog.agent.models.factory import make_models
from turnlog.agent.settings import Settings, load_settings
from turnlog.consumers.graph.build import Deps, Graph, conversation_graph
from turnlog.consumers.graph.route import Route
from turnlog.consumers.langgraph.saver import TurnlogSaver
from turnlog.consumers.langgraph.store import TurnlogStore
from turnlog.consumers.runtime import opened, projecting


@contextlib.asynccontextmanager
async def opened_graph(routes: Sequence[Route] = (), settings: Settings | None = None) -> AsyncIterator[Graph]:
    """Servers, models, TurnlogSaver and TurnlogStore (`graph.store`) while the block runs. Raises TurnlogErrors."""
    chosen = settings or load_settings()
    async with opened(chosen, "turnlog-graph") as runtime, projecting(runtime), contextlib.AsyncExitStack() as stack:
        models = make_models(chosen)
        stack.push_async_callback(models.close)
        store = TurnlogStore(runtime.log, runtime.pool, chosen.tenant, settings=chosen)
        stack.push_async_callback(store.aclose)
        saver = TurnlogSaver(runtime.log, runtime.pool, chosen.tenant)
        yield conversation_graph(Deps(runtime, models, routes), checkpointer=saver, store=store)
