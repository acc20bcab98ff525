"""Builds the context that a model sees, tiered within a token budget, and its receipt. Pure functions."""

from turnlog.agent.context.digest import Summary
from turnlog.agent.context.inputs import ContextInput, ContextSettings
from turnlog.agent.context.receipt import Context, ContextReceipt, Remarks, Tier, answer_receipt
from turnlog.agent.context.shares import WindowShares, shares_of
from turnlog.agent.context.tiers import build_context, prepared
from turnlog.agent.context.tokens import TokenCounter, counter_for
from turnlog.agent.context.window import WindowTooSmall

__all__ = [
    "Context",
    "ContextInput",
    "ContextReceipt",
    "ContextSettings",
    "Remarks",
    "Summary",
    "Tier",
    "TokenCounter",
    "WindowShares",
    "WindowTooSmall",
    "answer_receipt",
    "build_context",
    "counter_for",
    "prepared",
    "shares_of",
]
