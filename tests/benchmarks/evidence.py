"""Measures how much of a question's evidence its context contains, and the tokens of a conversation's contexts.

The evidence of a LoCoMo question is the list of turns that answer it. Without LoCoMo's file nothing is measured.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from statistics import fmean

from tests.benchmarks import token_cost
from tests.benchmarks.locomo_threads import TENANT, Conversation, LocomoQuestion, conversations, question_turn
from tests.benchmarks.measuring import Row
from tests.benchmarks.remembering import CHAT_MODEL, COUNTER, SYSTEM
from tests.benchmarks.stand import Stand
from turnlog.agent.context import Context
from turnlog.agent.context.plain_text import content_text
from turnlog.agent.context.tokens import REPLY_PRIMING
from turnlog.agent.context.window import budget_for
from turnlog.agent.recall.episodes import EPISODES, relevant_episodes, relevant_seqs
from turnlog.agent.recall.hybrid import hybrid_history
from turnlog.agent.recall.search import Recall
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.lookup import Scope
from turnlog.projectors.models.conversation.message import Message

WINDOWS = token_cost.WINDOWS
LAST = 12
Shares = dict[tuple[str, int], list[tuple[float, int]]]


async def measure(stand: Stand) -> list[Row]:
    path = stand.conversations.locomo
    if not path.exists():
        method = f"Not measured: there is no {path.name} in the folder with the data."
        return [Row("evidence and token cost of contexts", "none", "none", None, None, None, method)]
    async with stand.empty_log() as log, stand.fresh_database() as url, await connect(url) as conn:
        samples = await conversations(path, log, url, conn, stand.sized(1, 6))
        recall = Recall(None)
        return [*await token_cost.rows(conn, recall, samples), *await rows(conn, recall, samples)]


async def rows(conn: Connection, recall: Recall, samples: Sequence[Conversation]) -> list[Row]:
    """Returns the mean share of a question's evidence that its context contains, for each kind of context."""
    shares: Shares = defaultdict(list)
    for conversation in samples:
        for question in conversation.questions:
            await _ask(conn, recall, conversation, question, shares)
    count = sum(len(conversation.questions) for conversation in samples)
    kinds = [(kind, window) for window in WINDOWS for kind in ("tiers", "tiers, relevant episodes first")]
    return [_row(kind, window, shares, count) for kind, window in kinds] + [_row("hybrid history", 0, shares, count)]


async def _ask(
    conn: Connection, recall: Recall, conversation: Conversation, question: LocomoQuestion, shares: Shares
) -> None:
    scope, messages, memory = Scope(TENANT, conversation.thread), conversation.messages, conversation.memory
    asked = question_turn(question.text, messages)
    relevant = relevant_seqs(await relevant_episodes(conn, recall, scope, question.text, EPISODES))
    history = await hybrid_history(conn, recall, TENANT, conversation.thread, question.text)

    def note(kind: str, window: int, shown: Collection[Message]) -> None:
        hit = question.evidence.intersection(message.seq for message in shown)
        shares[kind, window].append((len(hit) / len(question.evidence), sum(map(COUNTER.message, shown))))

    note("hybrid history", 0, history.messages)
    note("last", 0, messages[-LAST:])
    for window in WINDOWS:
        note("full history", window, cut_to(window, messages, asked))
        for kind, seqs in (("tiers", []), ("tiers, relevant episodes first", relevant)):
            context = memory.context(window, asked, seqs)
            tokens = sum(tier.tokens for tier in context.tiers)
            shares[kind, window].append((held(context, messages, question.evidence), tokens))


def held(context: Context, messages: Iterable[Message], wanted: frozenset[int]) -> float:
    """Returns the share of the wanted turns that are in any tier. A summary contains a turn if it repeats its text
    verbatim."""
    hit = wanted.intersection(item.seq for tier in context.tiers if tier.tier != "1" for item in tier.items)
    if context.tiers[0].tier == "1" and hit != wanted:
        summary = _plain(str(context.messages[1]["content"]))
        hit |= {m.seq for m in messages if m.seq in wanted and _plain(content_text(m.content)) in summary}
    return len(hit) / len(wanted)


def _plain(text: str) -> str:
    return " ".join(text.split())


def cut_to(window: int, messages: Sequence[Message], asked: Message) -> list[Message]:
    """Returns the newest turns that fit into turnlog's budget, without reserving room for its tool's schema."""
    prompt = COUNTER.wire({"role": "system", "content": SYSTEM}) + REPLY_PRIMING
    left = budget_for(CHAT_MODEL, window, prompt, 0).budget - COUNTER.message(asked)
    kept: list[Message] = []
    for message in reversed(messages):
        left -= COUNTER.message(message)
        if left < 0:
            break
        kept.append(message)
    return kept


def _row(kind: str, window: int, shares: Shares, count: int) -> Row:
    ours, floor = shares[kind, window], shares.get(("full history", window), shares["last", 0])
    share, full = fmean(s for s, _ in ours), fmean(s for s, _ in floor)
    last = _shown(shares["last", 0])
    return Row(
        f"evidence in the context, {f'window {window:,}: ' if window else ''}{kind}",
        _shown(ours),
        f"full {_shown(floor)}, last {LAST} {last}" if window else f"last {LAST} {last}",
        share / full if full else None,
        None,
        None,
        f"Mean share of the turns that answer one of {count} LoCoMo questions, and the context's tokens; each question "
        f"comes after the whole conversation. {_METHODS[kind]} Floor: the newest turns that fit into the window, "
        f"and the last {LAST} messages. Recall by words alone, no embeddings.",
    )


def _shown(results: Sequence[tuple[float, int]]) -> str:
    return f"{100 * fmean(share for share, _ in results):.1f} % ({fmean(tokens for _, tokens in results):,.0f})"


_METHODS = {
    "tiers": "A turn counts when a tier shows it, in full or condensed, or when the summary holds it word for word. "
    "Summaries are extracts by the offline provider, no language model; over 200 messages are pruned, as by default.",
    "tiers, relevant episodes first": f"The same, with the {EPISODES} most relevant episodes first in tier 2 and the "
    "pruned ones of them brought back.",
    "hybrid history": "The last 3 turns and the 3 most relevant episodes, without any window.",
}
