"""Tests third-party libraries: one verifies turnlog's webhooks, one writes threads to import (`make clients`)."""

import asyncio

import psycopg
import pytest
from helpers.api import Serve
from helpers.cli import Cli as Cli
from helpers.cli import turnlog as turnlog
from helpers.webhook_receiver import receiver
from installed import AGENTS
from langgraph.graph import START, MessagesState, StateGraph

DOG = "My corgi is called Sesame."


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(AGENTS))


async def test_the_library_of_standard_webhooks_verifies_an_event(serve: Serve) -> None:
    from standardwebhooks import Webhook, WebhookVerificationError

    allowed = {"webhook_networks": "127.0.0.0/8"}
    async with receiver() as target, serve("reactors", **allowed) as api, api.client(role="admin") as ann:
        made = await ann.post("/api/operations/webhooks", json={"name": "crm", "url": target.url})
        await ann.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": DOG}]})
        webhook, kind = Webhook(made.json()["secret"]), ""
        while kind != "turnlog.turn_recorded":  # other events arrive before it
            headers, body = await asyncio.wait_for(target.received.get(), 60)
            kind = webhook.verify(body, headers)["type"]
    with pytest.raises(WebhookVerificationError):
        webhook.verify(body + b" ", headers)


async def test_threads_of_langgraphs_postgres_saver_are_imported_for_their_user(
    turnlog: Cli, empty_database_url: str
) -> None:
    from langgraph.checkpoint.postgres import PostgresSaver

    def answer(state: MessagesState) -> MessagesState:
        return {"messages": [("ai", f"heard {len(state['messages'])}")]}

    graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer")
    with psycopg.connect(empty_database_url, autocommit=True) as conn:
        conn.execute("CREATE SCHEMA peer")
    url = f"{empty_database_url}&options=-c%20search_path%3Dpeer"
    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        for text in (DOG, "She is four."):
            asked = {"configurable": {"thread_id": "t1", "user_id": "ann"}}
            graph.compile(checkpointer=saver).invoke({"messages": [("user", text)]}, asked)
    done = await turnlog("import", url)
    assert done.code == 0, done.err
    turns = (await turnlog("messages", "t1", "--json")).document
    assert [turn["content"] for turn in turns] == [DOG, "heard 1", "She is four.", "heard 3"]
    assert " ann " in (await turnlog("threads")).out
