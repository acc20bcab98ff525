"""Questions to the agent, and what came back."""

from dataclasses import dataclass

from turnlog.agent.answering.asking import Answered, Piece, ask
from turnlog.agent.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Place:
    """The conversation that a question is asked in, and who asks."""

    tenant: str = "default"
    thread: str = "t"
    user: str | None = None


async def pieces_of(runtime: Runtime, place: Place, question: str) -> list[Piece]:
    """All pieces of the answer in their order."""
    return [piece async for piece in ask(runtime, place.tenant, place.thread, question, user=place.user)]


async def answer_to(runtime: Runtime, place: Place, question: str) -> str:
    """The answer as it is on the log."""
    *_, last = await pieces_of(runtime, place, question)
    assert isinstance(last, Answered)
    return last.answer
