"""Downloads data of a URL into a file that an importer reads: from the API of mem0 or Zep, or from LangGraph's tables
in Postgres."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin, urlsplit
from uuid import UUID

import httpx2
import psycopg

from turnlog.agent.operations.importers.imported import MALFORMED, ImportFailed
from turnlog.agent.operations.importers.source_files import Format

PAGE, TIMEOUT_S = 100, 60
Pairs = Iterable[tuple[str, Any]]
_ROLES = {"human": "user", "ai": "assistant", "HumanMessageChunk": "user", "AIMessageChunk": "assistant"}
_UUID_EPOCH_S = 12_219_292_800  # seconds from 1582-10-15 to 1970-01-01


def is_url(source: str) -> bool:
    return urlsplit(source).scheme in ("http", "https", "postgres", "postgresql")


def download(url: str, format: str | None, key: str | None, user: str | None, folder: Path) -> tuple[Path, Format]:
    """Writes the data of the URL to a file in the folder; returns the file and its format. Raises ImportFailed."""
    is_database = urlsplit(url).scheme.startswith("postgres")
    if not is_database and format not in ("mem0", "zep"):
        raise ImportFailed("name the API: --format mem0, or --format zep")
    name, read = ("langgraph", _langgraph) if is_database else (format, _mem0 if format == "mem0" else _zep)
    path = folder / f"{name}.jsonl"
    try:
        with path.open("w") as file:
            for record in read(url, key or "", user):
                file.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")
    except httpx2.HTTPStatusError as error:
        raise ImportFailed(f"{_shown(url)} answers {error.response.status_code}: {error.response.text[:200]}") from None
    except (httpx2.HTTPError, httpx2.InvalidURL, psycopg.Error) as error:
        said = " ".join(str(error).split())[:300].replace(urlsplit(url).password or url, "…")
        raise ImportFailed(f"{_shown(url)} cannot be read: {said}") from None
    except MALFORMED as error:
        raise ImportFailed(f"{_shown(url)} does not answer as {name} does ({error!r:.200})") from error
    if not path.stat().st_size:
        raise ImportFailed(f"{_shown(url)} has nothing to import{f' of user {user}' if user else ''}")
    return path, "openai" if is_database else "mem0" if format == "mem0" else "zep"


def _shown(url: str) -> str:
    """Returns the URL without parts that may be secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"


def _client(authorization: str, key: str) -> httpx2.Client:
    return httpx2.Client(headers={"Authorization": authorization, "X-API-Key": key} if key else {}, timeout=TIMEOUT_S)


def _mem0(url: str, key: str, user: str | None) -> Iterator[Mapping[str, Any]]:
    """Yields the answers of mem0's platform (…/v3/memories/, page by page), or the answer of a self-hosted server
    (…/memories)."""
    with _client(f"Token {key}", key) as http:
        if "/v3/" not in url:
            yield _json(http.get(url, params={"user_id": user} if user else {}))
            return
        page: str | None = f"{url}?page_size={PAGE}"
        while page is not None:
            if urlsplit(page := urljoin(url, page)).netloc != urlsplit(url).netloc:
                raise ImportFailed(f"{_shown(url)} names a next page on another host")
            answer = _json(http.post(page, json={"filters": {"user_id": user or "*"}, "show_expired": True}))
            yield answer
            page = answer["next"]


def _zep(url: str, key: str, user: str | None) -> Iterator[Mapping[str, Any]]:
    """Yields the threads with their messages and the facts of the graphs, of one user or of all users. url: …/api/v2"""
    with _client(f"Api-Key {key}", key) as http:

        def get(path: str, **query: Any) -> Any:
            return _json(http.get(f"{url.rstrip('/')}/{path}", params=query))

        for user_id in [user] if user else _users(get):
            for thread in get(f"users/{quote(user_id, safe='')}/threads") or ():
                yield {"user_id": user_id, **thread, "messages": list(_messages(get, thread["thread_id"]))}
            last: str | None = None
            while facts := _json(
                http.post(
                    f"{url.rstrip('/')}/graph/edge/user/{quote(user_id, safe='')}",
                    json={"limit": PAGE, **({"uuid_cursor": last} if last else {})},
                )
            ):
                yield {"user_id": user_id, "facts": facts}
                if len(facts) < PAGE:
                    break
                last = facts[-1]["uuid"]


def _users(get: Callable[..., Any]) -> Iterator[str]:
    page, shown = 1, 0
    while users := (answer := get("users-ordered", pageNumber=page, pageSize=PAGE))["users"]:
        yield from (user["user_id"] for user in users)
        page, shown = page + 1, shown + len(users)
        if shown >= answer["total_count"]:
            return


def _messages(get: Callable[..., Any], thread: str) -> Iterator[Mapping[str, Any]]:
    shown = 0
    while messages := (answer := get(f"threads/{quote(thread, safe='')}/messages", limit=PAGE, cursor=shown))[
        "messages"
    ]:
        yield from messages
        shown += len(messages)
        if shown >= answer["total_count"]:
            return


def _json(response: httpx2.Response) -> Any:
    response.raise_for_status()
    return response.json()


def _langgraph(url: str, key: str, user: str | None) -> Iterator[Mapping[str, Any]]:
    """Yields the messages of each thread's newest checkpoint, each with the time of the first checkpoint that contains
    it.

    The content of the database is read as data: classes that it names are not imported.
    """
    try:
        import ormsgpack  # noqa: F401
    except ImportError as error:
        raise ImportFailed('reading LangGraph\'s checkpoints takes `pip install "turnlog[langgraph]"`') from error
    with psycopg.connect(url) as conn, conn.cursor("turnlog_import") as rows:
        rows.execute(
            "SELECT c.thread_id, c.checkpoint_id, b.version, coalesce(c.metadata ->> 'user_id', c.metadata ->> "
            "'langgraph_auth_user_id'), b.type, b.blob FROM checkpoints c JOIN checkpoint_blobs b ON b.thread_id = "
            "c.thread_id AND b.checkpoint_ns = c.checkpoint_ns AND b.channel = 'messages' AND b.version = "
            "c.checkpoint -> 'channel_versions' ->> 'messages' WHERE c.checkpoint_ns = '' "
            "ORDER BY c.thread_id, c.checkpoint_id"
        )
        rows.itersize = 20  # few at a time, because each row has all messages so far
        thread: str | None = None
        owner: str | None = None
        last, newest, times = "", list[Mapping[str, Any]](), dict[str, str]()
        for thread_id, checkpoint_id, version, user_id, kind, blob in rows:
            if thread_id != thread:
                yield from _thread(thread, owner, user, newest, times)
                thread, owner, last, newest, times = thread_id, None, "", [], {}
            owner = user_id or owner
            if version == last:
                continue
            last = version
            newest = [message for message in _decoded(kind, blob) if isinstance(message, Mapping)]
            for message in newest:
                times.setdefault(str(message.get("id")), _time(checkpoint_id))
        yield from _thread(thread, owner, user, newest, times)


def _thread(
    thread: str | None,
    owner: str | None,
    user: str | None,
    messages: Iterable[Mapping[str, Any]],
    times: Mapping[str, str],
) -> Iterator[Mapping[str, Any]]:
    made = [_message(message, times[str(message.get("id"))]) for message in messages]
    if made:
        yield {"thread_id": thread, "user": owner or user, "messages": made}


def _message(message: Mapping[str, Any], time: str) -> Mapping[str, Any]:
    kind = message.get("type", message.get("role"))
    calls = [
        {"id": call["id"], "function": {"name": call["name"], "arguments": json.dumps(call["args"], default=str)}}
        for call in message.get("tool_calls") or ()
    ]
    return {
        "id": message.get("id"),
        "role": _ROLES.get(str(kind), kind),
        "content": message.get("content"),
        "created_at": time,
        **{name: value for name in ("name", "tool_call_id") if (value := message.get(name))},
        **({"tool_calls": calls} if calls else {}),
    }


def _decoded(kind: str, blob: bytes) -> list[Any]:
    """Returns the messages that LangGraph's serializer wrote; an object of a class becomes a dict of its fields."""
    if kind == "json":
        value = json.loads(
            blob, object_hook=lambda document: document.get("kwargs", document) if document.get("lc") else document
        )
    elif kind == "msgpack":
        import ormsgpack

        options = ormsgpack.OPT_NON_STR_KEYS

        def fields(code: int, data: bytes) -> Any:
            packed = ormsgpack.unpackb(data, ext_hook=fields, option=options)
            return packed[2] if isinstance(packed, list | tuple) and len(packed) > 2 else packed

        value = ormsgpack.unpackb(blob, ext_hook=fields, option=options)
    else:
        raise ImportFailed(f"messages are stored as {kind!r}: encrypted and pickled checkpoints cannot be read")
    return value if isinstance(value, list) else [value]


def _time(checkpoint_id: str) -> str:
    """Returns the time in a checkpoint's id, a UUID of version 6."""
    ticks = UUID(checkpoint_id).int
    ticks = (ticks >> 80 << 12) | (ticks >> 64 & 0xFFF)
    return datetime.fromtimestamp(ticks / 1e7 - _UUID_EPOCH_S, UTC).isoformat()
