"""Decides whose words a turn contains. Pure; no other module decides this.

person       the event's user said it; only such turns are evidence for memories
participant  another speaker, named in a turn of the user
tool         the result of a tool
program      written by a model, an application or a framework, such as the summary of older turns
quoted       the user sent it, but it consists only of somebody else's text: quoted lines and code

Parts of a person's turn may be quoted too; agent.memory.extraction.evidence finds their character ranges when the text
is read.
"""

import re
from typing import Literal

TurnOrigin = Literal["person", "participant", "tool", "program", "quoted"]

# Names that mean the user and no other speaker, because AutoGen and other frameworks repeat the role as the name.
_OF_THE_ROLE = frozenset({"user", "human", "me", "customer", "userproxy", "用户", "我"})
_PROGRAM_NAME = re.compile(r"middleware$|^summari[sz](?:er|ation)$", re.IGNORECASE)
# The first words of messages that frameworks send as the user, even through APIs without a field for the origin:
# langchain agents/middleware/summarization.py, deepagents middleware/summarization.py.
_PROGRAM_TEXT = re.compile(
    r"\s*(?:Here is a summary of the conversation to date:"
    r"|You are in the middle of a conversation that has been summarized\."
    r"|This session is being continued from a previous conversation that ran out of context)"
)
_QUOTED = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)|^[ \t]*[>＞][^\n]*", re.DOTALL | re.MULTILINE)


def origin_of(role: str, text: str | None, name: str | None = None, user: str | None = None) -> TurnOrigin:
    """Returns whose words a turn contains. text: the text without tool results; None for a turn that has only tool
    results."""
    if role != "user":
        return "tool" if role == "tool" else "program"
    if text is None:
        return "tool"
    if (name and _PROGRAM_NAME.search(name)) or _PROGRAM_TEXT.match(text):
        return "program"
    if name and not is_name_of(name, user):
        return "participant"
    return "quoted" if is_all_quoted(text) else "person"


def is_name_of(name: str, user: str | None) -> bool:
    """Returns whether a speaker's name means the user: the user id, its part before `@`, or a name of the role."""
    said = _plain(name)
    return said in _OF_THE_ROLE or (user is not None and said in (_plain(user), _plain(user.split("@")[0])))


def is_all_quoted(text: str) -> bool:
    """Returns whether the text consists only of quoted lines or code."""
    return bool(_QUOTED.search(text)) and not _plain(_QUOTED.sub("", text))


def _plain(text: str) -> str:
    return "".join(char for char in text.casefold() if char.isalnum())
