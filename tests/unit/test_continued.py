"""A restarted answer continues the text that was already shown."""

from uuid import UUID

import pytest

from turnlog.agent.answering.asking import Answered, Continued, Restarted, Text, ToolUsed

END = Answered("t", UUID(int=1), UUID(int=2), 1, None, "")


@pytest.mark.parametrize(
    ("first", "second", "shown"),
    [
        (["You ran ", "in Lis"], ["You ", "ran in ", "Lisbon", "."], "You ran in Lisbon."),
        (["You ran "], ["In ", "Lisbon."], "You ran |In Lisbon."),
        (["You ran "], ["You ", "swam."], "You ran |You swam."),
        (["You ran "], ["You "], "You ran |You "),
        (["You ran "], ["You ran "], "You ran "),
        ([], ["You ran."], "You ran."),
    ],
)
def test_a_restart_repeats_the_shown_text_only_if_it_differs(first: list[str], second: list[str], shown: str) -> None:
    answer = Continued("|")
    pieces = [answer.said(Text(text)) for text in first]
    answer.said(Restarted())
    pieces += [answer.said(Text(text)) for text in second]
    assert "".join([*pieces, answer.said(END)]) == shown


def test_a_restart_after_a_tool_repeats_no_earlier_text() -> None:
    answer = Continued("|")
    pieces = [answer.said(Text("Let me look. "))]
    answer.said(ToolUsed("1", "recall_memory", "{}"))
    pieces.append(answer.said(Text("You ")))
    answer.said(Restarted())
    assert "".join([*pieces, answer.said(Text("You ran."))]) == "Let me look. You ran."
