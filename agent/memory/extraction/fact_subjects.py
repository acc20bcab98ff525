"""Decides about whom a match states a fact: the user, a named person, or somebody unknown. Pure.

"My mother's email is …" and 我妈妈的邮箱是… state an attribute of the entity mother. If the match itself contains a
word for the user (我, my, I), the fact is about the user.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import regex

from turnlog.agent.memory.extraction.validators import person_name
from turnlog.agent.memory.role_words import ROLES, SEPARATE
from turnlog.projectors.models.memories.text import name_key, normal

_ONE_PERSON = {"mother", "father", "wife", "husband", "partner", "significant other", "girlfriend", "boyfriend"}


def _canonical() -> dict[str, str]:
    """Returns, for every word for a role, the name of its entity in the same language."""
    names: dict[str, str] = {}
    for role, others in ROLES.items():
        words = others.split()
        chinese = [word for word in words if not word.isascii()]
        names[role] = role
        names |= {word: role for word in words if word.isascii()}
        names |= {word: word if role in SEPARATE else chinese[0] for word in chinese}
    return names


_NAMES = _canonical()
_KEYS = {name: role for role, others in ROLES.items() if role not in SEPARATE for name in others.split()}


def _alternatives(is_english: bool, among: Collection[str] = ROLES) -> str:
    """Returns a pattern that matches the words for the roles `among` in one language, longest first."""
    known = [word for role in among for word in (role, *ROLES[role].split()) if word.isascii() == is_english]
    return "|".join(map(regex.escape, sorted(known, key=len, reverse=True)))


_KIN = list(ROLES)[: list(ROLES).index("boss")]
_EN, _ZH = _alternatives(True), _alternatives(False)
EN_KIN, ZH_KIN = _alternatives(True, _KIN), _alternatives(False, _KIN)
_ADJECTIVES = r"(?:(?:best|older|younger|elder|little|big|old|new|former|dear) )*"
_KIND_EN = r"(?:(?:work|home|personal|private|new|current|business|office|latest|old) )*"
_NAME_EN = r"(?-i:\p{Lu}[\p{L}'’-]*?(?: \p{Lu}[\p{L}-]*?)?)"
_OWNERS = tuple(
    regex.compile(text, regex.IGNORECASE)
    for text in (
        rf"(?:\b(?:my|our) )(?P<role>{_ADJECTIVES}(?:{_EN}))(?:,? {_NAME_EN},?)?(?:['’]s?)? {_KIND_EN}$",
        rf"(?P<name>(?<![\p{{L}}]){_NAME_EN})['’]s? {_KIND_EN}$",
        rf"(?:[\u4e00-\u9fff·]{{2,4}}是)?我们?家?的?(?P<role>{_ZH})(?:[，,；]\s*)?(?:[他她其]|TA)?(?:用)?的?$",
        rf"(?<![\u4e00-\u9fff])(?P<role>{_ZH})(?:[他她])?(?:用)?的$",
        r"(?<![\u4e00-\u9fff])(?P<name>[\u4e00-\u9fff·]{2,4}?)(?:用)?的$",
    )
)
_NAMES_A_THING = regex.compile(r"[^，。]{1,6}(?:是|：)|[A-Z]|托福|雅思")
_BEGINS_WITH_A_VERB = regex.compile(r"[A-Z][a-z]*s (?!is\b|are\b)")
_FIRST_PERSON = regex.compile(r"我|咱|\b(?:i|my|me|our|we)\b", regex.IGNORECASE)
SOMEBODY = regex.compile(
    rf"\b(?:my|our) {_ADJECTIVES}(?:{_EN})\b|{_ZH}|[他她其]"
    r"|\b(?:his|her|their|your|its)\b|(?-i:\p{Lu}\p{Ll}+)['’]s\b",
    regex.IGNORECASE,
)
_OF_A_ROLE = regex.compile(rf"\b(?:{_EN})['’]s\b|(?:{_ZH})的", regex.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Subject:
    """A person other than the user about whom a fact is stated. name: of the person's entity; "" if unknown. key: the
    same for all words for one role. start: where the text names the person. relation: the person's role. is_one: True
    if the role or name means one person, False for roles such as "colleague". called: the name in the content of a
    memory, if it differs."""

    name: str = ""
    key: str = ""
    start: int = 0
    relation: str | None = None
    is_one: bool = True
    called: str | None = None

    @property
    def is_known(self) -> bool:
        """True if the text says who the person is."""
        return bool(self.name)

    def key_of(self, dedupe_key: str, value: str | None) -> str:
        """Returns the dedupe key of a fact about the person. A user may have several colleagues, so the key then
        contains the value, and the facts do not end each other."""
        return f"of:{self.key}:{dedupe_key}" + ("" if self.is_one else f":{normal(value or '')}")

    def of(self, content: str) -> str:
        """Returns the content with the owner before it: "mother's email: …", "son Max lives in Rome", 儿子5岁."""
        who = self.called or self.name
        if not who.isascii():
            return f"{who}{'的' if _NAMES_A_THING.match(content) else ''}{content}"
        small = content[:1].lower() if content[1:2].islower() else content[:1]
        if _BEGINS_WITH_A_VERB.match(content):
            return f"{who} {small}{content[1:]}"
        return f"{who} is {small}{content[1:]}" if content.startswith("Allergic ") else f"{who}'s {small}{content[1:]}"


def owner(before: str, matched: str) -> Subject | None:
    """Returns the person about whom `matched` states a fact: None for the user, a Subject without a name for an unknown
    person. before: the sentence up to the match."""
    if _FIRST_PERSON.search(matched):
        return None
    for pattern in _OWNERS:
        if (match := pattern.search(before)) and (subject := _named(match)):
            return subject
    return Subject() if SOMEBODY.search(before) else None


def is_about_a_role(text: str) -> bool:
    """Returns whether a sentence is about a relative or another role ("User's mother's email is …")."""
    return bool(_OF_A_ROLE.search(text))


def role_name(said: str, is_one: bool = True) -> str:
    """Returns the name of the role: mom → mother, kids → child. is_one: the word means one person, so an unknown word
    keeps its final s."""
    said = said.lower()
    return _NAMES.get(said) or _NAMES.get(said.removesuffix("s")) or (said if is_one else said.removesuffix("s"))


def named_relative(role: str, name: str | None) -> Subject:
    """Returns the person with this role in the user's family. With a name, the Subject is one person, even for a role
    such as "son"."""
    relative = _in_role(role, 0)
    if name is None:
        return relative
    called = f"{relative.name} {name}" if name.isascii() else f"{relative.name}{name}"
    return Subject(name, name_key(name), relation=relative.relation, called=called)


def _in_role(role: str, start: int) -> Subject:
    said = " ".join(role.lower().split())
    name = _NAMES.get(said, said)
    key = _KEYS.get(said, name)
    return Subject(name, key, start, name, is_one=key in _ONE_PERSON)


def _named(match: Any) -> Subject | None:
    groups = match.groupdict()
    if role := groups.get("role"):
        return _in_role(role, match.start())
    name = groups["name"]
    return None if person_name(name) else Subject(name, name_key(name), match.start())
