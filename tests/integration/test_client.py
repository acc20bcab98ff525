"""Tests every method of `import turnlog` on real servers. Reads include the caller's own writes."""

import ast
import asyncio
import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from helpers.client import Face, served
from helpers.client import face as face
from helpers.client import given as given
from helpers.client import model as model
from helpers.markdown_examples import blocks
from helpers.openai_server import OpenAIServer
from helpers.servers import processes_left_in

import turnlog
from turnlog._http import Http, ServerUnavailable, error_of
from turnlog._memory import Memory
from turnlog._remote import RemoteMemory, RemoteThread
from turnlog._thread import Thread
from turnlog.agent.access.api_keys import create_key
from turnlog.agent.access.identity import Forbidden, Unauthenticated
from turnlog.agent.answering.asking import NoAnswer
from turnlog.agent.answering.context import context_as_of
from turnlog.agent.answering.turns import WrongReceipt
from turnlog.agent.recall.recall import BadQuery
from turnlog.agent.settings import OFFLINE_VECTORS, InvalidSetting, Settings
from turnlog.consumers.api.problems import STATUS
from turnlog.consumers.langgraph.chat import opened_graph
from turnlog.consumers.langgraph.checkpoint.saver import TurnlogSaver
from turnlog.consumers.runtime import SWITCH_S
from turnlog.consumers.servers import stop
from turnlog.events.errors import InvalidEvent, InvalidToken, NotFound, WrongExpectedVersion

pytestmark = pytest.mark.slow

# Runs lines like a notebook or `python -m asyncio` does.
NOTEBOOK = """
import ast, asyncio, sys
asyncio.run(eval(compile(sys.argv[1], "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), {}))
"""


async def test_a_conversation_is_kept_asked_recalled_and_deleted(face: Face) -> None:
    async with face() as memory:
        thread = memory.thread("t42", user="ann")
        await thread.add("user", "My corgi is called Sesame.")
        context = await thread.context("What is my dog called?", tokens=4_000)
        assert [message["content"] for message in context.messages[1:]] == [
            "My corgi is called Sesame.",
            "What is my dog called?",
        ]
        await thread.add("assistant", "Sesame.", receipt=context.receipt)
        pieces = [piece async for piece in thread.ask("Really?")]
        assert pieces == ["echo: ", "Really?"]
        said = await thread.messages()
        assert [message.content for message in said] == [
            "My corgi is called Sesame.",
            "What is my dog called?",
            "Sesame.",
            "Really?",
            "echo: Really?",
        ]
        assert [message.content for message in await thread.messages(limit=1, newest=True)] == ["echo: Really?"]
        assert await thread.label() == "My corgi is called Sesame."
        await thread.rename("Corgis")
        assert (await thread.info()).label == "Corgis"
        assert [(listed.thread, listed.messages) for listed in await memory.threads("ann")] == [("t42", 5)]
        recalled = await memory.recall("corgi", user="ann", k=1)
        assert [turn.text for turn in recalled.turns] == ["My corgi is called Sesame."]
        assert (await memory.recall("corgi", thread="t42", k=1)).turns == recalled.turns
        assert recalled.confidence is not None and recalled.confidence > 0.5
        assert (await memory.recall("Which university?", user="ann")).is_unsure
        await thread.delete()
        assert await memory.threads() == []
        with pytest.raises(NotFound):
            await thread.messages()


async def test_a_program_can_mark_a_text_as_its_own(face: Face) -> None:
    async with face() as memory:
        thread = memory.thread("t", user="ann")
        await thread.add("user", "Summary: I live in Genoa.", origin="program")
        await thread.add("user", "I live in Turin.")
        assert [message.origin for message in await thread.messages()] == ["program", "person"]


async def test_a_question_that_was_answered_before_is_asked_again(face: Face) -> None:
    async with face() as memory:
        thread = memory.thread("t", user="ann")
        await thread.add("user", "yes")
        assert [message["content"] for message in (await thread.context("yes")).messages[1:]] == ["yes"]
        await thread.add("assistant", "Next?")
        context = await thread.context("yes")
        assert [message["content"] for message in context.messages[1:]] == ["yes", "Next?", "yes"]
        await thread.add("assistant", "Done.", receipt=context.receipt)
        said = [(message.role, message.content) for message in await thread.messages()]
        assert said == [("user", "yes"), ("assistant", "Next?"), ("user", "yes"), ("assistant", "Done.")]


async def test_a_model_in_the_environment_is_used_only_when_the_program_says_so(
    nats_url: str, database_url: str, model: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = {"nats_url": nats_url, "database_url": database_url}
    theirs = {"OPENAI_MODEL": "theirs", "OPENAI_EMBEDDING_MODEL": "theirs-too"}
    for name, value in (theirs | {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": model.key}).items():
        monkeypatch.setenv(name, value)
    async with turnlog.open(**servers) as memory:
        thread = memory.thread("t42", user="ann")
        await thread.add("user", "My corgi is called Sesame.")
        assert "".join([piece async for piece in thread.ask("What is my corgi called?")]).startswith("[offline")
        assert (await memory.recall("corgi", user="ann")).turns
        assert memory.runtime.settings.vector_model == OFFLINE_VECTORS
    assert model.requests == []
    async with turnlog.open(**servers, model="ours", roles=["projectors", "agent"]) as memory:
        assert "".join([piece async for piece in memory.thread("t42", user="ann").ask("Hello")]) == "echo: Hello"
    assert [body["model"] for body in model.bodies("chat")] == ["ours"]


async def test_a_receipt_is_of_what_the_model_saw(given: dict[str, Any]) -> None:
    async with turnlog.open(**given) as memory:
        thread = memory.thread("t42", user="ann")
        context = await thread.context("What is my dog called?")
        await thread.add("assistant", "Sesame.", receipt=context.receipt)
        (question, _) = await thread.messages()
        then = await context_as_of(memory.runtime, "default", "t42", question.seq)
        assert then.matches and then.context.messages == context.messages


async def test_a_receipt_of_one_user_is_refused_for_another(given: dict[str, Any]) -> None:
    async with turnlog.open(**given) as memory:
        await memory.remember("ann", "Ann is allergic to nuts.")
        context = await memory.thread("t", user="ann").context("What may I eat?")
        with pytest.raises(WrongReceipt):
            await memory.thread("t", user="bob").add("assistant", "No nuts.", receipt=context.receipt)
        with pytest.raises(NotFound):
            await memory.thread("t").messages()
        assert await memory.memories("ann", limit=0) == []


async def test_a_memory_is_in_the_context_until_it_is_forgotten(face: Face) -> None:
    async with face() as memory:
        made = await memory.remember("ann", "Ann is allergic to nuts.")
        assert [remembered.content for remembered in await memory.memories("ann")] == ["Ann is allergic to nuts."]
        context = await memory.thread("t", user="ann").context("Which nuts may I eat?")
        assert "Ann is allergic to nuts." in str(context.messages)
        assert (await memory.recall("nuts", user="ann")).memories[0].memory.id == made.memory_id
        assert await memory.forget("ann", made.memory_id) == (made.memory_id,)
        assert await memory.memories("ann") == []


async def test_lists_continue_after_the_previous_page(face: Face) -> None:
    async with face() as memory:
        for n in range(5):
            await memory.thread(f"t{n}", user="ann").add("user", "hello")
            await memory.remember("ann", f"Ann owns {n} cats.")
        threads = [await memory.threads("ann", 2)]
        memories = [await memory.memories("ann", limit=2)]
        for _ in range(2):
            threads.append(await memory.threads("ann", 2, threads[-1]))
            memories.append(await memory.memories("ann", limit=2, after=memories[-1]))
        assert [[listed.thread for listed in page] for page in threads] == [["t4", "t3"], ["t2", "t1"], ["t0"]]
        said = [{remembered.content for remembered in page} for page in memories]
        assert said == [{f"Ann owns {n} cats." for n in page} for page in ((4, 3), (2, 1), (0,))]


async def test_a_person_is_cleared_in_part_and_erased(face: Face) -> None:
    async with face() as memory, face("bob") as bobs:
        await memory.thread("t", user="ann").add("user", "My corgi is called Sesame.")
        await bobs.thread("other", user="bob").add("user", "I like trains.")
        await memory.remember("ann", "Ann is allergic to nuts.")
        assert (await memory.clear("ann", memories=True)).memories == 1
        assert await memory.memories("ann") == []
        erased = await memory.erase("ann", "asked for it")
        assert not erased.hits and erased.data.threads >= 1
        assert [listed.thread for listed in await bobs.threads("bob")] == ["other"]
        with pytest.raises((NotFound, Forbidden)):
            await memory.erase("nobody")


async def test_two_users_have_a_conversation_of_one_name_each_and_neither_reaches_the_others(face: Face) -> None:
    async with face("ann") as anns, face("bob") as bobs:
        ann, bob = anns.thread("main", "ann"), bobs.thread("main", "bob")
        await ann.add("user", "I am Ann.")
        for call in (bob.messages, bob.info, bob.label, bob.delete, bob.context, lambda: bob.rename("mine")):
            with pytest.raises(NotFound):
                await call()
        await bob.add("user", "I am Bob.", expected=0)
        assert [piece async for piece in bob.ask("Who?")] == ["echo: ", "Who?"]
        assert [message.content for message in await bob.messages()] == ["I am Bob.", "Who?", "echo: Who?"]
        assert [message.content for message in await ann.messages()] == ["I am Ann."]
        [his] = await bobs.threads("bob")
        assert [listed.thread for listed in await anns.threads("ann")] == ["main"] and his.thread.startswith("main-of-")
        assert await bobs.thread(his.thread, "bob").messages() == await bob.messages()
        with pytest.raises(NotFound):
            await anns.thread(his.thread, "ann").messages()
        assert (await bobs.recall("Bob", user="bob", thread="main")).turns[0].thread == his.thread


async def test_two_users_can_begin_conversations_of_the_same_name_at_once(face: Face) -> None:
    async with face("ann") as anns, face("bob") as bobs:
        for number in range(3):
            anns_thread, bobs_thread = anns.thread(f"t{number}", "ann"), bobs.thread(f"t{number}", "bob")
            await asyncio.gather(anns_thread.add("user", "I am Ann."), bobs_thread.add("user", "I am Bob."))
            assert [said.content for said in await anns_thread.messages()] == ["I am Ann."]
            assert [said.content for said in await bobs_thread.messages()] == ["I am Bob."]


async def test_a_deleted_conversation_stays_deleted_for_its_user_and_its_name_free_for_others(face: Face) -> None:
    async with face("ann") as anns, face("bob") as bobs:
        ann, same = anns.thread("main", "ann"), anns.thread("main", "ann")
        await ann.add("user", "I am Ann.")
        await same.messages()
        await ann.delete()
        for thread in (ann, same, anns.thread("main", "ann")):
            for call in (
                thread.messages,
                thread.info,
                thread.delete,
                lambda thread=thread: thread.add("user", "Again."),
                lambda thread=thread: thread.context("Again?"),
                lambda thread=thread: anext(aiter(thread.ask("Again?"))),
            ):
                with pytest.raises(NotFound):
                    await call()
        await bobs.thread("main", "bob").add("user", "I am Bob.")
        assert await anns.threads("ann") == [] and len(await bobs.threads("bob")) == 1


@pytest.mark.parametrize(("local", "remote"), [(Memory, RemoteMemory), (Thread, RemoteThread)])
def test_a_remote_memory_has_the_same_methods_as_a_local_one(local: type, remote: type) -> None:
    """Methods of both have the same signatures, but `user` may be optional in a remote one, because its token names
    the user. Methods that are inherited unchanged use only other methods that a server offers.
    """
    for name, method in inspect.getmembers(local, inspect.isfunction):
        if name in vars(remote):
            assert name.startswith("__") or shape(getattr(remote, name)) == shape(method), name
        else:
            needed = {"runtime", "_runtime"} & set(method.__code__.co_names)
            assert not needed, f"{remote.__name__} inherits {name}, which needs a runtime"


def shape(method: Callable[..., Any]) -> list[tuple[Any, ...]]:
    return [
        (
            parameter.name,
            parameter.kind,
            None if parameter.name == "user" else (parameter.default, parameter.annotation),
        )
        for parameter in inspect.signature(method).parameters.values()
    ]


async def test_a_server_refuses_the_same_calls_as_a_local_memory(
    given: dict[str, Any], tmp_path: Path, model: OpenAIServer
) -> None:
    async with served(given, tmp_path) as api:
        key = await create_key(api.runtime, "default", "shop", scopes=["read", "write", "act-as-user"])
        async with turnlog.connect(api.url, key=key.key) as memory:
            await memory.thread("安的", user="安").add("user", "你好")
            assert [listed.user for listed in await memory.threads("安")] == ["安"]
            assert await memory.threads() == []
            with pytest.raises(NotFound):
                await memory.thread("安的").info()
            with pytest.raises(BadQuery, match="blank"):
                await memory.recall(" ", user="安")
            with pytest.raises(Forbidden):
                [piece async for piece in memory.thread("t").ask("hello")]
            with pytest.raises(InvalidEvent):
                await memory.thread("t").add("robot", "hello")
        async with turnlog.connect(api.url, key=api.token("ann")) as memory:
            with pytest.raises(Forbidden):
                await memory.memories("bob")
            model.fail(401)
            with pytest.raises(NoAnswer):
                [piece async for piece in memory.thread("of ann").ask("hello")]
        async with turnlog.connect(api.url, key="forged") as memory:
            with pytest.raises(Unauthenticated):
                await memory.threads()


@pytest.mark.parametrize("code", [*STATUS])
def test_an_error_of_the_server_has_the_class_of_its_code(code: str) -> None:
    error = error_of({"code": code, "detail": "why", "status": STATUS[code], "retryAfter": 3})
    assert (error.code, str(error)) == (code, "why")


async def test_a_write_whose_response_was_lost_is_sent_again_and_stored_once(
    given: dict[str, Any], tmp_path: Path
) -> None:
    """The response to the first attempt is lost after the server has stored the turn."""
    async with served(given, tmp_path) as api:
        http = Http(api.url, api.token("ann"), patience_s=10)
        sent = list[httpx2.Request]()

        async def lose_the_first(response: httpx2.Response) -> None:
            sent.append(response.request)
            if len(sent) == 1:
                raise httpx2.ReadError("connection reset")

        http.client.event_hooks = {"response": [lose_the_first]}
        async with http.client:
            thread = RemoteMemory(http).thread("t")
            stored = await thread.add("user", "hello")
            assert len({request.headers["Idempotency-Key"] for request in sent}) == 1 < len(sent)
            assert [message.seq for message in await thread.messages()] == [stored.seq]
            sent.clear()
            assert [piece async for piece in thread.ask("Really?")] == ["echo: ", "Really?"]
            assert len(await thread.messages()) == 3
    with pytest.raises(ServerUnavailable, match="`turnlog up` starts one"):
        async with turnlog.connect(api.url, key="any", patience_s=0) as memory:
            await memory.threads()


@pytest.mark.parametrize("kind", ["open", "saver", "graph"])
async def test_a_program_that_blocks_its_event_loop_delays_nobody_else(given: dict[str, Any], kind: str) -> None:
    """Its roles continue: another program's turns are projected and its question is answered meanwhile."""
    settings = Settings(**given)
    opening: dict[str, Callable[[], AbstractAsyncContextManager[Any]]] = {
        "open": lambda: turnlog.open(**given),
        "saver": lambda: TurnlogSaver.open(settings),
        "graph": lambda: opened_graph(settings=settings),
    }

    def another_program() -> list[str]:
        with turnlog.open(**given, roles=("agent",) if kind != "open" else ()) as memory:
            thread = memory.thread("t", user="bob")
            thread.add("user", "hello")
            return [*[message.content for message in thread.messages()], *thread.ask("Really?")]

    turns = sys.getswitchinterval()
    with ThreadPoolExecutor(1) as pool:
        async with opening[kind]():
            assert sys.getswitchinterval() == pytest.approx(SWITCH_S), "its roles would hold up its calls"
            assert pool.submit(another_program).result(30) == ["hello", "echo: ", "Really?"]
    assert sys.getswitchinterval() == turns


async def test_tenants_do_not_see_each_other(given: dict[str, Any]) -> None:
    async with turnlog.open(**given) as memory, turnlog.open(**given, tenant="acme") as other:
        await memory.thread("t").add("user", "hello")
        assert await other.threads() == []
        with pytest.raises(NotFound):
            await other.thread("t").messages()
        with pytest.raises(InvalidToken):
            other.thread("memories/ann")


async def test_a_turn_is_stored_once_and_only_at_the_expected_version(face: Face) -> None:
    async with face() as memory:
        thread, event_id = memory.thread("t"), uuid4()
        first = await thread.add("user", "hello", event_id=event_id, expected=0)
        assert (await thread.add("user", "hello", event_id=event_id, expected=0)).seq == first.seq
        assert len(await thread.messages()) == 1
        with pytest.raises(WrongExpectedVersion):
            await thread.add("user", "late", expected=0)
        answers = [{"role": "assistant", "content": "hi"}, {"role": "user", "content": "bye"}]
        assert [turn.seq for turn in await thread.extend(answers, expected=first.seq)] == [first.seq + 1, first.seq + 2]


def test_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="modell"):
        turnlog.open(modell="gpt-4o")


def test_the_package_has_ten_public_names_and_loads_them_on_use() -> None:
    assert len(turnlog.__all__) <= 10
    assert all(getattr(turnlog, name) for name in turnlog.__all__)
    loaded = "import sys, turnlog; sys.exit(len([name for name in sys.modules if name.startswith('turnlog.')]))"
    assert subprocess.run([sys.executable, "-c", loaded], check=False).returncode == 0


async def test_the_ten_line_example_runs_in_an_empty_folder(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (lines,) = blocks("README.md", "python", "lines")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TURNLOG_HOME": str(home)}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", NOTEBOOK, lines.text],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    await stop(home)
    assert processes_left_in(home) == []
    assert done.returncode == 0, done.stderr
    messages, _, others = done.stdout.partition("\n")
    assert ast.literal_eval(messages)[-1] == {"role": "user", "content": "What is my dog called?"}
    assert "Sesame" in others.split("offline", 1)[1]
    assert "Ann is allergic to nuts." in others and "Pet: corgi is called Sesame" in others
