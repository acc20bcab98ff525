"""Runs the support team against a scripted server and collects the pieces of the answer."""

import asyncio
import json
import math
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from helpers.openai_server import OpenAIServer
from helpers.support_desk import SUPPORT_TOOLS

from turnlog.agent.answering.pieces import (
    PhaseChanged,
    Piece,
    Solved,
    Text,
    ToolReturned,
)
from turnlog.agent.answering.run import run
from turnlog.agent.models.openai_chat import OpenAIChat
from turnlog.agent.models.protocol import ChatRequest
from turnlog.agent.team.local_pages import LocalPages
from turnlog.agent.team.plans import Delegation, Step
from turnlog.agent.team.rewoo import Rewoo
from turnlog.agent.team.teams import Agent, Team, load_team
from turnlog.agent.team.tool_registry import Registry, registry_of
from turnlog.agent.team.tools import Use

SUPPORT = load_team(Path(__file__).parents[1] / "teams" / "support")
QUESTION = {"role": "user", "content": "Where is A101?"}


@dataclass(frozen=True, slots=True)
class Desk:
    """A run of the support team against a scripted server."""

    server: OpenAIServer
    chat: OpenAIChat

    async def ask(self, entry: str = "desk", **changed: Any) -> list[Piece]:
        async with aclosing(self.run(entry, **changed)) as pieces:
            return [piece async for piece in pieces]

    def run(
        self,
        entry: str = "desk",
        team: Team = SUPPORT,
        tools: Sequence[Callable[..., Any]] = SUPPORT_TOOLS,
        ends_in: float | None = None,
        within_s: float = math.inf,
        window: int = 0,
    ) -> Any:
        ends_at = None if ends_in is None else asyncio.get_running_loop().time() + ends_in

        async def request_for(agent: Agent, delegation: Delegation | None) -> ChatRequest:
            told = [] if delegation is None else [{"role": "user", "content": f"Task: {delegation.task}"}]
            system = {"role": "system", "content": agent.prompt}
            return ChatRequest([system, QUESTION, *told], restart=True, ends_at=ends_at)

        def use_for(agent: Agent, depth: int, step: Step) -> Use:
            return Use("bob", datetime.now(UTC), uuid.uuid4(), None, LocalPages("none", []))  # type: ignore[arg-type]

        registry: Registry = registry_of(tools)
        policy = Rewoo(team, registry, [entry], request_for, use_for, within_s=within_s)
        policy.model, policy.window = self.chat.model, window
        return run(self.chat, policy)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return list(self.server.bodies("chat"))


@asynccontextmanager
async def opened_desk() -> AsyncIterator[Desk]:
    with OpenAIServer() as server:
        chat = OpenAIChat(server.url, server.key, "gpt-4o-mini", count_tokens=len)
        yield Desk(server, chat)
        await chat.close()


def phases(pieces: Sequence[Piece]) -> list[str]:
    return [piece.phase for piece in pieces if isinstance(piece, PhaseChanged)]


def text(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, Text))


def solved(pieces: Sequence[Piece]) -> Solved:
    assert isinstance(pieces[-1], Solved)
    return pieces[-1]


def returned(pieces: Sequence[Piece]) -> dict[str, Any]:
    return {piece.name: json.loads(piece.result) for piece in pieces if isinstance(piece, ToolReturned)}


def only(*functions: Callable[..., Any]) -> dict[str, Any]:
    """Returns settings for a team of one agent that has these tools."""
    names = tuple(function.__name__ for function in functions)
    agent = Agent(type="desk", name="Desk", prompt="p", tools=names)
    return {"team": Team(name="t", entry="desk", agents={"desk": agent}), "tools": functions}
