"""Makes the bodies that openai_server.py sends: completions, stream chunks, vectors."""

import base64
import hashlib
import json
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any


@dataclass
class Step:
    """The response to one request. until: waits until this event is set; in a stream before the chunk with number
    `after`. tool_calls: names with arguments; a string is sent unchanged. thinking: words of reasoning before the text,
    in the field `thinks_in` of the chunks. whole: the entire body."""

    text: str = ""
    thinking: str = ""
    thinks_in: str = "reasoning_content"
    tool_calls: Sequence[tuple[str, dict[str, Any] | str]] = ()
    usage: bool = True
    delay: float = 0.0
    between: float = 0.0
    until: Event | None = None
    after: int = 0
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    message: str = ""
    code: str | None = None
    hang_after: int | None = None
    drop_after: int | None = None
    malformed: bool = False
    page: str | None = None
    vectors: Sequence[Sequence[float]] | None = None
    finish: str | None = None
    results: Any = None
    whole: str | None = None
    endless: bool = False


def ranked(step: Step, body: dict[str, Any]) -> dict[str, Any]:
    """Returns a reranker's response: the `top_n` documents with most of the query's words, best first."""
    wanted = set(body["query"].lower().split())
    scores = [float(len(wanted & set(text.lower().split()))) for text in body["documents"]]
    best = sorted(range(len(scores)), key=lambda at: -scores[at])[: body["top_n"]]
    results = [{"index": at, "relevance_score": scores[at]} for at in best]
    return {"model": body["model"], "results": results if step.results is None else step.results}


def bag_of_words(text: str, dimensions: int) -> list[float]:
    """Returns a unit vector in which every word (and every Chinese character) adds to one hashed dimension."""
    vector = [0.0] * dimensions
    for word in re.findall(r"[a-z0-9]+|[\u4e00-\u9fff]", text.lower()) or [text]:
        vector[int.from_bytes(hashlib.sha256(word.encode()).digest()[:4]) % dimensions] += 1.0
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector]


def as_base64(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def last_user(body: dict[str, Any]) -> str:
    said = [m["content"] for m in body["messages"] if m["role"] == "user"]
    return str(said[-1]) if said else ""


def _tool_calls(step: Step) -> list[dict[str, Any]]:
    return [
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": _as_json(arguments)}}
        for i, (name, arguments) in enumerate(step.tool_calls)
    ]


def _as_json(arguments: dict[str, Any] | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _usage(step: Step, body: dict[str, Any]) -> dict[str, int]:
    asked, said = len(json.dumps(body["messages"]).split()), len(step.text.split())
    return {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}


def completion(step: Step, body: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": step.text or None}
    if step.tool_calls:
        message["tool_calls"] = _tool_calls(step)
    reason = step.finish or ("tool_calls" if step.tool_calls else "stop")
    reply: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
    }
    return reply | ({"usage": _usage(step, body)} if step.usage else {})


def chunks_of(step: Step, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the chunks of a stream: the role, the words of reasoning and of the text, the tool calls with their
    arguments in two pieces, the end and the usage."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{step.thinks_in: word} for word in step.thinking.split()]
    deltas += [{"content": word} for word in re.findall(r"\S+\s*|\s+", step.text)]
    for index, call in enumerate(_tool_calls(step)):
        arguments = call["function"]["arguments"]
        half = len(arguments) // 2
        first = {**call, "index": index, "function": {**call["function"], "arguments": arguments[:half]}}
        deltas += [
            {"tool_calls": [first]},
            {"tool_calls": [{"index": index, "function": {"arguments": arguments[half:]}}]},
        ]
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": body["model"]}
    chunks: list[dict[str, Any]] = [
        base | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    reason = step.finish or ("tool_calls" if step.tool_calls else "stop")
    chunks.append(base | {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    if step.usage and body.get("stream_options", {}).get("include_usage"):
        chunks.append(base | {"choices": [], "usage": _usage(step, body)})
    return chunks
