"""Measures the tokens sent in a conversation of 50 turns, compared with sending the entire history each time."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from tests.benchmarks.locomo_threads import TENANT, Conversation
from tests.benchmarks.measuring import Row
from tests.benchmarks.remembering import COUNTER, SETTINGS, SYSTEM, remembered
from turnlog.agent.answering.recall_tool import SCHEMA
from turnlog.agent.context.plain_text import content_text
from turnlog.agent.context.wire import Wire
from turnlog.agent.recall.episodes import EPISODES, relevant_turns
from turnlog.agent.recall.hybrid import hybrid_history
from turnlog.agent.recall.search import Recall
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.lookup import Scope
from turnlog.projectors.models.conversation.message import Message

TURNS = 50
WINDOWS = (650, 1_250, 2_000, 4_000, 8_000, 16_000)
LAST, RECENT = 12, SETTINGS.full_recent_count
TARGET = ("<=", 0.25)
ALL, NEWEST = f"tokens of {TURNS} requests together", f"tokens of the request of turn {TURNS}"
HYBRID = "hybrid history (3 turns, 3 episodes)"
# These windows were chosen to meet the target. The rows of evidence.py show how much evidence they contain.
TARGETED = {(ALL, "tiers, window 650"), (NEWEST, "tiers, window 1,250"), (NEWEST, HYBRID)}
PROMPT: Wire = {"role": "system", "content": SYSTEM}
Sent = dict[str, list[list[int]]]


async def rows(conn: Connection, recall: Recall, samples: Sequence[Conversation]) -> list[Row]:
    """Returns the tokens of each kind of context and their ratio to the full history's tokens, for all requests
    together and for the last request."""
    sent: Sent = defaultdict(list)
    for conversation in samples:
        for kind, tokens in (await _sent(conn, recall, conversation)).items():
            sent[kind].append(tokens)
    everything = sent.pop("everything")
    newest = [each[-1:] for each in everything]
    return [_row(ALL, kind, each, everything) for kind, each in sent.items()] + [
        _row(NEWEST, kind, [tokens[-1:] for tokens in each], newest) for kind, each in sent.items()
    ]


async def _sent(conn: Connection, recall: Recall, conversation: Conversation) -> dict[str, list[int]]:
    """Returns the tokens of each request, in order, for each kind of context."""
    sent: dict[str, list[int]] = defaultdict(list)
    thread = conversation.thread
    memory = remembered(conn, f"{thread}/cost")
    turns = [
        replace(message, role=("user", "assistant")[number % 2])
        for number, message in enumerate(conversation.messages[: 2 * TURNS])
    ]
    for number in range(0, len(turns), 2):
        before, asked = turns[:number], turns[number]
        text = content_text(asked.content)
        history = await hybrid_history(conn, recall, TENANT, thread, text, before_seq=asked.seq)
        relevant = await relevant_turns(conn, recall, Scope(TENANT, thread), text, EPISODES, RECENT, asked.seq)
        sent["everything"].append(_plain([*before, asked]))
        sent[f"the last {LAST} messages"].append(_plain([*before[-LAST:], asked]))
        sent[HYBRID].append(_plain([*history.messages, asked]))
        for window in WINDOWS:
            context = memory.context(window, asked, list(relevant.seqs))
            sent[f"tiers, window {window:,}"].append(COUNTER.request(context.messages, [SCHEMA]))
        for message in turns[number : number + 2]:
            await memory.hear(message)
    return sent


def _plain(messages: Sequence[Message]) -> int:
    return COUNTER.request([PROMPT]) + sum(map(COUNTER.message, messages))


def _row(what: str, kind: str, ours: Sequence[Sequence[int]], everything: Sequence[Sequence[int]]) -> Row:
    shares = [sum(mine) / sum(full) for mine, full in zip(ours, everything, strict=True)]
    return Row(
        f"{what}: {kind}",
        _mean(ours),
        _mean(everything),
        sum(map(sum, ours)) / sum(map(sum, everything)),
        (min(shares), max(shares)),
        TARGET if (what, kind) in TARGETED else None,
        f"Mean over the first {TURNS} turns (two messages each) of {len(ours)} LoCoMo conversations, whose messages "
        f"are short, with a system prompt of {COUNTER.wire(PROMPT)} tokens. Tiers: the {EPISODES} most relevant "
        "episodes come first in tier 2, the schema of `recall_memory` counts, summaries are extracts of the offline "
        "provider, made when the memory reactor would make them. Ratio: of all tokens, and its "
        "range over the conversations. Floor: everything each time.",
    )


def _mean(requests: Sequence[Sequence[int]]) -> str:
    return f"{sum(map(sum, requests)) / len(requests):,.0f}"
