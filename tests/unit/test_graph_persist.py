"""persist without a log: the event of an answer's usage."""

from langchain_core.messages import AIMessage, HumanMessage

from turnlog.agent.models.protocol import Completion
from turnlog.consumers.langgraph.graph.generate import answer_message
from turnlog.consumers.langgraph.graph.persist import usage_event
from turnlog.consumers.langgraph.graph.state import ConversationState
from turnlog.events.contracts import UsageMetered

COMPLETION = Completion("Hi.", (), 120, 3, 0.25, "gpt-4o", "api.openai.com", 81.5, finish_reason="stop")
STATE: ConversationState = {"messages": [HumanMessage("hello")], "user_id": "ann", "conversation_id": "c"}


def test_an_answer_carries_what_meters_it() -> None:
    answer = answer_message(COMPLETION, "ESSAY", "9f86")
    event = usage_event("default", STATE, answer)
    assert (event.thread, event.user, event.tenant) == ("c", "ann", "default")
    assert event.data == UsageMetered(
        purpose="answer",
        agent="ESSAY",
        provider="api.openai.com",
        model="gpt-4o",
        tokens_in=120,
        tokens_out=3,
        cost_usd=0.25,
        latency_ms=81.5,
    )
    assert answer.response_metadata["context_hash"] == "9f86"


def test_the_same_answer_is_the_same_event_and_another_is_another() -> None:
    answer = answer_message(COMPLETION, "general", "")
    again = usage_event("default", STATE, answer)
    assert usage_event("default", STATE, answer).id == again.id
    assert usage_event("default", STATE, answer_message(COMPLETION, "general", "")).id != again.id
    elsewhere = [usage_event("other", STATE, answer), usage_event("default", {**STATE, "conversation_id": "d"}, answer)]
    assert len({again.id, *(event.id for event in elsewhere)}) == 3


def test_an_answer_of_another_model_client_is_metered_with_what_it_tells() -> None:
    answer = AIMessage("Hi.", id="1", usage_metadata={"input_tokens": 5, "output_tokens": 2, "total_tokens": 7})
    data = usage_event("default", STATE, answer).data
    assert isinstance(data, UsageMetered)
    assert (data.provider, data.model, data.tokens_in, data.tokens_out) == ("unknown", "unknown", 5, 2)
