"""Contains LangChain messages of every kind that can be rebuilt from turns, and their items."""

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from turnlog.consumers.langgraph.checkpoint.items import Codec, Item, message_item, stored_item
from turnlog.consumers.langgraph.checkpoint.messages import said, turn_of

CODEC = Codec(JsonPlusSerializer())
CALL = {"name": "look", "args": {"n": [1, {"deep": 2}]}, "id": "c", "type": "tool_call"}
MESSAGES: list[BaseMessage] = [
    HumanMessage("plain", id="h"),
    HumanMessage("kept", id="k", name="ann", additional_kwargs={"a": {"deep": [1]}}, response_metadata={"b": [2]}),
    HumanMessage("with more", id="m", additional_kwargs={"a": [1]}),
    HumanMessage([{"type": "text", "text": "block"}], id="b"),
    AIMessage("answer", id="a"),
    AIMessage("without an id"),
    AIMessage("", id="t", tool_calls=[CALL], usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}),
    SystemMessage("be kind", id="s"),
    ToolMessage("found", id="f", tool_call_id="c", artifact={"rows": [1]}),
]


def items_of(message: BaseMessage) -> list[Item]:
    """Returns the item as it is after a put, and as it is after a read from the tables."""
    turn = turn_of(message)
    assert turn is not None
    put = message_item(message, turn, "turn-1")
    assert put is not None
    shown = said(turn)
    others = (turn.name, turn.tool_calls or None, turn.tool_call_id)
    is_text = isinstance(turn.content, str) and others == (None, None, None)
    read = stored_item(put.marker, {"turn-1": shown["content"] if is_text else shown})
    assert read is not None
    return [put, read]
