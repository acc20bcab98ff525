"""Users of an application import their conversations by POST /api/import."""

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from helpers.api import Api, Serve, server_events
from helpers.cli_process import CHATGPT

import turnlog
from turnlog.agent.access.identity import granted
from turnlog.agent.operations.importers import ImportFailed
from turnlog.consumers.api.jobs import Job, Jobs
from turnlog.consumers.api.principal import Principal
from turnlog.consumers.api.problems import Refused
from turnlog.consumers.api.routes import personal

pytestmark = pytest.mark.slow

TALK = [{"thread": "trip", "user": "x", "text": f"Day {n} in Lisbon.", "time": 1_778_248_560 + n} for n in range(3)]


def jsonl(*lines: Any) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


async def imported(client: httpx2.AsyncClient, body: bytes, **params: Any) -> dict[str, Any]:
    """Returns the finished job as its stream of events shows it."""
    return await ended(client, await client.post("/api/import", content=body, params=params))


async def ended(client: httpx2.AsyncClient, begun: httpx2.Response) -> dict[str, Any]:
    assert begun.status_code == 202, begun.text
    async with client.stream("GET", f"/api/jobs/{begun.json()['id']}/events") as response:
        events = [event async for event in server_events(response)]
    assert events[-1]["event"] == events[-1]["data"]["state"] != "running"
    return dict(events[-1]["data"])


async def said(client: httpx2.AsyncClient, thread: str) -> list[str]:
    page = await client.get(f"/api/threads/{thread}/turns")
    return [turn["content"] for turn in page.json()["items"]]


async def test_a_user_imports_conversations_once_and_the_job_reports_the_result(serve: Serve) -> None:
    async with serve() as api, api.client() as ann, api.client(scopes=["read"]) as reader:
        assert (await reader.post("/api/import", content=jsonl(*TALK))).status_code == 403
        dry = await imported(ann, jsonl(*TALK), dry_run=True)
        assert (dry["result"]["turns"], dry["result"]["dry_run"]) == (3, True)
        assert (await ann.get("/api/threads/trip")).status_code == 404
        done = await imported(ann, jsonl(*TALK, {"text": 1}, {"thread": "trip", "text": "more", "mood": 1}))
        assert (done["state"], done["done"], done["result"]["turns"]) == ("done", 4, 4)
        assert done["result"]["left_out"] == [{"reason": "the unknown field 'mood'", "count": 1, "first": ["line 5"]}]
        assert [rejected["where"] for rejected in done["result"]["rejected"]] == ["line 4"]
        assert await said(ann, "trip") == [*(line["text"] for line in TALK), "more"]
        again = await imported(ann, gzip.compress(jsonl(*TALK)))
        assert (again["result"]["turns"], again["result"]["known"]) == (0, 3)
        chats = await imported(ann, json.dumps(CHATGPT).encode(), name="conversations.json")
        assert (chats["result"]["file"], chats["result"]["turns"]) == ("conversations.json", 2)
        assert (await ann.get("/api/threads/c-1")).json()["label"] == "Essay plan"


async def test_a_form_imports_a_file_with_its_name(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        file = json.dumps({"role": "user", "content": "I keep bees."}).encode()
        for name, params, thread in (
            ("旅行.json", {}, "旅行"),
            ("../x.json", {}, "import"),
            ("a.json", {"name": "bees.json"}, "bees"),
        ):
            form = {"file": (name, file, "application/json")}
            done = await ended(ann, await ann.post("/api/import", files=form, data={"a": "b"}, params=params))
            assert (done["state"], done["result"]["turns"]) == ("done", 1), done
            assert await said(ann, thread) == ["I keep bees."]
        for bad in ({"a": (None, "b")}, [("file", ("a", file)), ("file", ("b", file))]):
            refused = await ann.post("/api/import", files=bad)
            assert (refused.status_code, refused.json()["code"]) == (422, "bad-form"), refused.text
        broken = await ann.post("/api/import", content=b"x", headers={"content-type": "multipart/form-data"})
        assert broken.status_code == 400, broken.text


CLAUDE = [
    {"uuid": "claude-1", "name": "去杭州", "chat_messages": [{"uuid": "a", "sender": "human", "text": "吃什么？"}]}
]
OPEN_WEBUI_CHAT = {
    "title": "Plants",
    "history": {
        "currentId": "c",
        "messages": {
            "a": {"id": "a", "parentId": None, "role": "user", "content": "Which plants?", "timestamp": 1756000000},
            "b": {"id": "b", "parentId": "a", "role": "assistant", "content": "Cactus."},
            "c": {"id": "c", "parentId": "a", "role": "assistant", "content": "Ferns."},
        },
    },
}
LIBRECHAT = {
    "conversationId": "librechat-1",
    "title": "吉他",
    "messages": [{"messageId": "a", "parentMessageId": None, "isCreatedByUser": True, "text": "我弹吉他。"}],
}


async def test_exports_of_other_chat_programs_are_imported_once(serve: Serve) -> None:
    exports: list[tuple[Any, str, str | None, list[str], list[str]]] = [
        (CLAUDE, "claude-1", "去杭州", ["吃什么？"], []),
        (
            [{"id": "owui-1", "chat": OPEN_WEBUI_CHAT}],
            "owui-1",
            "Plants",
            ["Which plants?", "Ferns."],
            ["owui-1, message b"],
        ),
        (LIBRECHAT, "librechat-1", "吉他", ["我弹吉他。"], []),
    ]
    async with serve() as api, api.client() as ann:
        for export, thread, label, texts, left_out in exports:
            files = {"file": ("conversations.json", json.dumps(export).encode())}
            first, again = [await ended(ann, await ann.post("/api/import", files=files)) for _ in range(2)]
            assert (first["result"]["turns"], first["result"]["known"]) == (len(texts), 0), first
            assert (again["result"]["turns"], again["result"]["known"]) == (0, len(texts)), again
            assert [where for skipped in first["result"]["left_out"] for where in skipped["first"]] == left_out
            assert (await ann.get(f"/api/threads/{thread}")).json()["label"] == label
            assert await said(ann, thread) == texts


async def test_a_name_that_another_user_has_becomes_a_conversation_of_the_importer(serve: Serve) -> None:
    async with serve() as api, api.client() as ann, api.client("bob") as bob:
        await ann.post("/api/threads/trip/turns", json={"turns": [{"role": "user", "content": "mine"}]})
        for turns, known in ((4, 0), (0, 4)):
            done = (await imported(bob, jsonl(*TALK, {"thread": "own", "text": "hello"})))["result"]
            assert (done["turns"], done["known"], done["rejected_count"]) == (turns, known, 0)
        assert (await said(ann, "trip"), await said(bob, "own")) == (["mine"], ["hello"])
        assert await said(bob, "trip") == [line["text"] for line in TALK]
        both = await asyncio.gather(*(imported(client, jsonl(*TALK), thread="race") for client in (ann, bob)))
        assert [job["result"]["turns"] for job in both] == [3, 3], both
        assert await said(ann, "race") == await said(bob, "race") == [line["text"] for line in TALK]


async def test_an_import_without_a_storable_turn_fails_with_its_reasons(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        await imported(ann, jsonl(*TALK))
        await ann.delete("/api/threads/trip")
        job = await imported(ann, jsonl(*TALK))
        assert (job["state"], job["error"]["code"]) == ("failed", "import-failed")
        assert "everything in it was rejected" in job["error"]["detail"] and "was deleted" in job["error"]["detail"]


async def test_malformed_files_are_refused_with_a_message_and_leave_nothing(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(personal, "MOST_UNPACKED", 2**20)
    async with serve(api_max_body=2**12, api_max_import=2**14) as api, api.client() as ann:
        for file, says in (
            (jsonl({"notes": 1}), "import has no known format"),
            (b"", "import is empty"),
            (gzip.compress(jsonl(TALK[0]) + b" " * 2**21), "import unpacks to more than 1 MiB"),
        ):
            job = await imported(ann, file)
            assert (job["state"], job["error"]["code"], job["error"]["status"]) == ("failed", "import-failed", 422)
            assert job["error"]["detail"].startswith(says)
        assert (await ann.post("/api/import", content=b"x" * 2**15)).json()["code"] == "body-too-large"
        for params in ({"name": "../x"}, {"name": ".."}, {"format": "word"}, {"thread": ""}):
            assert (await ann.post("/api/import", content=jsonl(*TALK), params=params)).status_code == 422
        assert (await imported(ann, jsonl(*({**TALK[0], "text": "x" * 2000} for _ in range(4)))))["state"] == "done"
        assert not list(tmp_path.glob("turnlog-*"))


async def test_the_python_client_imports_through_the_server_and_directly(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    file.write_bytes(jsonl(*TALK, {"text": 1}))
    api: Api
    async with serve() as api, turnlog.connect(api.url, key=api.token()) as memory:
        report = await memory.import_file(file)
        assert (report.turns, report.rejected[0].where) == (3, "line 4")
        beside = turnlog.Memory(api.runtime, api.runtime.settings.tenant)
        assert (await beside.import_file(str(file), user="ann")).known == 3
        assert (await beside.import_file(file, user="bob")).turns == 3
        assert (await beside.import_file(file, dry_run=True)).turns == 3
        with pytest.raises(ImportFailed, match="cannot be read"):
            await memory.import_file(tmp_path / "none.jsonl")


async def test_while_a_file_is_imported_it_can_be_sent_again_and_another_one_cannot(serve: Serve) -> None:
    async with serve() as api:
        caller = Principal(granted("default", "ann", "user", None, None, key=False), api.runtime, api.runtime)
        jobs, ended = Jobs(), asyncio.Event()

        async def work(_: Job) -> None:
            await ended.wait()

        first = jobs.begin(caller, "import", work, "one")
        assert jobs.begin(caller, "import", work, "one") is first
        with pytest.raises(Refused, match="another import of yours is running"):
            jobs.begin(caller, "import", work, "two")
        ended.set()
        assert [status.state async for status in first.changes()][-1] == "done"
        assert jobs.begin(caller, "import", work, "two") is not first
        await jobs.close()
