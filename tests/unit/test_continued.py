"""The text of a restarted answer where what was shown cannot be taken back."""

import pytest

from turnlog.agent.use_cases.asking import Continued


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
def test_no_text_is_shown_twice_unless_it_differs(first: list[str], second: list[str], shown: str) -> None:
    answer = Continued("|")
    pieces = [answer.add(text) for text in first]
    answer.restart()
    pieces += [answer.add(text) for text in second]
    assert "".join([*pieces, answer.end()]) == shown


def test_the_text_after_a_tool_is_one_of_its_own() -> None:
    answer = Continued("|")
    pieces = [answer.add("Let me look. ")]
    answer.tool()
    pieces.append(answer.add("You "))
    answer.restart()
    assert "".join([*pieces, answer.add("You ran.")]) == "Let me look. You ran."
