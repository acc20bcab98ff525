"""Runs LiteLLM's unmodified proxy both in front of turnlog and between turnlog and its model (`make clients`)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml
from helpers.api import Serve
from helpers.stage import MemoryServer
from installed import HOME, started

from turnlog.consumers.servers.nats_server import free_port

KEY = "sk-of-the-proxy"
DOG, CAT, BIRD = "My dog is called Sesame.", "And my cat is called Poppy.", "And my bird is called Coco."


@pytest.fixture
def model() -> Iterator[MemoryServer]:
    with MemoryServer() as server:
        yield server


async def test_a_proxy_on_both_sides_of_turnlog_stores_each_turn_once(
    serve: Serve, model: MemoryServer, tmp_path: Path
) -> None:
    proxy = f"http://127.0.0.1:{(port := free_port())}"
    async with serve("reactors", api_base_url=f"{proxy}/v1", api_key=KEY, model="model") as api, api.client() as ann:
        routes = {"model": (model.url, model.key, "m", 0), "memory": (f"{api.url}/v1", api.token(), "model", 3)}
        config = [
            {
                "model_name": name,
                "litellm_params": {"model": f"openai/{to}", "api_base": url, "api_key": key, "num_retries": retries},
            }
            for name, (url, key, to, retries) in routes.items()
        ]
        general = {"master_key": KEY, "forward_client_headers_to_llm_api": True}
        (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model_list": config, "general_settings": general}))
        words = (HOME / "litellm/bin/litellm", "--config", "config.yaml", "--host", "127.0.0.1", "--port", port)
        environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        async with (
            started(tmp_path, f"{proxy}/health/liveliness", *words, **environment),
            openai.AsyncOpenAI(base_url=f"{proxy}/v1", api_key=KEY, max_retries=0) as client,
        ):
            history: Any = [{"role": "user", "content": DOG}]
            first = await client.chat.completions.create(model="memory", messages=history)
            history += [{"role": "assistant", "content": first.choices[0].message.content or ""}]
            history += [{"role": "user", "content": CAT}]
            stream = await client.chat.completions.create(model="memory", messages=history, stream=True)
            pieces = [piece.choices[0].delta.content or "" async for piece in stream if piece.choices]
            assert "".join(pieces) == f"echo: {CAT}" and len(pieces) > 1
            model.fail(500, times=5)  # more than turnlog's attempts for one request, so the proxy must retry
            bird: Any = [{"role": "user", "content": BIRD}]
            headers = {"X-Turnlog-Thread": "birds"}
            answer = await client.chat.completions.create(model="memory", messages=bird, extra_headers=headers)
            assert answer.choices[0].message.content == f"echo: {BIRD}"
            assert len(model.asked("answer")) == 2 + 5 + 1
        threads = {thread["thread"] for thread in (await ann.get("/api/threads")).json()["items"]}
        stored = {thread: (await ann.get(f"/api/threads/{thread}/turns")).json()["items"] for thread in threads}
        said = sorted([turn["content"] for turn in turns] for turns in stored.values())
        assert said == [[BIRD, f"echo: {BIRD}"], [DOG, f"echo: {DOG}", CAT, f"echo: {CAT}"]]
        assert "birds" in threads
