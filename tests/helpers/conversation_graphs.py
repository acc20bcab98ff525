"""Opens the conversation graph as one process does, with separate connections, models, checkpointer and store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from helpers.openai_server import OpenAIServer
from helpers.stage import Stage, on_stage
from langgraph.types import StateSnapshot

from turnlog.agent.settings import Settings
from turnlog.consumers.langgraph.chat import converse, thread_config
from turnlog.consumers.langgraph.checkpoint.saver import TurnlogSaver
from turnlog.consumers.langgraph.conversation import Graph, conversation_graph
from turnlog.consumers.langgraph.conversation_routes import Route
from turnlog.consumers.langgraph.store.store import TurnlogStore

ESSAYS = Route("essay", ("essay", "draft", "文书", "大纲"), (r"write .*essay", "写.*文书"), "essays", "ESSAY")
THREAD = "t"


@dataclass(frozen=True, slots=True)
class Instance:
    """The graph of one process, with separate connections, models, checkpointer and store."""

    stage: Stage
    graph: Graph
    store: TurnlogStore

    async def ask(self, text: str | None, thread: str = THREAD) -> str:
        return "".join([piece async for piece in converse(self.graph, thread, "ann", text)])

    async def state(self, thread: str = THREAD) -> StateSnapshot:
        return await self.graph.aget_state(thread_config(thread))

    async def debug(self) -> dict[str, str]:
        values: dict[str, str] = (await self.state()).values["debug"]
        return values

    async def usage(self) -> list[Any]:
        await self.stage.runtime.wait_until_projected()
        return await self.stage.rows("SELECT user_id, agent, calls, errors FROM usage WHERE purpose = 'answer'")


@asynccontextmanager
async def instance(settings: Settings, **more: Any) -> AsyncIterator[Instance]:
    chosen = settings.model_copy(update=more)
    async with on_stage(chosen, ("projectors",)) as stage:
        runtime = stage.runtime
        store = TurnlogStore(runtime.log, runtime.pool, settings=chosen)
        try:
            saver = TurnlogSaver(runtime.log, runtime.pool)
            yield Instance(stage, conversation_graph(runtime, (ESSAYS,), checkpointer=saver, store=store), store)
        finally:
            await store.aclose()


def sent(model: OpenAIServer) -> list[tuple[str, str]]:
    """Returns (role, content) of the messages of the latest request, without the system prompt."""
    return [(message["role"], message["content"]) for message in model.bodies()[-1]["messages"][1:]]


def settings_of(nats_url: str, database_url: str, model: OpenAIServer) -> Settings:
    """Returns settings for a graph that uses the local model server for chat and embeddings."""
    settings = {"api_base_url": model.url, "api_key": model.key, "model": "gpt-4o"}
    servers = {"nats_url": nats_url, "database_url": database_url, "embedding_model": "bag-of-words"}
    return Settings.model_validate(settings | servers)
