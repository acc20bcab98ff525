"""The command `chat`: asks the agent, and prints its answers as they arrive."""

import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer
from rich.cells import cell_len

from turnlog.agent.answering import asking
from turnlog.agent.conversations import labels
from turnlog.agent.memory import memories, memory_changes
from turnlog.agent.memory.extraction import extract_now
from turnlog.agent.settings import Settings
from turnlog.agent.team import agents
from turnlog.consumers import roles
from turnlog.consumers import runtime as composed
from turnlog.consumers.cli.console import (
    PARTS,
    WORD,
    BadOption,
    check_given,
    emit,
    emit_line,
    err,
    out,
    shown,
    stdin_lines,
    waiting_for,
    warn,
)
from turnlog.consumers.cli.options import commands, given
from turnlog.consumers.cli.runner import Runtime, command
from turnlog.consumers.langgraph import chat as graph_chat
from turnlog.events.errors import TurnlogError
from turnlog.events.subjects import check_conversation

if TYPE_CHECKING:
    from turnlog.agent.answering.asking import Answered, AnswerPiece, Locale
    from turnlog.agent.memory.extraction.extract_now import Remembered
    from turnlog.agent.memory.memory_changes import ForgottenAsAsked
    from turnlog.projectors.models.memories.lookup import Conflict

# Reasons why nothing was remembered, in English and Chinese.
_WHY_NOT = {
    "no-user": (
        "memories belong to a person, so start the chat with --user NAME",
        "记忆属于某个人，请用 --user 名字 开始聊天",
    ),
    "secret": (
        "it contains a password, a key or a card number, and MEMORY_REMEMBER_SECRETS is off",
        "其中有密码、密钥或卡号，而 MEMORY_REMEMBER_SECRETS 未开启",
    ),
    "off": ("MEMORY_EXTRACT switches it off", "MEMORY_EXTRACT 已关闭此功能"),
    "disabled": (
        "your preference enable_memory is off; `turnlog preferences` can set it",
        "你的偏好 enable_memory 已关闭，可用 `turnlog preferences` 打开",
    ),
    "says-nothing": ("the message does not say what to remember", "这句话没有说要记住什么"),
    "later": (
        "another process reads this conversation; `turnlog memories` shows it later",
        "另一个进程正在读取本对话，稍后请用 `turnlog memories` 查看",
    ),
    "contradicts": (
        "it contradicts a memory; `turnlog conflicts` asks which one is valid",
        "与已有的记忆矛盾，请用 `turnlog conflicts` 选择",
    ),
    "ended": ("a later statement replaces it", "之后说的话已取代它"),
}

_NEXT: dict["Locale", str] = {"en": "You could ask: ", "zh": "可以接着问："}
_AGAIN: dict["Locale", str] = {"en": "\n[the answer starts again]\n", "zh": "\n[回答重新开始]\n"}


app = commands()


@command(app)
async def chat(
    settings: Settings,
    thread: Annotated[str, typer.Argument(help="Conversation to continue or begin.")] = "chat",
    message: Annotated[str | None, typer.Option("--message", "-m", help="Send this one message, then exit.")] = None,
    user: Annotated[str | None, typer.Option(help="Who you are.")] = None,
    model: Annotated[str | None, typer.Option(help="Model to use instead of the configured one.")] = None,
    agent: Annotated[str | None, typer.Option(help="The agent that answers; `turnlog agents` lists them.")] = None,
) -> None:
    """Chat with the agent; its answer streams. Without --message, every line of stdin is a message.

    If agents of a team answer, their phases, tools and hand-overs are shown on stderr.
    A conversation without a label is labelled with its user's first words. "Forget my birthday" forgets the one memory
    that it names; "forget everything about me" only names the commands for that. With --json, `remembered` and
    `forgotten` give the results of such requests, or null.
    """
    if message is not None and not message.strip():
        raise BadOption("--message is empty, so there is nothing to answer")
    check_conversation(thread)
    check_given("user", user)
    played = ("projectors", "reactors", "agent")
    async with contextlib.AsyncExitStack() as started:
        with waiting_for("NATS and Postgres"):
            runtime = await started.enter_async_context(composed.opened(settings, "turnlog-chat"))
        with waiting_for("the agent to start"):
            await started.enter_async_context(roles.playing(runtime, played))
        place = (settings.tenant, thread)
        as_json = given().json
        questions = None if as_json or user is None else Questions(runtime, place[0], user)
        async for text in _lines(message):
            if questions and await questions.take(text):
                continue
            locale = asking.locale_of_text(text)
            with waiting_for("the answer") as begun:
                await agents.check_agent(runtime, place[0], agent and agent.lower())
                gone = await memory_changes.forget_as_asked(runtime, place[0], user, text) if user else None
                flow = Flow(locale)
                try:
                    async for piece in asking.ask(
                        runtime, *place, text, user=user, model=model, agent=agent and agent.lower()
                    ):
                        if not isinstance(piece, asking.QuestionStored):
                            begun()
                        if not as_json:
                            flow.show(piece)
                        if isinstance(piece, asking.Answered):
                            place = (place[0], piece.thread)
                            made = await extract_now.remembered(runtime, *place, user, piece.question_id, text)
                            if as_json:
                                document = {**asdict(piece), "remembered": made, "forgotten": gone}
                                (emit if message else emit_line)(document)
                            else:
                                _show_remembered(made)
                                _show_forgotten(gone, user or "", locale)
                                warn(answered_elsewhere(settings, piece))
                except asking.NoAnswer as error:
                    if not as_json:
                        warn(error.said(locale))
                    raise
            await labels.label_thread(runtime, *place)
            if questions:
                await questions.put()


@command(app)
async def graph(
    settings: Settings,
    thread: Annotated[str, typer.Argument(help="Conversation to continue or begin.")] = "graph",
    message: Annotated[str | None, typer.Option("--message", "-m", help="Send this one message, then exit.")] = None,
    user: Annotated[str | None, typer.Option(help="Who you are.")] = None,
) -> None:
    """Chat with the conversation graph of LangGraph, in this process. Without --message, every line of stdin is a
    message. The log gets the turns, a receipt and the usage of each answer, and the graph's state."""
    try:
        opened_graph = graph_chat.opened_graph
    except ModuleNotFoundError as error:
        raise BadOption(f"{error.name} is missing: pip install 'turnlog[langgraph]'") from None

    check_conversation(thread)
    check_given("user", user)
    async with contextlib.AsyncExitStack() as started:
        with waiting_for("NATS and Postgres"):
            made = await started.enter_async_context(opened_graph(settings=settings))
        async for text in _lines(message):
            async for piece in graph_chat.converse(made, thread, user or "", text):
                if not given().json:
                    sys.stdout.write(shown(piece))
                    sys.stdout.flush()
            state = (await made.aget_state(graph_chat.thread_config(thread))).values
            if given().json:
                about = {"thread": thread, "agent": state["agent_type"], "debug": state["debug"]}
                (emit if message else emit_line)(about | {"answer": state["messages"][-1].text})
            else:
                sys.stdout.write("\n")


async def _lines(message: str | None) -> AsyncIterator[str]:
    """Yields the message, or the lines of stdin."""
    if message is not None:
        yield message
        return
    prompt = "> " if sys.stdin.isatty() and not given().json else ""
    typed = stdin_lines()
    while True:
        err.print(prompt, end="")
        line = await anext(typed, None)
        if line is None:
            return
        if line.strip():
            yield line.strip()


def answered_elsewhere(settings: Settings, answered: "Answered") -> str | None:
    """Returns advice when this process has a language model but a process without one took the question."""
    if settings.offline or not answered.is_offline:
        return None
    return "another process without API_KEY answered: restart `turnlog up` where it is set"


def _show_remembered(made: "Remembered | None") -> None:
    if made is None:
        return
    is_chinese = made.language == "zh"
    for content in made.contents:
        warn(f"{'已记住：' if is_chinese else 'Remembered: '}{content}")
    if made.why_not:
        warn(f"{'未记住：' if is_chinese else 'Not remembered: '}{_WHY_NOT[made.why_not][is_chinese]}")


def _show_forgotten(gone: "ForgottenAsAsked | None", user: str, locale: "Locale") -> None:
    if gone is None:
        return
    is_chinese = locale == "zh"
    for id_, content in gone.named:
        label = "已忘记：" if gone.done and is_chinese else "Forgotten: " if gone.done else f"{str(id_)[:8]} "
        warn(f"{label}{content}")
    if gone.done and gone.named:
        zh = "原话仍留在对话中，并会随历史交给模型；`turnlog redact` 可将其涂去"
        en = "What was said stays, and reaches the model with the history; `turnlog redact` strikes it"
        warn(zh if is_chinese else en)
    if not gone.done:
        count, whose = len(gone.named), f"--user {user}"
        listed, every = f"`turnlog memories {whose}`", f"`turnlog clear {whose}"
        if gone.words is None:
            zh = f"{every} --memories` 忘记所有记忆，`turnlog erase {whose}` 抹除此人的全部内容"
            en = f"{every} --memories` forgets all memories, `turnlog erase {whose}` erases all of the person"
        else:
            fit = f"{count} 条记忆" if count else "没有记忆"
            forget_one = f"`turnlog forget {whose} ID`"
            zh = f"{fit}符合“{gone.words}”。{listed} 列出记忆，{forget_one} 忘记其中一条"
            en = f"{count or 'no'} memories fit “{gone.words}”. {listed} lists them, {forget_one} forgets one"
        warn(f"没有忘记任何内容：{zh}" if is_chinese else f"Nothing is forgotten: {en}")


class Questions:
    """Asks the user once about each contradiction that they must decide. The user's next line is the answer if it is
    one of the choices.
    """

    def __init__(self, runtime: Runtime, tenant: str, user: str) -> None:
        self._runtime, self._whose = runtime, (tenant, user)
        self._put: set[UUID] = set()
        self._waiting: Conflict | None = None

    async def put(self) -> None:
        conflicts = await memories.list_conflicts(self._runtime, *self._whose)
        self._waiting = next((conflict for conflict in conflicts if conflict.conflict_id not in self._put), None)
        if self._waiting:
            self._put.add(self._waiting.conflict_id)
            warn(f"{self._waiting.question} (new 新 / old 旧 / both 都)")

    async def take(self, text: str) -> bool:
        """Returns whether the text answered the question just asked."""
        question, self._waiting, answer = self._waiting, None, memory_changes.answer_in(text)
        if question is None or answer is None:
            return False
        try:
            await memory_changes.answer_conflict(self._runtime, *self._whose, answer, str(question.conflict_id))
            warn(f"{answer} ✓")
        except TurnlogError as error:  # such as a question that was answered elsewhere in the meantime
            warn(str(error))
        await self.put()
        return True


class Flow:
    """Writes an answer piece by piece. On a terminal, lines break between words; elsewhere, pieces are written as they
    arrive.

    locale: the language of notes beside the answer.
    """

    def __init__(self, locale: "Locale") -> None:
        self._column, self._word, self._locale = 0, "", locale
        self._text = asking.Continued(_AGAIN[locale])
        self._by_team = False

    def show(self, piece: "AnswerPiece") -> None:
        self._show_step(piece)
        self._write(shown(self._text.said(piece)))
        if isinstance(piece, asking.Answered):
            if note := piece.note(self._locale):
                self._write(f" […{note}]")
            self._put(self._word)
            self._word, self._column = "", 0
            sys.stdout.write("\n")
            for text in piece.suggestions:
                err.print(f"{_NEXT[self._locale]}{text}", style="dim", markup=False)
        sys.stdout.flush()

    def _show_step(self, piece: "AnswerPiece") -> None:
        """Prints a step of a team's run to stderr."""
        match piece:
            case asking.PhaseChanged(agent=by, phase=phase):
                self._by_team, step = True, f"{by}: {phase}"
            case asking.AgentSwitched(agent=by, to=to, task=task):
                step = f"{by} → {to}: {task}"
            case asking.ToolUsed(name=name, arguments=arguments) if self._by_team:
                step = f"  {name} {arguments}"
            case asking.ToolReturned(name=name, latency_ms=took, is_error=failed) if self._by_team:
                step = f"  {name} {'failed' if failed else 'returned'} after {took:,} ms"
            case _:
                return
        if self._column:  # end the line of the answer so far
            self._write("\n")
            sys.stdout.flush()
        err.print(step, style="dim", markup=False)

    def _write(self, text: str) -> None:
        """Writes the text, except its last word, which the next piece may continue."""
        if not out.is_terminal:
            sys.stdout.write(text)
            return
        parts = PARTS.findall(self._word + text)
        self._word = parts.pop() if parts and WORD.fullmatch(parts[-1]) else ""
        for part in parts:
            self._put(part)

    def _put(self, part: str) -> None:
        width = cell_len(part)
        if part == "\n":
            self._column = 0
        elif self._column + width <= out.width:
            self._column += width
        elif part.isspace():
            self._column, part = out.width, ""
        else:
            self._column, part = width, f"\n{part}"
        sys.stdout.write(part)
