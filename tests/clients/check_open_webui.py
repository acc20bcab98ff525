"""Runs unmodified Open WebUI and sends it the requests of its page (`make clients`).

Open WebUI also sends tasks to the model, such as a request for a title. Turnlog must not store these.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from helpers.api import Api, Serve
from helpers.databases import Databases
from helpers.markdown_examples import blocks
from helpers.openai_bodies import Step
from helpers.openai_server import Kind
from helpers.servers import eventually
from helpers.stage import MemoryServer
from installed import HOME, started

from turnlog.agent.access.api_keys import create_key
from turnlog.consumers.servers.nats_server import free_port

DOG, CAT, BIRD = "My dog is called Sesame.", "And my cat is called Poppy.", "And my bird is called Coco."
TASKS = {"title_generation": True, "tags_generation": True, "follow_up_generation": True}


class TaskServer(MemoryServer):
    """Answers Open WebUI's tasks in the expected JSON. Echoes other messages, or fails if `is_failing`."""

    is_failing = False

    def next_step(self, kind: Kind, body: dict[str, Any]) -> Step:
        if kind == "chat" and is_task(body):
            return Step(text='{"title": "Wishes no emojis", "tags": ["pets"], "follow_ups": ["I keep bees?"]}')
        return Step(status=500) if self.is_failing else super().next_step(kind, body)


def is_task(body: dict[str, Any]) -> bool:
    """Returns True for a task. Questions with documents have the same heading as tasks, and are not tasks."""
    text = str(body["messages"][-1]["content"])
    return text.startswith("### Task:") and "Respond to the user query" not in text


@pytest.fixture
def model() -> Iterator[TaskServer]:
    with TaskServer() as server:
        yield server


class Page:
    """Sends the requests that the page of a signed-in user sends, and reads the answers that it would show."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client, self._chat = client, ""
        self._history: list[dict[str, str]] = []
        self._last: str | None = None

    async def sign_up(self, name: str = "Ann", how: str = "signup") -> None:
        """Creates an account and signs in. how: "signup" for the first user, "add" when that user adds others."""
        person = {"name": name, "email": f"{name.lower()}@example.org", "password": "Sesame-and-Poppy-1"}
        signed = await self._client.post(f"/api/v1/auths/{how}", json=person | {"role": "user"})
        assert signed.is_success, signed.text
        self._client.headers["Authorization"] = f"Bearer {signed.json()['token']}"

    async def upload(self, name: str, text: str) -> dict[str, Any]:
        """Uploads a file and waits until its vectors are stored. Returns its reference for `ask`."""
        sent = await self._client.post("/api/v1/files/", files={"file": (name, text, "text/plain")})
        assert sent.is_success, sent.text
        file: dict[str, Any] = sent.json()

        async def is_processed() -> bool:
            state = (await self._client.get(f"/api/v1/files/{file['id']}/process/status")).json()
            assert state["status"] != "failed", state
            return bool(state["status"] == "completed")

        await eventually(is_processed)
        return {"type": "file", "id": file["id"], "name": name, "file": file, "status": "uploaded"}

    async def ask(self, text: str, *files: dict[str, Any]) -> dict[str, Any]:
        """Asks a question. Returns the answer's message after the answer and the tasks that follow it are done."""
        self._history.append({"role": "user", "content": text})
        self._question = {"id": str(uuid4()), "parentId": self._last, "role": "user", "content": text, "models": ["m"]}
        self._question |= {"files": files} if files else {}
        return await self._answer(self._question)

    async def again(self) -> dict[str, Any]:
        """Requests another answer to the last question, like the page's button."""
        return await self._answer(self._question)

    async def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        answer = str(uuid4())
        body = {"model": "m", "stream": True, "messages": self._history, "id": answer, "session_id": "page"}
        body |= {"parent_id": question["parentId"], "user_message": question, "background_tasks": dict(TASKS)}
        body |= {"files": question.get("files", [])}
        sent = await self._client.post("/api/chat/completions", json=body | {"chat_id": self._chat})
        assert sent.is_success, sent.text
        self._chat = sent.json()["chat_id"]
        shown: dict[str, Any] = {}

        async def is_done() -> bool:
            chat = (await self._client.get(f"/api/v1/chats/{self._chat}")).json()["chat"]
            shown.update(chat["history"]["messages"][answer])
            return bool(shown.get("done") and (shown.get("error") or shown.get("followUps")))

        await eventually(is_done)
        if not shown.get("error"):
            self._history.append({"role": "assistant", "content": shown["content"]})
            self._last = answer
        return shown

    @property
    def chat(self) -> str:
        return self._chat


async def said(api: Api, thread: str) -> list[tuple[str, str]]:
    async with api.client() as ann:
        return [
            (turn["role"], turn["content"]) for turn in (await ann.get(f"/api/threads/{thread}/turns")).json()["items"]
        ]


@asynccontextmanager
async def open_webui(folder: Path, api: Api, key: str, **more: str) -> AsyncIterator[httpx2.AsyncClient]:
    port = free_port()
    settings = {
        "DATA_DIR": str(folder),
        "WEBUI_SECRET_KEY": "s" * 32,
        "OFFLINE_MODE": "true",
        "USE_SLIM_DOCKER": "true",
        "ENABLE_OLLAMA_API": "false",
        "ENABLE_FORWARD_USER_INFO_HEADERS": "true",
        "OPENAI_API_BASE_URL": f"{api.url}/v1",
        "OPENAI_API_KEY": key,
    }
    words = (HOME / "open-webui/bin/open-webui", "serve", "--host", "127.0.0.1", "--port", port)
    async with started(folder, f"http://127.0.0.1:{port}/health", *words, **settings, **more) as client:
        yield client


async def test_a_chat_of_open_webui_is_stored_once_and_its_tasks_never(
    serve: Serve, model: TaskServer, tmp_path: Path
) -> None:
    async with (
        serve("reactors", api_base_url=model.url, model="m") as api,
        open_webui(tmp_path, api, api.token()) as client,
        api.client() as ann,
    ):
        page = Page(client)
        await page.sign_up()
        assert (await page.ask(DOG))["content"] == f"echo: {DOG}"
        assert (await page.ask(CAT))["content"] == f"echo: {CAT}"
        model.is_failing = True
        assert (await page.ask(BIRD))["error"]
        model.is_failing = False
        assert (await page.again())["content"] == f"echo: {BIRD}"
        assert len([body for body in model.bodies("chat") if is_task(body)]) >= 4

        async def remembered() -> bool:
            return "Poppy" in (await ann.get("/api/memories")).text

        await eventually(remembered)
        assert [thread["thread"] for thread in (await ann.get("/api/threads")).json()["items"]] == [page.chat]
        assert await said(api, page.chat) == [
            *(("user", DOG), ("assistant", f"echo: {DOG}")),
            *(("user", CAT), ("assistant", f"echo: {CAT}")),
            *(("user", BIRD), ("assistant", f"echo: {BIRD}")),
        ]
        memories = (await ann.get("/api/memories")).text
        assert "emoji" not in memories and "bees" not in memories


async def test_each_user_of_open_webui_has_separate_memories(serve: Serve, model: TaskServer, tmp_path: Path) -> None:
    """Uses the headers of docs/clients.md."""
    (headers,) = (block.text for block in blocks("docs/clients.md", "json", "") if "USER_EMAIL" in block.text)
    settings = {
        "OPENAI_API_CONFIGS": json.dumps({"0": {"enable": True, "headers": json.loads(headers)}}),
        "DEFAULT_USER_ROLE": "user",
        "BYPASS_MODEL_ACCESS_CONTROL": "true",
    }
    async with serve("reactors", api_base_url=model.url, model="m") as api:
        key = await create_key(api.runtime, "default", "webui", "user", ["read", "write", "ask", "act-as-user"])
        async with open_webui(tmp_path, api, key.key, **settings) as client:
            for name, text, how in (("Ann", DOG, "signup"), ("Bob", CAT, "add")):
                page = Page(client)
                await page.sign_up(name, how)
                assert (await page.ask(text))["content"] == f"echo: {text}"
        for name, own, other in (("ann", "Sesame", "Poppy"), ("bob", "Poppy", "Sesame")):
            async with api.client(f"{name}@example.org") as person:

                async def remembered(person: httpx2.AsyncClient = person, own: str = own) -> bool:
                    return own in (await person.get("/api/memories")).text

                await eventually(remembered)
                assert other not in (await person.get("/api/memories")).text
        async with api.client("webui") as bot:
            assert (await bot.get("/api/threads")).json()["items"] == []


async def test_tasks_of_another_connections_model_never_reach_turnlog(
    serve: Serve, model: TaskServer, tmp_path: Path
) -> None:
    with TaskServer() as other:
        async with serve("reactors", api_base_url=model.url, model="m") as api:
            connections = {
                "OPENAI_API_BASE_URLS": f"{api.url}/v1;{other.url}",
                "OPENAI_API_KEYS": f"{api.token()};any",
                "TASK_MODEL_EXTERNAL": "test-model",
            }
            async with open_webui(tmp_path, api, api.token(), **connections) as client:
                page = Page(client)
                await page.sign_up()
                assert (await page.ask(DOG))["content"] == f"echo: {DOG}"
            assert len(other.bodies("chat")) >= 2 and all(is_task(body) for body in other.bodies("chat"))
            assert not any(is_task(body) for body in model.bodies("chat"))
            assert await said(api, page.chat) == [("user", DOG), ("assistant", f"echo: {DOG}")]


async def test_documents_are_found_by_turnlogs_vectors_and_make_no_memories(
    serve: Serve, model: TaskServer, tmp_path: Path, databases: Databases
) -> None:
    settings = {"api_base_url": model.url, "model": "m", "embedding_base_url": model.url, "embedding_model": "e"}
    async with serve("reactors", **settings) as api, databases.empty() as vectors:
        retrieval = {
            "PGVECTOR_DB_URL": vectors,
            "RAG_EMBEDDING_ENGINE": "openai",
            "RAG_EMBEDDING_MODEL": "e",
            "RAG_OPENAI_API_BASE_URL": f"{api.url}/v1",
            "RAG_OPENAI_API_KEY": api.token(),
        }
        async with open_webui(tmp_path, api, api.token(), **retrieval) as client:
            page = Page(client)
            await page.sign_up()
            file = await page.upload("harbour.txt", "My boat is called Albatross and lies in the harbour of Kiel.")
            answer = await page.ask("Where does the boat lie? My dog is called Sesame.", file)
            assert "Albatross" in answer["content"]  # the model echoes its question, which contains the document
        async with api.client() as ann:

            async def remembered() -> bool:
                return "Sesame" in (await ann.get("/api/memories")).text

            await eventually(remembered)
            assert "Albatross" not in (await ann.get("/api/memories")).text
