"""Words are redacted wherever they occur, and nothing else is changed."""

import json
from base64 import b64decode, b64encode
from typing import Any
from unicodedata import normalize

import pytest
from helpers.sample_events import event, turn

from turnlog.agent.privacy.redaction.striking import comparable, may_spell, said_in, strike_of, struck
from turnlog.events.contracts import (
    Blob,
    CheckpointSaved,
    Event,
    EventData,
    TextBlock,
    ToolCall,
    ToolUseBlock,
    TurnRecorded,
)


def without(words: str, data: EventData) -> Any:
    """Returns the event's data after a redaction of these words from a turn; None if the redaction does not change the
    event."""
    remaining: Event | None = struck(event(data), strike_of(turn(f"I say {words}."), 5, words), 9)
    return None if remaining is None else remaining.data


def test_arguments_of_a_tool_stay_json_without_a_number() -> None:
    call = ToolCall(id="c", name="open", arguments='{"pin": 48213, "of": "ann"}')
    recorded = without("48213", TurnRecorded(role="assistant", tool_calls=(call,)))
    assert recorded.tool_calls[0].arguments == '{"pin": "[redacted]", "of": "ann"}'


def test_words_across_an_escaped_line_end_are_struck() -> None:
    call = ToolCall(id="c", name="find", arguments='{"name":"Ann\\nSmith"}')
    recorded = without("Ann Smith", TurnRecorded(role="assistant", tool_calls=(call,)))
    assert recorded.tool_calls[0].arguments == '{"name":"[redacted]"}'


def test_any_key_of_a_tools_input_is_searched_and_numbers_too() -> None:
    block = ToolUseBlock(id="48213", name="find", input={"id": "No. 48213", "of": {"thread": 48213}, "as": 48214})
    recorded = without("48213", TurnRecorded(role="assistant", content=(block,)))
    assert recorded.content[0].id == "48213"
    assert recorded.content[0].input == {"id": "No. [redacted]", "of": {"thread": "[redacted]"}, "as": 48214}


def test_short_words_are_struck_from_bytes_only_as_whole_words() -> None:
    long = b"\xd9a" + b"ann" + b"." * 94  # the byte that encodes its length is a letter
    raw = b"\x82\xa7channel\xa3Ann\xa1x" + long
    blob = Blob(channel="x", version="1", encoding="msgpack", data=b64encode(raw).decode())
    saved = without("Ann", CheckpointSaved(checkpoint_id="1", checkpoint={}, metadata={}, blobs=(blob,)))
    assert b64decode(saved.blobs[0].data) == raw.replace(b"\xa3Ann", b"\xa3***").replace(b"ann.", b"***.")


@pytest.mark.parametrize("words", ["Zoë Müller-77", normalize("NFD", "zoë müller-77"), "ZOË MÜLLER-77"])
def test_every_spelling_of_the_words_is_struck(words: str) -> None:
    said = ["Zoë Müller-77", normalize("NFD", "ZOË Müller-77"), "Ｚoë Müller-７７", "Zo\u00adë Mü\u200bller-77"]
    for text in said:
        assert without(words, turn(f"Ask {text}!").data).content == "Ask [redacted]!"
    call = ToolCall(id="c", name="find", arguments=json.dumps({"of": said[1]}))
    assert without(words, turn("", tool_calls=(call,)).data).tool_calls[0].arguments == '{"of": "[redacted]"}'
    raw = normalize("NFD", "ZOË Müller-77").encode()
    blob = Blob(channel="x", version="1", encoding="msgpack", data=b64encode(b"\xd9" + raw).decode())
    saved = without(words, CheckpointSaved(checkpoint_id="1", checkpoint={}, metadata={}, blobs=(blob,)))
    assert b64decode(saved.blobs[0].data) == b"\xd9" + b"*" * len(raw)


@pytest.mark.parametrize(("words", "text"), [("Straße 5-ab", "STRASSE 5-AB"), ("strasse 5-ab", "Straße 5-ab")])
def test_letters_that_become_two_in_another_case_are_struck(words: str, text: str) -> None:
    assert without(words, turn(f"At {text}.").data).content == "At [redacted]."


def test_another_letter_is_not_struck() -> None:
    assert without("resume-cafe", turn(normalize("NFD", "My resume-café.")).data) is None


def test_words_across_two_blocks_are_struck_from_both() -> None:
    blocks = [TextBlock(text="It is Zebra"), TextBlock(text="fish-77 and Zebrafish-"), TextBlock(text="77.")]
    content = without("Zebrafish-77", TurnRecorded(role="user", content=tuple(blocks))).content
    assert [block.text for block in content] == ["It is [redacted]", "[redacted] and [redacted]", "[redacted]."]
    recorded = without(
        "Ann Smith-Jones", TurnRecorded(role="user", content=(TextBlock(text="Ann"), TextBlock(text="Smith-Jones")))
    )
    assert [block.text for block in recorded.content] == ["[redacted]", "[redacted]"]


@pytest.mark.parametrize("text", ["Z e b r a f i s h 7 7", "Zebra_fish (77)", "Zеbrafish-77"])
def test_other_ways_to_spell_the_words_are_known_but_not_struck(text: str) -> None:
    strike, said = strike_of(turn("I say Zebrafish-77."), 5, "Zebrafish-77"), event(turn(f"Ask {text}!").data)
    assert struck(said, strike, 9) is None
    assert may_spell(said, strike) and not may_spell(event(turn("Ask for 77 zebras.").data), strike)


def test_a_sentence_with_quotes_and_lines_is_found_in_another_turn() -> None:
    """Otherwise the sentence would be redacted there although somebody else said it independently."""
    text = 'She said "see you at nine" again.'
    other = turn('Yes:\nShe said "see you\nat NINE" again. Bye.')
    assert isinstance(other.data, TurnRecorded)
    assert comparable([text]) in said_in(other.data)


JANE = "My neighbour Jane Miller who lives in Amsterdam told me that her door code is four four one one."
DOOR = f"Hello there again. {JANE}"
QUOTES = {
    DOOR: "[redacted]",
    f"You said: {JANE.lower()}": "You said: [redacted]",
    "Her code: door code is four four one one, isn't it?": "Her code: [redacted], isn't it?",
    "She LIVES in\nAmsterdam, told me that her gate is green.": "She [redacted] gate is green.",
    "Jane Miller lives at the door.": None,
}


@pytest.mark.parametrize("text", QUOTES)
def test_a_long_sentence_of_a_complete_turn_is_struck_where_it_is_quoted_in_part(text: str) -> None:
    strike = strike_of(turn(DOOR), 5, None)
    answer = struck(event(turn(text, "assistant").data), strike, 9)
    assert (answer and answer.data.content) == QUOTES[text]


def test_the_end_of_a_long_chinese_sentence_is_struck_and_masked_in_bytes() -> None:
    said = (
        "我的邻居住在阿姆斯特丹市中心的一座老房子里而且她告诉我说她家的大门密码是四四一一"
        "请不要告诉任何人因为这是她的一个秘密谢谢"
    )
    strike, end = strike_of(turn(said), 5, None), "她家的大门密码是四四一一"
    answer = struck(event(turn(f"他讲{end}。", "assistant").data), strike, 9)
    assert answer is not None and answer.data.content == "他讲[redacted]。"
    raw = b"\xd9a" + f"ok {end}!".encode() + b"\xff"
    blob = Blob(channel="x", version="1", encoding="msgpack", data=b64encode(raw).decode())
    saved = struck(event(CheckpointSaved(checkpoint_id="1", checkpoint={}, metadata={}, blobs=(blob,))), strike, 9)
    assert saved is not None
    masked = b64decode(saved.data.blobs[0].data)
    assert masked == b"\xd9aok " + b"*" * len(end.encode()) + b"!\xff"
