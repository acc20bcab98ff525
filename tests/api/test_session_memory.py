"""A complete conversation uses the operations on a session over HTTP."""

from typing import Any

import httpx
from helpers.api import Serve

MEMORY = "/short-memory"


async def test_a_session_goes_from_creation_to_reset(serve: Serve) -> None:
    async with serve() as api, api.client() as ann, api.client("bob") as bob, api.client(tenant="acme") as other:
        conversation = {"conversation_id": "conv-123"}
        rules = {"token_threshold_ratio": 0.8, "recent_turns": 1, "model_context_window": 256}
        snapshot = {"user_snapshot": {"name": "Ann", "allergies": ["penicillin"]}}
        made = await ann.post(f"{MEMORY}/create", json=conversation | rules | snapshot | {"agent_code": "triage_agent"})
        assert made.status_code == 201, made.text
        assert made.json()["meta"]["user_id"] == "ann"
        assert made.json()["user_snapshot"]["allergies"] == ["penicillin"]
        assert made.json()["flow_context"]["current_agent_key"] == "triage_agent"
        turn = conversation | {"user_query": "I have a headache.", "agent_response": "Since when?"}
        key = {"Idempotency-Key": "1"}
        for _ in range(2):
            written = await ann.post(f"{MEMORY}/write", json=turn, headers=key)
            assert written.status_code == 201 and written.json()["mode"] == "FULL_HISTORY", written.text
        await ann.post(f"{MEMORY}/write", json=conversation | {"agent_response": "Rest.", "agent_code": "doctor"})
        asked = conversation | {"query": "And now?", "enterprise_id": "default", "patient_id": "ann"}
        context = (await ann.post(f"{MEMORY}/query", json=asked)).json()
        assert context["history"].count("headache") == 1 and "Rest." in context["full_history"]
        assert context["should_checkpoint_summary"] is False
        assert (await ann.post(f"{MEMORY}/query", json=asked | {"token_threshold_ratio": 0.01})).json()[
            "should_checkpoint_summary"
        ]
        done = await ann.post(f"{MEMORY}/checkpoint", json=conversation | {"summary": "A headache."})
        assert done.json()["message_context"]["mode"] == "SUMMARY_N", done.text
        session = (await ann.get(f"{MEMORY}/sessions/conv-123")).json()
        assert session["message_context"]["summary"] == "A headache."
        assert len((await ann.get(f"{MEMORY}/sessions/conv-123/checkpoints")).json()) == 1
        await sets_and_patches(ann, session)
        for client in (bob, other):
            assert (await client.put(f"{MEMORY}/sessions/conv-123", json=session)).status_code == 404
            assert (await client.patch("/api/threads/conv-123/session", json={})).status_code == 404
        assert (await ann.post(f"{MEMORY}/reset", json=conversation)).json()["flow_context"]["turn_count"] == 0
        for wrong in (asked | {"enterprise_id": "acme"}, asked | {"patient_id": "bob"}):
            assert (await ann.post(f"{MEMORY}/query", json=wrong)).status_code == 404
        assert (await ann.post(f"{MEMORY}/write", json=turn | {"user_id": "bob"})).status_code == 404
        for client in (bob, other):
            assert (await client.post(f"{MEMORY}/query", json=conversation)).status_code == 404
            assert (await client.post(f"{MEMORY}/write", json=turn)).status_code == 404
            assert (await client.get(f"{MEMORY}/sessions/conv-123")).status_code == 404
        made = await bob.post(f"{MEMORY}/create", json=conversation)
        assert made.status_code == 201 and made.json()["meta"]["conversation_id"] != "conv-123"


async def sets_and_patches(ann: httpx.AsyncClient, session: dict[str, Any]) -> None:
    """Sets the session that was read with changes, as a Go client does, and then patches parts of it."""
    assert session["user_snapshot"]["history"] == [] and "chronic_diseases" not in session["user_snapshot"]
    session["user_snapshot"]["history"] = ["asthma"]
    session["global_state"] |= {"current_intent": "book", "pending_action": {"ask": "when"}}
    stale = session | {"message_context": {"mode": "FULL_HISTORY"}}
    put = await ann.put(f"{MEMORY}/sessions/conv-123", json=stale)
    assert put.status_code == 200 and put.json()["user_snapshot"]["history"] == ["asthma"], put.text
    assert put.json()["message_context"]["mode"] == "SUMMARY_N", "it follows from the conversation"
    slots = {"booking": {"city": "Oslo"}}
    path = "/api/threads/conv-123/session"
    await ann.patch(path, json={"global_state": {"agent_slots": slots, "pending_action": None}})
    patch = {"current_agent_key": "desk", "user_snapshot": {"history": ["asthma", "gout"], "allergies": None}}
    patched = (await ann.patch(path, json=patch)).json()
    assert patched["flow_context"]["current_agent_key"] == "desk"
    state = patched["global_state"]
    assert (state["current_intent"], state["agent_slots"], state["pending_action"]) == ("book", slots, None)
    assert patched["user_snapshot"]["chronic_diseases"] == ["asthma", "gout"]
    assert (patched["user_snapshot"]["name"], patched["user_snapshot"]["allergies"]) == ("Ann", [])
    wrong = await ann.patch(path, json={"user_snapshot": {"allergies": "nuts"}})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid-memory-request")
