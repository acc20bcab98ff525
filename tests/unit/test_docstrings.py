"""Descriptions of parameters are read from docstrings in the three usual styles."""

import inspect

import pytest

from turnlog.agent.team.function_schemas import read_docstring

GOOGLE = """Books a room.

    It is free until the day before.

    Args:
        room (str): the number of the room,
            such as 12b
        nights: how many: 1 if not given

    Returns:
        The booking.
    """
NUMPY = """Books a room.

    It is free until the day before.

    Parameters
    ----------
    room : str
        the number of the room,
        such as 12b
    nights
        how many: 1 if not given

    Returns
    -------
    The booking.
    """
SPHINX = """Books a room.

    It is free until the day before.

    :param str room: the number of the room,
        such as 12b
    :param nights: how many: 1 if not given
    :returns: The booking.
    """
DESCRIBED = {"room": "the number of the room, such as 12b", "nights": "how many: 1 if not given"}


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_parameters_are_described_in_three_styles(docstring: str) -> None:
    text, described = read_docstring(inspect.cleandoc(docstring))
    assert described == DESCRIBED
    assert text.startswith("Books a room. It is free until the day before.") and text.endswith("The booking.")


@pytest.mark.parametrize(
    "docstring", ["Books.", "Books.\nArgs: none", "Parameters", "Notes:\n    room: 12", "a: b\n---"]
)
def test_other_docstrings_are_descriptions_as_they_are(docstring: str) -> None:
    assert read_docstring(docstring) == (" ".join(docstring.split()), {})
