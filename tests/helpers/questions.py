"""Asks the agent questions and returns the answers."""

from dataclasses import dataclass

from turnlog.agent.answering.asking import Answered, AnswerPiece, ask
from turnlog.agent.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Place:
    """The conversation in which a question is asked, and the user who asks."""

    tenant: str = "default"
    thread: str = "t"
    user: str | None = None


async def pieces_of(runtime: Runtime, place: Place, question: str) -> list[AnswerPiece]:
    """Returns all pieces of the answer in order."""
    return [piece async for piece in ask(runtime, place.tenant, place.thread, question, user=place.user)]


async def answer_to(runtime: Runtime, place: Place, question: str) -> str:
    """Returns the answer as it is recorded on the log."""
    *_, last = await pieces_of(runtime, place, question)
    assert isinstance(last, Answered)
    return last.answer
