"""Runs mem0 as a separate program: adds messages and searches them, with its embedded defaults and no language model.

It runs in an environment with mem0 (requirements-mem0.lock) and imports nothing of turnlog. Reads {url, folder, texts,
queries} as JSON and writes {add, search}, the milliseconds of each call.
"""

import json
import os
import sys
import time
from importlib import import_module
from typing import Any

DIMENSIONS = 384


def main() -> None:
    request = json.load(sys.stdin)
    os.environ |= {"MEM0_TELEMETRY": "False", "MEM0_DIR": request["folder"], "OPENAI_API_KEY": "none"}
    store = {"path": f"{request['folder']}/qdrant", "embedding_model_dims": DIMENSIONS, "on_disk": True}
    embedder = {"openai_base_url": request["url"], "embedding_dims": DIMENSIONS, "model": "m"}
    memory = import_module("mem0").Memory.from_config(
        {
            "vector_store": {"provider": "qdrant", "config": store},
            "embedder": {"provider": "openai", "config": embedder},
            "llm": {"provider": "openai", "config": {"openai_base_url": request["url"]}},
            "history_db_path": f"{request['folder']}/history.db",
        }
    )
    add = [
        _ms(memory.add, [{"role": "user", "content": text}], user_id="ann", infer=False) for text in request["texts"]
    ]
    search = [_ms(memory.search, text, filters={"user_id": "ann"}, top_k=5) for text in request["queries"]]
    json.dump({"add": add, "search": search}, sys.stdout)


def _ms(call: Any, *arguments: Any, **named: Any) -> float:
    began = time.perf_counter()
    call(*arguments, **named)
    return 1000 * (time.perf_counter() - began)


if __name__ == "__main__":
    main()
