"""Simulates what turnlog keeps of a growing thread: summary, topics and pruning, as thread maintenance makes them."""

from collections import Counter
from dataclasses import dataclass, field

from turnlog.agent.answering.recall_tool import SCHEMA
from turnlog.agent.answering.thread_context import context_settings
from turnlog.agent.context import Context, ContextInput, Summary, build_context, counter_for
from turnlog.agent.conversations.summarising.derive import Deriver
from turnlog.agent.conversations.summarising.due_work import Facts, plan
from turnlog.agent.conversations.summarising.facts import texts
from turnlog.agent.models.cached_calls import Owner
from turnlog.agent.models.offline_tasks import MODEL, OfflineTextTasks
from turnlog.agent.models.spending_limit import Ledger
from turnlog.agent.settings import Settings
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.message import Message
from turnlog.projectors.models.conversation.thread_lookup import TOPICS

CHAT_MODEL = "gpt-4o"
COUNTER = counter_for(CHAT_MODEL)
SETTINGS = Settings.model_construct()
SYSTEM = (
    "You are a friend who listens and remembers. Answer in the language of the question, in a few sentences. Rely on "
    "what was said in this conversation; if it does not hold the answer, say so. Never invent names, dates or numbers."
)


@dataclass(slots=True)
class Remembered:
    """The state of a conversation: its current turns, its pruned turns, and the summary and topics that replace
    them."""

    deriver: Deriver
    messages: list[Message] = field(default_factory=list)
    pruned: list[Message] = field(default_factory=list)
    summary: str = ""
    summarised_through: int = 0
    tagged_through: int = 0
    topics: Counter[str] = field(default_factory=Counter)

    async def hear(self, message: Message) -> None:
        """Adds a turn and performs the maintenance that is due after it."""
        self.messages.append(message)
        due = plan(Facts(self.messages, self.summarised_through, self.tagged_through), SETTINGS)
        if due.tag_through is not None:
            made = await self.deriver.topics(texts(self._span(self.tagged_through, due.tag_through)))
            self.topics.update(made.topics)
            self.tagged_through = due.tag_through
        if due.summarise_through is not None:
            span = self._span(self.summarised_through, due.summarise_through)
            self.summary = (await self.deriver.summary(texts(span), self.summary)).text
            self.summarised_through = due.summarise_through
        if due.prune_through is not None:
            self.pruned += self._span(0, due.prune_through)
            self.messages = self._span(due.prune_through, message.seq)

    def context(self, window: int, asked: Message, relevant: list[int]) -> Context:
        """Returns the context that thread_context builds for the agent; it includes relevant pruned turns."""
        back = [message for message in self.pruned if message.seq in relevant]
        return build_context(
            ContextInput(
                [*back, *self.messages, asked],
                CHAT_MODEL,
                SYSTEM,
                [SCHEMA],
                Summary(self.summary) if self.summary else None,
                [topic for topic, _ in self.topics.most_common(TOPICS)],
                self.pruned[-1].seq if self.pruned else 0,
                window,
                settings=context_settings(SETTINGS),
                relevant=relevant,
            )
        )

    def _span(self, after: int, through: int) -> list[Message]:
        return [message for message in self.messages if after < message.seq <= through]


def remembered(conn: Connection, thread: str) -> Remembered:
    """Returns the state of an empty thread. No language model is used: summaries are extracts, topics are keywords."""
    tasks = OfflineTextTasks(COUNTER.text)
    return Remembered(
        Deriver(
            tasks,
            MODEL,
            COUNTER,
            SETTINGS.max_summary_tokens,
            Ledger("bench", None),
            conn,
            Owner("bench", thread, None),
        )
    )
