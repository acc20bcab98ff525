"""Loads extraction rules from TOML files: those of turnlog, and one that the user may write.

Each rule is a table `[rule.<id>]`. The model `Rule` below lists its fields; docs/long-term-memory.md explains them. An
error in a rule names the file, the rule and the cause.
"""

import ast
import hashlib
import inspect
import string
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import regex
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnlog.agent.memory.extraction.normalisers import NORMALISERS
from turnlog.agent.memory.extraction.validators import VALIDATORS
from turnlog.events.contracts import MemoryKind, Strategy
from turnlog.events.errors import TurnlogError

LANGUAGES = ("en", "zh")
FLAGS = regex.IGNORECASE | regex.VERSION1
_APOSTROPHE = regex.compile(r"(?<=\bi|\(\?:|\||n)'(?=m\b|ve\b|t\b)")  # people also type "im", "ive" and "dont"
_PART = regex.compile(r"\{\{\w+\}\}")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
Pattern = Any  # a pattern of the library regex, which has no types
# The modules that decide the result of a rule, by package.
APPLIED_BY = {
    "turnlog.agent.memory.extraction": (
        *("rules", "by_rules", "readings", "fact_subjects", "evidence", "explicit", "quoted", "not_meant"),
        *("proposals", "findings", "normalisers", "validators"),
    ),
    "turnlog.agent.memory": ("role_words",),
    "turnlog.agent.memory.dates": ("dates", "spans", "english", "chinese"),
    "turnlog.agent.memory.deciding": ("policy",),
    "turnlog.agent.memory.sanitiser": ("sanitise", "identifiers"),
    "turnlog.agent.context": ("client_texts", "titles"),
    "turnlog.projectors.models": ("terms",),
    "turnlog.projectors.models.memories": ("text",),
}


class InvalidRules(TurnlogError):
    """A file of extraction rules cannot be used."""

    code = "invalid-rules"


class Rule(BaseModel):
    """A rule, as it is written in a table of the file.

    en, zh: regular expressions (library `regex`); {{number}} stands for the part of that name in parts.toml; the group
    `value`, or else the first group, matches the value. content, dedupe_key: templates with {value} and the names of
    other groups. normalisers, validators: names, or tables with a `name`, a `group` if it is not `value`, and the
    parameters; the group `key` is a copy of the value that only dedupe_key uses. value: template of the text by which
    memories with one key are compared; the value if left out. entity: type of the entity that the value names. unless:
    patterns that the sentence must not match. anywhere: a match need not begin a clause. of_relatives: the rule also
    applies to statements about a relative ("My son is 7").
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    type: MemoryKind
    category: str | None = None
    importance: float = Field(ge=0, le=1)
    confidence: float = Field(default=0.9, ge=0, le=1)
    en: tuple[str, ...] = ()
    zh: tuple[str, ...] = ()
    content: str | dict[str, str]
    dedupe_key: str | None = None
    value: str | None = None
    strategy: Strategy = "KEEP_LATEST"
    ttl_days: int | None = Field(default=None, ge=1)
    entity: str | None = Field(default=None, pattern=r"^[A-Z][A-Z_]{1,39}$")
    normalisers: tuple[str | dict[str, Any], ...] = ("strip",)
    validators: tuple[str | dict[str, Any], ...] = ()
    unless: tuple[str, ...] = ()
    anywhere: bool = False
    of_relatives: bool = False
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """A normaliser or validator with its parameters, and the group that it applies to."""

    name: str
    group: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A rule ready for use. patterns: (language, pattern)."""

    id: str
    rule: Rule
    patterns: tuple[tuple[str, Pattern], ...]
    unless: tuple[Pattern, ...]
    normalisers: tuple[Step, ...]
    validators: tuple[Step, ...]

    def content_in(self, language: str) -> str:
        content = self.rule.content
        return content if isinstance(content, str) else content.get(language) or next(iter(content.values()))


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules in the order in which they are tried. version: 16 hex digits of a hash of the rules and the code that
    applies them; with another version a turn may lead to other memories, which `rederive` finds."""

    rules: tuple[Compiled, ...]
    version: str


def load_rules(own: Path | None = None) -> RuleSet:
    """Returns the rules of the file `own`, then the rules of turnlog that `own` neither replaces nor disables. Raises
    InvalidRules."""
    tables = dict(_bundled())
    if own is not None:
        theirs = _of_file(own.name, _read(own))
        tables = {**theirs, **{key: rule for key, rule in tables.items() if key not in theirs}}
    active = tuple(rule for rule in tables.values() if rule is not None and rule.rule.enabled)
    said = "\n".join([_code(), *(f"{compiled.id} {compiled.rule.model_dump_json()}" for compiled in active)])
    return RuleSet(active, hashlib.sha256(said.encode()).hexdigest()[:16])


@cache
def _code() -> str:
    """Returns a hash of the code that decides the result of a rule, and of parts.toml. Comments and docstrings do not
    change it."""
    modules = [files(package) / f"{name}.py" for package, names in APPLIED_BY.items() for name in names]
    said = [_without_docstrings(module.read_text("utf-8")) for module in modules]
    said.append((files("turnlog.agent.memory.extraction") / "parts.toml").read_text("utf-8"))
    return hashlib.sha256("\n".join(said).encode()).hexdigest()


def _without_docstrings(source: str) -> str:
    """Returns the syntax tree of a module as text, without docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return ast.dump(tree)


@cache
def _bundled() -> tuple[tuple[str, Compiled | None], ...]:
    folder = files("turnlog.agent.memory.extraction") / "rules"
    rules: dict[str, Compiled | None] = {}
    for entry in sorted((entry for entry in folder.iterdir() if entry.name.endswith(".toml")), key=lambda e: e.name):
        rules.update(_of_file(entry.name, entry.read_text("utf-8")))
    return tuple(rules.items())


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRules(f"cannot read the rules in {path}: {error}; MEMORY_RULES_FILE names the file") from None


def _of_file(name: str, text: str) -> dict[str, Compiled | None]:
    """Returns the rules of a file; None stands for a rule that the file only disables."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRules(f"{name} is not TOML: {error}") from None
    tables = document.get("rule")
    if not isinstance(tables, dict) or set(document) != {"rule"}:
        raise InvalidRules(f"{name} must contain only tables [rule.<id>]")
    return {
        key: None if table == {"enabled": False} else _compiled(f"{name}, rule {key!r}", key, table)
        for key, table in tables.items()
    }


def _compiled(where: str, key: str, table: Any) -> Compiled:
    if not isinstance(table, dict):
        raise InvalidRules(f"{where}: it must be a table [rule.{key}]")
    try:
        rule = Rule.model_validate(table)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise InvalidRules(f"{where}: {problems}") from None
    patterns = tuple((lang, _pattern(where, lang, text)) for lang in LANGUAGES for text in getattr(rule, lang))
    if not patterns:
        raise InvalidRules(f"{where}: it has no pattern; give `en` or `zh`")
    groups = {"value", "key"}.union(*(pattern.groupindex for _, pattern in patterns))
    contents = rule.content.values() if isinstance(rule.content, dict) else (rule.content,)
    _check_templates(where, groups, [*contents, rule.dedupe_key or "", rule.value or ""])
    if isinstance(rule.content, dict) and not set(rule.content) <= set(LANGUAGES):
        raise InvalidRules(f"{where}: content has the languages {', '.join(LANGUAGES)}")
    return Compiled(
        key,
        rule,
        patterns,
        tuple(_regex(where, text) for text in rule.unless),
        tuple(_step(where, "normaliser", NORMALISERS, groups, step) for step in rule.normalisers),
        tuple(_step(where, "validator", VALIDATORS, groups, step) for step in rule.validators),
    )


@cache
def parts() -> dict[str, str]:
    """Returns the patterns of parts.toml by their names in double braces, such as {{number}}."""
    document = tomllib.loads((files("turnlog.agent.memory.extraction") / "parts.toml").read_text("utf-8"))
    patterns: dict[str, str] = {}
    for name, text in document.items():
        patterns[f"{{{{{name}}}}}"] = f"(?:{_PART.sub(lambda part: patterns[part[0]], text)})"
    return patterns


def _regex(where: str, text: str) -> Pattern:
    try:
        return regex.compile(_PART.sub(lambda part: parts()[part[0]], text), FLAGS)
    except KeyError as error:
        raise InvalidRules(f"{where}: there is no part {error}; there are {', '.join(parts())}") from None
    except regex.error as error:
        raise InvalidRules(f"{where}: {text!r} is not a regular expression: {error}") from None


def _pattern(where: str, language: str, text: str) -> Pattern:
    if language == "en":
        text = _APOSTROPHE.sub("'?", text)
    pattern = _regex(where, text)
    if not pattern.groups:
        raise InvalidRules(f"{where}: {text!r} in {language} has no group that gives the value")
    return pattern


def _check_templates(where: str, groups: set[str], templates: Iterable[str]) -> None:
    for template in templates:
        try:
            fields = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
        except ValueError as error:
            raise InvalidRules(f"{where}: the template {template!r} is broken: {error}") from None
        if unknown := fields - groups:
            raise InvalidRules(f"{where}: the template {template!r} names no group of its patterns: {sorted(unknown)}")


def _step(where: str, kind: str, registry: Mapping[str, Any], groups: set[str], step: str | dict[str, Any]) -> Step:
    options: dict[str, Any] = {"name": step} if isinstance(step, str) else dict(step)
    name, group = str(options.pop("name", "")), str(options.pop("group", "value"))
    if name not in registry:
        raise InvalidRules(f"{where}: there is no {kind} {name!r}; there are {', '.join(sorted(registry))}")
    if group not in groups:
        raise InvalidRules(f"{where}: {kind} {name!r} is for the group {group!r}, which no pattern has")
    try:
        inspect.signature(registry[name]).bind(*([""] if kind == "validator" else ["", None]), **options)
    except TypeError as error:
        raise InvalidRules(f"{where}: {kind} {name!r}: {error}") from None
    return Step(name, group, options)
