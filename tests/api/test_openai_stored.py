"""Tests stored responses, compaction, embeddings of tokens and OpenAI's error format by the `openai` client."""

from typing import Any

import openai
import pytest
from helpers.api import Serve, openai_client
from helpers.stage import MemoryServer

from turnlog.agent.access.limits import change_limits

WEATHER: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}


async def test_a_stored_response_is_retrieved_as_it_was_made_and_deleted(serve: Serve, model: MemoryServer) -> None:
    async with serve(api_base_url=model.url, model="m") as api, openai_client(api) as client:
        model.reply("Let me see.", tool_calls=[("weather", {"city": "Ulm"})])
        made = await client.responses.create(model="m", input="weather?", tools=[WEATHER])
        kept = await client.responses.retrieve(made.id)
        assert (kept.id, kept.status, kept.output_text) == (made.id, "completed", "Let me see.")
        assert [item.id for item in kept.output] == [item.id for item in made.output]
        assert kept.output[1].to_dict() == made.output[1].to_dict()
        assert kept.usage == made.usage
        later = await client.responses.create(model="m", input="thanks", previous_response_id=made.id)
        for id_ in (made.id, later.id):
            with pytest.raises(openai.BadRequestError, match="other answers"):
                await client.responses.delete(id_)
        alone = await client.responses.create(model="m", input="alone")
        async with openai_client(api, "bob") as bob:
            with pytest.raises(openai.NotFoundError):
                await bob.responses.delete(alone.id)
        await client.responses.delete(alone.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(alone.id)


async def test_a_compaction_replaces_the_earlier_conversation(serve: Serve, model: MemoryServer) -> None:
    async with serve(api_base_url=model.url, model="m") as api, openai_client(api) as client:
        first = await client.responses.create(model="m", input="My corgi Sesame loves the river Danube.")
        compact = await client.responses.compact(model="m", previous_response_id=first.id, input="Where do we walk?")
        read = str(model.bodies()[-1]["messages"])
        assert "Danube" in read and "Where do we walk?" in read and compact.usage.total_tokens > 0
        items: Any = [item.to_dict() for item in compact.output]
        assert [item["type"] for item in items] == ["compaction"]
        said: Any = {"role": "user", "content": "Who is Sesame?"}
        await client.responses.create(model="m", input=[*items, said])
        sent = model.bodies()[-1]["messages"]
        assert "They planned a trip." in str(sent[0]) and sent[-1]["content"] == "Who is Sesame?"
        with pytest.raises(openai.BadRequestError, match="nothing to compact"):
            await client.responses.compact(model="m", input=[])


async def test_tokens_are_embedded_as_their_text_within_a_quota_of_their_own(serve: Serve, model: MemoryServer) -> None:
    settings = {"embedding_base_url": model.url, "embedding_model": "text-embedding-3-small"}
    async with serve(api_base_url=model.url, model="m", **settings) as api, openai_client(api) as client:
        made = await client.embeddings.create(model="any", input=[[31373, 1917], [1]])
        assert len(made.data) == 2
        await client.embeddings.create(model="any", input=[1, 2, 3])
        assert [body["input"] for body in model.bodies("embeddings")] == [[" sooner world", '"'], ['"#$']]
        with pytest.raises(openai.BadRequestError, match="not a token"):
            await client.embeddings.create(model="any", input=[[100_256]])
        await change_limits(api.runtime, "default", "user", {"tokens_per_day": 0})
        await client.embeddings.create(model="any", input="hello")
        await change_limits(api.runtime, "default", "user", {"tokens_per_day": 9, "embedding_tokens_per_day": 0})
        with pytest.raises(openai.APIStatusError) as spent:
            await client.embeddings.create(model="any", input="hello")
        assert (spent.value.status_code, spent.value.type) == (402, "insufficient_quota")


async def test_a_body_that_is_too_large_is_refused_in_the_form_of_openai(serve: Serve) -> None:
    async with serve(api_max_body=2_000) as api, openai_client(api) as client:
        with pytest.raises(openai.APIStatusError) as refused:
            await client.responses.create(model="m", input="x" * 3_000)
        assert (refused.value.status_code, refused.value.code) == (413, "body_too_large")
        assert refused.value.type == "invalid_request_error"
