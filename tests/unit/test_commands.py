"""The table of commands is the list that `turnlog --help` shows."""

import pytest

from turnlog.consumers.cli import COMMANDS, commands_of


@pytest.mark.parametrize("module", sorted({module for module, _ in COMMANDS.values()}))
def test_the_table_lists_what_a_module_registers(module: str) -> None:
    assert commands_of(module).keys() == {name for name, (held_in, _) in COMMANDS.items() if held_in == module}


def test_help_is_one_line_a_command() -> None:
    width = 80 - len("  ") * 2 - max(map(len, COMMANDS))
    assert [name for name, (_, text) in COMMANDS.items() if len(text) >= width] == []
