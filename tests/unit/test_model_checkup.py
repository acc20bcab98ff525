"""`doctor --model` reports what the configured models can do, here with a local server."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from helpers.openai_server import OpenAIServer

from turnlog.agent.models.factory import make_models
from turnlog.agent.operations.checkup import Finding
from turnlog.agent.operations.model_checkup import model_checkup
from turnlog.agent.settings import Settings

CALL = [("recall_memory", {"query": "Lisbon"})]
CITY = '{"city": "Bern", "inhabitants": 134000}'


@pytest.fixture
def servers() -> Iterator[Callable[..., OpenAIServer]]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(OpenAIServer(**options))


async def checked(server: OpenAIServer, model: str) -> dict[str, Finding]:
    where = {"api_base_url": server.url, "api_key": server.key, "model": model}
    models = make_models(Settings(**where, embedding_base_url=server.url, embedding_model="words"))
    findings = await model_checkup(models)
    await models.close()
    return {finding.check: finding for finding in findings}


async def test_a_model_that_can_do_everything_passes_all_checks(servers):
    server = servers()
    server.reply("Hello.")
    server.reply(tool_calls=CALL)
    server.reply(CITY)
    findings = await checked(server, "checkup-able")
    assert list(findings) == ["model: chat", "model: tools", "model: schema", "model: embedding"]
    assert all(finding.ok and not finding.fix for finding in findings.values())
    assert "json_schema" in findings["model: schema"].detail
    assert "64 dimensions" in findings["model: embedding"].detail


async def test_missing_abilities_of_a_model_are_reported_with_their_consequences(servers):
    server = servers(refuses=("json_schema",))
    for text in ("Hello.", "I would look up Lisbon.", "Bern, 134000"):
        server.reply(text)
    findings = await checked(server, "checkup-plain")
    assert [finding.ok for finding in findings.values()] == [True, False, False, True]
    assert findings["model: tools"].fix and findings["model: schema"].fix
    assert "json_object" in findings["model: schema"].detail


async def test_an_error_of_the_server_is_a_finding_and_the_other_checks_go_on(servers):
    server = servers()
    server.fail(401)
    server.reply(tool_calls=CALL)
    server.reply(CITY)
    findings = await checked(server, "checkup-refused")
    assert [finding.ok for finding in findings.values()] == [False, True, True, True]
    assert "set API_KEY" in findings["model: chat"].detail


async def test_without_a_language_model_only_the_embedding_is_tried(servers):
    server = servers()
    models = make_models(Settings(embedding_base_url=server.url, embedding_model="words"))
    findings = await model_checkup(models)
    await models.close()
    assert [(finding.check, finding.ok) for finding in findings] == [("model: embedding", True)]


@pytest.mark.parametrize(("scores", "ok"), [([0.9, 0.1], True), ([0.1, 0.9], False)])
async def test_a_reranking_model_is_asked_once_if_one_is_configured(servers, scores, ok):
    server = servers()
    server.rank([{"index": at, "relevance_score": score} for at, score in enumerate(scores)])
    models = make_models(
        Settings(embedding_base_url=server.url, embedding_model="words", rerank_base_url=server.url, rerank_model="r")
    )
    findings = await model_checkup(models)
    await models.close()
    assert [(finding.check, finding.ok) for finding in findings] == [("model: embedding", True), ("model: rerank", ok)]
    assert bool(findings[1].fix) is not ok
    assert len(server.bodies("rerank")) == 1
