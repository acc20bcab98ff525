"""Every operation answers requests that schemathesis generates as the OpenAPI document says."""

import asyncio
from functools import partial
from typing import Any
from uuid import uuid4

import httpx2
import pytest
import schemathesis
from helpers.api import Api, Serve
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

ENDLESS = r"^/api/(threads/\{thread\}|operations)/events$"  # these streams follow the log until the client leaves
READINESS = "/health/ready"  # documents 503, for instance if a loop waits on a busy machine
WITHOUT_INPUT = r"^/health/|^/\.well-known/"  # these have no input that could be wrong
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
TIMEOUT_S = 180.0
# The server runs in another thread and may use the random generator while hypothesis reads the generator's state.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies"),
]
BEGINNINGS: dict[str, Any] = {
    "/api/threads/t/turns": {"turns": [{"role": "user", "content": "I row on Sundays."}]},
    "/api/memories": {"content": "The user rows on Sundays."},
    "/ai-agent/entities": {"type": "person", "name": "Bob"},
}
# The same requests in every run, so that random findings do not fail unrelated changes.
same_examples = partial(
    settings,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


async def document_of(api: Api) -> Any:
    async with api.client() as client:
        return (await client.get("/openapi.json")).json()


async def schema_of(api: Api) -> Any:
    schema = schemathesis.openapi.from_dict(await document_of(api)).exclude(path_regex=ENDLESS)
    schema.config.update(base_url=api.url)
    return schema


async def send_examples(api: Api, strategy: Any, count: int, expected: list[Any]) -> None:
    """Sends examples as a separate user, because erasing a user would end answers that another operation waits for."""
    headers = {"Authorization": f"Bearer {api.token(uuid4().hex, role='admin')}"}

    @same_examples(max_examples=count)
    @given(strategy)
    def send(case: Case) -> None:
        case.headers.pop("X-Turnlog-User", None)  # it is refused before anything else is checked
        case.call_and_validate(headers=headers, timeout=TIMEOUT_S, checks=expected)

    await asyncio.to_thread(send)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [1, pytest.param(8, marks=pytest.mark.nightly)])
async def test_every_operation_answers_as_documented(serve: Serve, count: int) -> None:
    async with serve("agent") as api:
        operations = [result.ok() for result in (await schema_of(api)).get_all_operations()]
        assert len(operations) > 100
        for operation in operations:
            expected = [check for check in CHECKS if operation.path != READINESS or check is not not_a_server_error]
            await send_examples(api, operation.as_strategy(), count, expected)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
async def test_wrong_input_never_causes_a_server_error(serve: Serve) -> None:
    """The form of the response is not checked, because some requests are refused before any route handles them."""
    async with serve("agent") as api:
        for result in (await schema_of(api)).exclude(path_regex=WITHOUT_INPUT).get_all_operations():
            wrong = result.ok().as_strategy(generation_mode=GenerationMode.NEGATIVE)
            await send_examples(api, wrong, 8, [not_a_server_error])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("paths", "count"), [("^/api/threads", 2), pytest.param("", 200, marks=pytest.mark.nightly)])
async def test_values_of_responses_can_be_used_in_the_next_request(serve: Serve, paths: str, count: int) -> None:
    """Tests chains of requests that use ids and sequences of earlier responses as the document's links and names
    say."""
    async with serve("agent") as api:
        schema = (await schema_of(api)).include(path_regex=paths)
        schema.config.generation.update(modes=[GenerationMode.POSITIVE])
        machine = schema.as_state_machine()

        class Chains(machine):  # type: ignore[misc, valid-type]
            def setup(self) -> None:
                """Sets up a separate tenant with data, so that a repeated chain gets the same responses."""
                self.headers = {"Authorization": f"Bearer {api.token(role='admin', tenant=uuid4().hex)}"}
                for path, body in BEGINNINGS.items():
                    httpx2.post(api.url + path, json=body, headers=self.headers, timeout=TIMEOUT_S).raise_for_status()

            def before_call(self, case: Case) -> None:
                case.headers.pop("X-Turnlog-User", None)
                case.headers.update(self.headers)

            def get_call_kwargs(self, case: Case) -> dict[str, Any]:
                return {"timeout": TIMEOUT_S}

            def validate_response(self, response: Any, case: Case, **options: Any) -> None:
                case.validate_response(response, checks=CHECKS)

        bounds = same_examples(max_examples=count, stateful_step_count=6)
        await asyncio.to_thread(Chains.run, settings=bounds)


async def test_errors_under_v1_are_documented_in_the_form_of_openai(serve: Serve) -> None:
    async with serve() as api:
        under_v1 = {path: item for path, item in (await document_of(api))["paths"].items() if path.startswith("/v1/")}
        assert under_v1
        for path, operations in under_v1.items():
            for operation in operations.values():
                for status in ("4XX", "5XX"):
                    form = operation["responses"][status]["content"]["application/json"]["schema"]["$ref"]
                    assert form.endswith("/ErrorBody"), path


@pytest.mark.parametrize("path", ["/ai-agent/chat", "/ai-agent/conversations/{id}/stream"])
async def test_streamed_answers_are_documented_as_events(serve: Serve, path: str) -> None:
    async with serve() as api:
        content = (await document_of(api))["paths"][path]["post"]["responses"]["200"]["content"]
        assert "text/event-stream" in content
        assert ("application/json" in content) == (path == "/ai-agent/chat")


async def test_a_created_resource_is_linked_to_its_operations(serve: Serve) -> None:
    async with serve() as api:
        paths = (await document_of(api))["paths"]
        links = paths["/api/threads"]["post"]["responses"]["201"]["links"]
        append = links[paths["/api/threads/{thread}/turns"]["post"]["operationId"]]
        assert append["parameters"] == {"thread": "$response.body#/thread"}
        rest = paths["/api/threads/{thread}/answers"]["post"]["responses"]["201"]["links"]
        same_answer = {"thread": "$request.path.thread", "seq": "$response.body#/seq"}
        assert rest and all(link["parameters"] == same_answer for link in rest.values())


async def test_a_model_name_in_a_path_has_no_line_break(serve: Serve) -> None:
    async with serve() as api:
        name = (await document_of(api))["paths"]["/v1/models/{model}"]["get"]["parameters"][0]
        assert name["schema"]["pattern"] == r"^[^\n]+$"
