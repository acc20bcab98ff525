"""Creates a person and a conversation with hostile texts in names, turns, tools, memories, entities, agents and
failures."""

import json
from datetime import UTC, datetime
from urllib.parse import quote
from uuid import UUID

from helpers.api import Api
from helpers.sample_events import ENVELOPE, event, memory_event, memory_of
from helpers.stage import MemoryServer
from httpx2 import AsyncClient

from turnlog.agent.memory.entities import EntityInput, add_entity
from turnlog.agent.models.calls import ResilientClient
from turnlog.events.contracts import Derivation, EventData, MemorySource, ProfileWritten, SummaryWritten, TopicsTagged
from turnlog.events.subjects import memory_thread, publish_subject

# Each text has an effect if it is taken for markup, a link or a terminal's control sequence. NAME is for short fields.
NAME = "<img src=x onerror=window.hacked=1> \x1b[2J \u202egpj.exe\u202c"
TEXTS = (
    "<script>window.hacked = 1</script>",
    '<img src="https://evil.example/x.png" onerror="window.hacked = 1">',
    "[open](javascript:window.hacked=1) ![x](https://evil.example/y.png)",
    "\x1b[2J\x1b]0;owned\x07 \u202egpj.exe\u202c \u2066hidden\u2069",
    "{{constructor.constructor('window.hacked = 1')()}} ${window.hacked = 1} </textarea></title><svg onload=hacked=1>",
)
WORDS = " ".join(TEXTS)
LONG = f"{WORDS} {'word' * 250_000}"
USER = THREAD = NAME
PLACE = f"/api/threads/{quote(THREAD, safe='')}"


async def fill(api: Api, model: MemoryServer) -> str:
    """Writes hostile texts through the API wherever it accepts them, and into events where only models, rules and other
    programs write. Returns the id of a run that delegates."""
    breaker = ResilientClient("http://127.0.0.1:9", secret=None, service=NAME).breaker
    for _ in range(5):
        breaker.admit()
        breaker.failed()
    async with api.client(USER, role="admin") as client:
        await send(client, "PATCH", "/admin/ai-agent/agents/orchestrator", {"name": NAME, "model": NAME})
        await send(
            client, "PATCH", "/admin/ai-agent/agents/essay", {"name": WORDS[:200], "systemPrompt": LONG[:100_000]}
        )
        await send(client, "POST", "/api/operations/keys", {"user": USER, "role": "user", "label": WORDS[:200]})
        memory = await send(client, "POST", "/api/memories", {"content": f"museum {WORDS}"})
        address = f"/api/memories/{memory['memory_id']}/content"
        await send(client, "PUT", address, {"content": f"museum edited {WORDS}"})
        await converse(client, model)
        runs = (await client.get("/api/runs")).json()["items"]
    await append(api)
    return str(runs[0]["run_id"])


async def send(client: AsyncClient, method: str, address: str, body: object) -> dict[str, str]:
    response = await client.request(method, address, json=body)
    assert response.is_success, (address, response.text)
    answer: dict[str, str] = response.json()
    return answer


async def converse(client: AsyncClient, model: MemoryServer) -> None:
    """Appends all kinds of turns and asks twice; another agent, which calls a tool, makes the second answer."""
    await send(client, "POST", "/api/threads", {"thread": THREAD, "label": WORDS})
    await send(client, "POST", "/api/threads", {"thread": f"{NAME} 2"})
    call = {"id": NAME, "name": NAME, "arguments": json.dumps({WORDS: WORDS})}
    thought = [{"type": "thinking", "thinking": WORDS}, {"type": "text", "text": WORDS}]
    turns = (
        {"role": "user", "name": WORDS, "content": f"museum {LONG}"},
        {"role": "assistant", "name": NAME, "content": f"museum {WORDS}", "model": WORDS},
        {"role": "assistant", "content": thought, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": NAME, "content": WORDS},
        {"role": "user", "content": [{"type": "image", "url": f"https://evil.example/{WORDS}"}]},
    )
    for turn in turns:
        await send(client, "POST", f"{PLACE}/turns", {"turns": [turn]})
    task = {"agent_type": "essay", "task_description": f"museum {WORDS}"}
    model.reply(WORDS, tool_calls=[("web_search", {"query": f"museum {WORDS}"})])
    model.reply(f"An answer about the museum. {WORDS}")
    model.reply(WORDS, tool_calls=[("delegate_to_agent", task)])
    model.reply(WORDS, tool_calls=[("web_search", {"query": f"museum {WORDS}"}), (NAME, {WORDS: WORDS})])
    model.reply(f"An answer about the museum. {WORDS}")
    for _ in range(2):
        await send(client, "POST", f"{PLACE}/answers", {"message": f"Which museum? {WORDS}"})


async def append(api: Api) -> None:
    made = Derivation(provider=WORDS, model=WORDS, prompt_hash=WORDS, from_seq=1, through_seq=2)
    for words in (f"museum {LONG}", f"museum {WORDS}"):
        await log(api, SummaryWritten(summary=words, message_count=2, covered_seq=2, derivation=made))
    await log(api, TopicsTagged(topics={WORDS: 2, NAME: 1}, derivation=made))
    source = MemorySource(thread=THREAD, seq=1, event_id=UUID(int=1), quote=WORDS, said_at=datetime.now(UTC))
    fields = {"category": NAME, "content": f"museum {LONG}", "rule": NAME, "value": NAME, "sources": (source,)}
    memory = memory_of(UUID(api.tenant).int >> 8, **fields)
    await api.runtime.log.append(memory_event(memory, USER, str(api.tenant)))
    about = {"sentences": (WORDS,), "memories": ((memory.id,),), "lines": (memory.id,), "derivation": made}
    await log(api, ProfileWritten.model_validate(about), memory_thread(USER))
    entity = EntityInput(
        "PLACE", f"museum {NAME}", description=WORDS, attributes={NAME: WORDS}, relations=[(NAME[:60], NAME)]
    )
    await add_entity(api.runtime, str(api.tenant), USER, entity)
    unknown = json.loads(ENVELOPE) | {"type": f"turnlog.{NAME}", "thread": THREAD, "subject": THREAD}
    subject = publish_subject(str(api.tenant), f"{THREAD} 2", "turn_recorded")
    await api.runtime.log.nc.jetstream().publish(subject, json.dumps(unknown).encode())
    await api.runtime.wait_until_projected()


async def log(api: Api, data: EventData, thread: str = THREAD) -> None:
    await api.runtime.log.append(event(data, thread, user=USER, tenant=str(api.tenant)))
