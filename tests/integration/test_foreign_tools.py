"""Agents use tools of a real MCP server over stdio and HTTP, and of a real HTTP service by its OpenAPI document."""

import asyncio
import json
import socket
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from helpers.http_shop import TOKEN, Warehouse, served
from helpers.mcp_shop import shop
from helpers.servers import eventually

from turnlog.agent.team.http_tools import HttpTools
from turnlog.agent.team.local_pages import LocalPages
from turnlog.agent.team.mcp_tools import McpTools
from turnlog.agent.team.plans import MOST_CHARS, Result
from turnlog.agent.team.teams import Agent, HttpService, McpServer
from turnlog.agent.team.tool_failures import Unavailable
from turnlog.agent.team.tool_registry import ASK_AGAIN_S, MAY_BE_DONE, Registry
from turnlog.agent.team.tools import InvalidTool, Use

pytestmark = pytest.mark.slow

USE = Use("ann", datetime(2026, 9, 1, tzinfo=UTC), uuid.uuid4(), None, LocalPages("nothing", []))  # type: ignore[arg-type]
OF_SHOP = ["find_parts", "opening_hours", "every_part", "order_parts", "stop_working"]
TESTS = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Desk:
    """An agent that may use all tools of a server except the last."""

    registry: Registry
    agent: Agent

    async def call(self, name: str, use: Use = USE, **arguments: Any) -> Result:
        return await self.registry.call(self.agent, name, json.dumps(arguments), use)

    async def error(self, name: str, **arguments: Any) -> str:
        result = await self.call(name, **arguments)
        assert result.is_error, result.value
        return str(result.value["error"])

    def schema(self, name: str) -> dict[str, Any]:
        [schema] = [
            schema["function"] for schema in self.registry.schemas(self.agent) if schema["function"]["name"] == name
        ]
        return dict(schema)


@asynccontextmanager
async def using(
    source: McpTools | HttpTools, is_ready: bool = True, connect_s: float = 60.0, ask_again_s: float = ASK_AGAIN_S
) -> AsyncIterator[Desk]:
    """Yields an agent with the tools of a server. connect_s: long, because a process may start slowly on a busy
    machine."""
    registry = Registry([], [source], connect_s=connect_s, ask_again_s=ask_again_s, first_wait_s=0.0)
    try:
        if is_ready:
            await registry.ready()
        names = tuple(known.name for known in source.declared)
        yield Desk(registry, Agent(type="desk", name="Desk", prompt="p", tools=names))
    finally:
        await registry.close()


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def lines_of(ledger: Path) -> list[Any]:
    return [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.exists() else []


def by_command(ledger: Path, **more: Any) -> McpTools:
    command = [sys.executable, "-m", "helpers.mcp_shop", str(ledger)]
    return McpTools("shop", McpServer(command=command, **{"tools": OF_SHOP, **more}), str(TESTS), timeout_s=120.0)


@asynccontextmanager
async def by_url(ledger: Path, **more: Any) -> AsyncIterator[McpTools]:
    with served(shop(ledger).streamable_http_app()) as url:
        yield McpTools("shop", McpServer(url=f"{url}/mcp", **{"tools": OF_SHOP, **more}), "/")


@pytest.fixture(params=["command", "url"])
async def mcp(request: pytest.FixtureRequest, ledger: Path) -> AsyncIterator[Desk]:
    if request.param == "command":
        async with using(by_command(ledger)) as desk:
            yield desk
    else:
        async with by_url(ledger) as source, using(source) as desk:
            yield desk


async def test_an_agent_uses_the_tools_of_an_mcp_server_and_a_cut_result_is_marked(mcp: Desk, ledger: Path) -> None:
    assert mcp.schema("find_parts")["description"] == "Finds parts by words."
    assert mcp.schema("find_parts")["parameters"]["properties"]["words"]["description"] == "what it is for"
    assert "$ref" not in json.dumps(mcp.schema("order_parts"))
    assert await mcp.call("find_parts", words="tyre") == Result(["front tyre", "rear tyre"])
    assert await mcp.call("opening_hours", day="monday") == Result("9 to 18")
    assert "the shop is closed on sunday" in await mcp.error("opening_hours", day="sunday")
    assert "words" in await mcp.error("find_parts")
    ordered = await mcp.call("order_parts", lines=[{"part": "bell", "count": 2}])
    assert ordered == Result({"ordered": 2, "city": None})
    assert lines_of(ledger) == [[str(USE.effect), [{"part": "bell", "count": 2}]]]
    assert "lines.0.count" in await mcp.error("order_parts", lines=[{"part": "bell", "count": 0}])
    result = await mcp.call("every_part")
    assert not result.is_error and len(result.value["beginning"]) == MOST_CHARS
    assert "ask for less" in result.value["cut"]


async def test_hints_of_an_mcp_server_say_which_tools_write_and_the_teams_file_overrides_them(ledger: Path) -> None:
    options = {"writes": ["find_parts"], "repeatable": ["order_parts"]}
    async with by_url(ledger, **options) as source, using(source) as desk:
        known = {name: desk.registry[name] for name in OF_SHOP}
    assert {name for name, tool in known.items() if tool.writes} == {"find_parts", "order_parts"}
    assert {name for name, tool in known.items() if not tool.repeatable} == {"find_parts"}
    assert {name: tool.retries for name, tool in known.items() if tool.retries} == dict.fromkeys(
        ("opening_hours", "every_part", "stop_working"), 2
    )


async def test_a_command_gets_the_variables_that_the_file_names(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_CITY", "Bath")
    async with using(by_command(ledger, env=["SHOP_CITY"])) as desk:
        assert (await desk.call("order_parts", lines=[{"part": "bell"}])).value["city"] == "Bath"


async def test_a_server_that_ended_is_started_again(ledger: Path) -> None:
    async with using(by_command(ledger, writes=["stop_working"])) as desk:
        failed = await desk.error("stop_working")
        assert "stop_working failed" in failed and failed.endswith(MAY_BE_DONE)
        assert await desk.call("find_parts", words="bell") == Result(["bell"])
        assert lines_of(ledger) == [["", "stopped"]], "a tool that writes is not tried again"


async def test_tools_of_a_server_that_is_away_are_not_offered_until_it_is_back(ledger: Path) -> None:
    source = McpTools("shop", McpServer(url="http://127.0.0.1:9/mcp", tools=["find_parts"], writes=["find_parts"]), "/")
    async with using(source, ask_again_s=0.0) as desk:
        assert desk.registry.schemas(desk.agent) == [] and "find_parts" in desk.registry.names
        away = await desk.error("find_parts", words="bell")
        assert "the MCP server shop cannot be reached" in away and MAY_BE_DONE not in away
        with served(shop(ledger).streamable_http_app()) as url:
            source.server = source.server.model_copy(update={"url": f"{url}/mcp"})

            async def offered() -> bool:
                await desk.registry.ready()
                return bool(desk.registry.schemas(desk.agent))

            await eventually(offered)
            assert await desk.call("find_parts", words="bell") == Result(["bell"])
            await desk.registry.close()


@pytest.mark.parametrize("way", ["command", "url"])
async def test_a_server_that_never_answers_keeps_nobody_waiting(way: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
        options: dict[str, Any] = {"command": ["sleep", "600"]} if way == "command" else {"url": address}
        async with asyncio.timeout(60):
            source = McpTools("silent", McpServer(tools=["find_parts"], **options), "/")
            async with using(source, connect_s=0.1) as desk:
                assert desk.registry.schemas(desk.agent) == []


async def test_a_tool_that_the_server_does_not_have_is_named(ledger: Path) -> None:
    async with by_url(ledger, tools=["find_parts", "fly"]) as source:
        with pytest.raises(InvalidTool, match="the MCP server shop has no tool fly; it has find_parts"):
            await source.tools()
        await source.close()


async def test_a_server_gets_the_user_only_if_the_teams_file_says_so(ledger: Path) -> None:
    use, part = replace(USE, user="安@x", tenant="acme"), [{"part": "bell"}]
    for tells, told in (((), {}), (("user",), {"turnlog/user": "安@x"})):
        async with by_url(ledger, tells=tells) as source, using(source) as desk:
            assert (await desk.call("order_parts", use, lines=part)).value.get("told", {}) == told


async def test_a_service_gets_the_user_only_if_the_teams_file_says_so(url: str, warehouse: Warehouse) -> None:
    use = replace(USE, user="安@x", tenant="acme")
    for tells in ((), ("user",), ("user", "tenant")):
        async with using(service(url, tells=tells)) as desk:
            await desk.call("list_parts", use, shelf="a")
    whole = {"x-turnlog-user": "%E5%AE%89@x", "x-turnlog-tenant": "acme"}
    assert [call["told"] for call in warehouse.calls] == [{}, {"x-turnlog-user": whole["x-turnlog-user"]}, whole]


@pytest.mark.parametrize("broken", [True, False], ids=["broken off", "refused"])
async def test_a_write_whose_connection_broke_may_have_been_done(url: str, broken: bool) -> None:
    """Tests a server that closes the connection after the request, and an address without a server."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        if not broken:
            server.close()
        async with using(service(url, base_url=address)) as desk:
            failed = await desk.call("move_parts", body={"part": "bell", "count": 1})
    assert failed.value["category"] == "network"
    assert str(failed.value["error"]).endswith(MAY_BE_DONE) is broken


@pytest.fixture
def warehouse() -> Warehouse:
    return Warehouse()


@pytest.fixture
def url(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("WAREHOUSE_TOKEN", TOKEN)
    with served(warehouse.app) as url:
        yield url


def service(url: str, **more: Any) -> HttpTools:
    names = {"list_parts": "listParts", "move_parts": "moveParts", "go": "goElsewhere"}
    options = {"document": f"{url}/openapi.json", "tools": names, "auth_env": "WAREHOUSE_TOKEN", **more}
    return HttpTools("warehouse", HttpService(**options), "/")


async def test_an_agent_uses_the_operations_of_an_http_service(url: str, warehouse: Warehouse) -> None:
    async with using(service(url)) as desk:
        assert desk.schema("list_parts") == {
            "name": "list_parts",
            "description": "Lists the parts on a shelf.",
            "parameters": {
                "type": "object",
                "properties": {
                    "shelf": {"type": "string", "title": "Shelf"},
                    "kind": {"type": "array", "items": {"type": "string"}, "title": "Kind"},
                    "most": {"type": "integer", "default": 20, "title": "Most"},
                },
                "required": ["shelf"],
                "additionalProperties": False,
            },
        }
        assert desk.schema("move_parts")["parameters"]["properties"]["body"]["required"] == ["part", "count"]
        listed = await desk.call("list_parts", shelf="a b?", kind=["x", "y"], most=1)
        assert listed == Result({"shelf": "a b?", "parts": [{"name": "part 0"}]})
        assert await desk.call("move_parts", body={"part": "bell", "count": 3, "to": None}) == Result({"moved": 3})
        known = {name: desk.registry[name] for name in ("list_parts", "move_parts")}
    first, second = warehouse.calls
    assert (first["kind"], first["most"]) == (["x", "y"], 1)
    assert first["key"] == second["key"] == str(USE.effect)
    assert second["move"] == {"part": "bell", "count": 3, "to": None}
    assert [(tool.writes, tool.repeatable, tool.retries) for tool in known.values()] == [
        (False, True, 2),
        (True, False, 0),
    ]


async def test_refusals_and_failures_of_a_service_are_reported_to_the_model(url: str, warehouse: Warehouse) -> None:
    async with using(service(url)) as desk:
        assert 'answered 404: {"detail":"there is no shelf nowhere"}' in await desk.error("list_parts", shelf="nowhere")
        assert "body.count" in await desk.error("move_parts", body={"part": "bell", "count": 51})
        assert "'shelf' is a required property" in await desk.error("list_parts")
        assert "cannot be a part of the path" in await desk.error("list_parts", shelf="..")
        assert "answered 307" in await desk.error("go")
        warehouse.calls.clear()
        warehouse.failures += [503, 429]
        assert not (await desk.call("list_parts", shelf="a")).is_error and len(warehouse.calls) == 3
        for status, may_be_done in ((503, True), (500, True), (429, False)):
            warehouse.failures.append(status)
            failed = await desk.error("move_parts", body={"part": "bell", "count": 1})
            assert f"answered {status}" in failed and failed.endswith(MAY_BE_DONE) is may_be_done
        assert len(warehouse.calls) == 6
        cut = await desk.call("list_parts", shelf="a", most=10_000)
        assert "ask for less" in cut.value["cut"]


async def test_a_document_may_be_a_file_and_name_no_server(
    url: str, warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "warehouse.json").write_text(json.dumps(warehouse.app.openapi()))
    source = service(url, document="warehouse.json", base_url=url)
    source.folder = str(tmp_path)
    async with using(source) as desk:
        assert (await desk.call("list_parts", shelf="a", most=0)).value == {"shelf": "a", "parts": []}
    monkeypatch.delenv("WAREHOUSE_TOKEN")
    async with using(service(url)) as desk:
        assert "answered 401" in await desk.error("list_parts", shelf="a")
    nowhere = service(url, document="warehouse.json", tools=["moveParts"])
    nowhere.folder = str(tmp_path)
    async with using(nowhere) as desk:
        assert "has no base URL" in await desk.error("moveParts", body={"part": "bell", "count": 1})


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"tools": ["fly"]}, InvalidTool, "has no operation fly; it has goElsewhere, listParts, moveParts"),
        ({"document": "http://127.0.0.1:9/openapi.json"}, Unavailable, "cannot be fetched"),
        ({"document": "/moves"}, Unavailable, "was answered with 405"),
        ({"document": "/shelves/a/parts"}, InvalidTool, "is not an OpenAPI document"),
    ],
)
async def test_a_service_without_a_usable_document_says_so(
    url: str, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    document = options.get("document", "/openapi.json")
    source = service(url, **options | {"document": url + document if document.startswith("/") else document})
    with pytest.raises(error, match=said):
        await source.tools()
    await source.close()


async def test_a_tool_of_another_server_is_refused_outside_the_agents_list(url: str, warehouse: Warehouse) -> None:
    async with using(service(url)) as desk:
        other = replace(desk, agent=Agent(type="other", name="Other", prompt="p", tools=("list_parts",)))
        assert "other has no tool 'move_parts'" in await other.error("move_parts", body={"part": "bell", "count": 1})
        assert [schema["function"]["name"] for schema in desk.registry.schemas(other.agent)] == ["list_parts"]
    assert warehouse.calls == []
