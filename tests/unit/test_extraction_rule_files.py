"""A user's rule file adds and replaces rules; an invalid rule is an error that names file, rule and cause."""

import ast
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from helpers.extraction import apply_rules, extractor_turn

from turnlog.agent.memory.extraction.by_rules import Extractor
from turnlog.agent.memory.extraction.rules import APPLIED_BY, InvalidRules, _code, load_rules

TEA = """
[rule.tea]
name = "Tea of the house"
type = "PREFERENCE"
importance = 0.5
en = ['my tea is (?P<value>\\w+)']
zh = ['我的茶是(?P<value>[\\u4e00-\\u9fff]{1,4})']
content = { en = "Tea: {value}", zh = "茶：{value}" }
dedupe_key = "tea"
normalisers = ["strip", "lower"]
validators = [{ name = "one_of", values = ["oolong", "sencha", "龙井"] }]
"""


def file(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, "utf-8")
    return path


def test_a_file_adds_rules_without_code(tmp_path: Path) -> None:
    rules = load_rules(file(tmp_path, TEA))
    looked = apply_rules("My tea is Oolong", "我的茶是龙井", "My tea is cold", "My name is Ann", rules=rules)
    assert [finding.content for finding in looked.findings] == ["Tea: oolong", "茶：龙井", "Name is Ann"]


def test_a_rule_with_the_same_id_replaces_turnlogs_rule(tmp_path: Path) -> None:
    own = TEA.replace("rule.tea", "rule.gpa")
    rules = load_rules(file(tmp_path, own))
    assert len(rules.rules) == len(load_rules().rules)
    assert apply_rules("My GPA is 3.8", rules=rules).findings == ()


def test_a_rule_can_be_switched_off(tmp_path: Path) -> None:
    for own in (TEA.replace("rule.tea", "rule.gpa") + "enabled = false\n", "[rule.gpa]\nenabled = false\n"):
        rules = load_rules(file(tmp_path, own))
        assert "gpa" not in {rule.id for rule in rules.rules}


def test_other_rules_are_another_version(tmp_path: Path) -> None:
    assert load_rules(file(tmp_path, TEA)).version != load_rules().version == load_rules().version


def test_other_code_that_applies_the_rules_is_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    before = load_rules().version
    assert "fact_subjects" in APPLIED_BY["turnlog.agent.memory.extraction"]
    less = {name: [module for module in modules if module != "fact_subjects"] for name, modules in APPLIED_BY.items()}
    monkeypatch.setattr("turnlog.agent.memory.extraction.rules.APPLIED_BY", less)
    _code.cache_clear()
    assert load_rules().version != before
    monkeypatch.undo()
    _code.cache_clear()
    assert load_rules().version == before


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields a folder with a copy of the modules that apply the rules, one folder for each package. The version is
    computed from the copy."""
    for package, modules in APPLIED_BY.items():
        (tmp_path / package).mkdir()
        for module in modules:
            shutil.copy(str(files(package) / f"{module}.py"), tmp_path / package)
    extraction = "turnlog.agent.memory.extraction"
    shutil.copy(str(files(extraction) / "parts.toml"), tmp_path / extraction)
    load_rules()  # reads the rules, before their folder is another one
    monkeypatch.setattr("turnlog.agent.memory.extraction.rules.files", lambda package: tmp_path / package)
    _code.cache_clear()
    yield tmp_path
    _code.cache_clear()


def edited(module: Path, old: str, new: str) -> str:
    """Replaces text in a module; returns the version of the rules afterwards."""
    text = module.read_text("utf-8")
    assert text.count(old) == 1
    module.write_text(text.replace(old, new), "utf-8")
    _code.cache_clear()
    return load_rules().version


def test_another_comment_or_docstring_is_not_another_version(copied: Path) -> None:
    before, titles = load_rules().version, copied / "turnlog.agent.context" / "titles.py"
    assert edited(titles, '"""Titles of the parts', '"""The titles of the parts') == before
    assert edited(titles, "# within the memories", "# below the memories\n\n") == before
    policy = copied / "turnlog.agent.memory.deciding" / "policy.py"
    assert edited(policy, '"""A bonus of importance', '"""More importance') == before
    assert edited(policy, '"""Returns the importance of a new memory', '"""Returns how important one is') == before


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("turnlog.agent.context/titles.py", '"[PROFILE]"', '"[ABOUT THE USER]"'),
        ("turnlog.agent.memory.deciding/policy.py", "min(1.0, max(0.0, total))", "min(0.9, max(0.0, total))"),
        ("turnlog.agent.memory.extraction/rules.py", "regex.IGNORECASE | regex.VERSION1", "regex.VERSION1"),
        ("turnlog.agent.memory.extraction/parts.toml", "number = ", "numeral = "),
    ],
)
def test_other_code_is_another_version(copied: Path, module: str, old: str, new: str) -> None:
    before = load_rules().version
    assert edited(copied / module, old, new) != before


def test_all_modules_that_decide_the_result_of_a_rule_are_part_of_the_version() -> None:
    listed = {f"{package}.{module}" for package, modules in APPLIED_BY.items() for module in modules}
    imported: set[str] = set()
    for name in listed:
        package, _, module = name.rpartition(".")
        for node in ast.walk(ast.parse((files(package) / f"{module}.py").read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("turnlog."):
                within = {f"{node.module}.{alias.name}" for alias in node.names} & listed
                imported |= within or {node.module}
    assert {name for name in imported - listed if not name.startswith("turnlog.events.")} == {
        "turnlog.agent.settings",  # the importance of new memories does not depend on it
        "turnlog.projectors.models.conversation.message",  # the type of a turn
        "turnlog.projectors.models.memories.sql",  # the maximum number of sources
    }


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (("(?P<value>\\w+)", "(?P<value>\\w+"), "not a regular expression"),
        (("(?P<value>\\w+)", "\\w+"), "has no group"),
        (('"oolong", "sencha", "龙井"', '"oolong"], max = [3'), "one_of"),
        (('name = "one_of"', 'name = "tasty"'), "there is no validator 'tasty'"),
        (('"strip", "lower"', '"sing"'), "there is no normaliser 'sing'"),
        (('type = "PREFERENCE"', 'type = "OPINION"'), "type"),
        (("importance = 0.5", "importance = 5"), "importance"),
        (("importance = 0.5", "weight = 5"), "weight"),
        (('"Tea: {value}"', '"Tea: {kind}"'), "names no group"),
        (('"Tea: {value}"', '"Tea: {value"'), "is broken"),
        (('{ name = "one_of"', '{ name = "one_of", group = "cup"'), "'cup'"),
        (('dedupe_key = "tea"', 'strategy = "GUESS"'), "strategy"),
        (("zh = ['我的茶是(?P<value>[\\u4e00-\\u9fff]{1,4})']", "fr = ['thé']"), "fr"),
    ],
)
def test_a_bad_rule_is_an_error_that_names_file_rule_and_cause(
    tmp_path: Path, change: tuple[str, str], cause: str
) -> None:
    assert change[0] in TEA
    with pytest.raises(InvalidRules) as error:
        load_rules(file(tmp_path, TEA.replace(*change)))
    assert str(error.value).startswith("mine.toml, rule 'tea': ")
    assert cause in str(error.value)


@pytest.mark.parametrize("text", ["rule = 3", "[rules.tea]\n", "[rule.tea\n", "rule = { tea = 3 }"])
def test_a_file_of_another_shape_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidRules, match=r"mine\.toml"):
        load_rules(file(tmp_path, text))


def test_a_file_that_is_not_there_is_an_error_that_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(InvalidRules, match="MEMORY_RULES_FILE"):
        load_rules(tmp_path / "none.toml")


def test_a_slow_pattern_is_stopped_and_its_rule_disabled(tmp_path: Path) -> None:
    slow = TEA.replace("my tea is (?P<value>\\w+)", "(?P<value>(?:a|aa|a?a)+)[xyz]")
    extractor = Extractor(load_rules(file(tmp_path, slow)))
    looked = extractor.extract([extractor_turn("a" * 500), extractor_turn("My name is Ann.", 2)])
    assert [finding.content for finding in looked.findings] == ["Name is Ann"]
    assert looked.counts() == {"slow-pattern": 1}
    assert extractor.slow == {"tea"}
