"""The page's vendored libraries match their table, and every text exists in both languages."""

import ast
import inspect
import re
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

from turnlog.agent.answering.fallback import CATEGORIES, REFUSALS
from turnlog.agent.operations.jobs import archiving, caches, compaction, decay, merging
from turnlog.agent.privacy.redaction import retention
from turnlog.consumers.cli.jobs import NAMES

PAGE = Path(__file__).parents[2] / "consumers" / "page"
VENDOR = PAGE / "vendor"
OWN = [path for path in PAGE.rglob("*.js") if VENDOR not in path.parents]
TABLES = {language: PAGE / "i18n" / f"{language}.js" for language in ("en", "zh")}
# A string or the text between strings; tables of texts contain nothing else.
TOKEN = re.compile(r'"([\w-]+)"\s*:|"((?:[^"\\]|\\.)*)"|(\w+)\s*:|([{}])')


def keys_of(table: Path) -> dict[str, str]:
    """Returns the texts by their dotted keys."""
    words: dict[str, str] = {}
    parents: list[str] = []
    key = ""
    for quoted, text, name, brace in TOKEN.findall(re.sub(r"^//.*$", "", table.read_text("utf-8"), flags=re.M)):
        if quoted or name:
            key = quoted or name
        elif brace == "{":
            parents.append(key)
        elif brace == "}":
            parents.pop()
        else:
            words[".".join([*parents[1:], key])] = text
    return words


def with_one_key_for_each_plural(words: dict[str, str]) -> set[str]:
    return {re.sub(r"\.(one|other)$", "", key) for key in words}


def test_vendored_files_are_those_of_the_table() -> None:
    listed: dict[str, Any] = {
        file["name"]: file for file in tomllib.loads((VENDOR / "VENDORED.toml").read_text("utf-8"))["file"]
    }
    there = {path.name for path in VENDOR.iterdir() if path.suffix in (".js", ".css")}
    assert listed.keys() == there
    for name, file in listed.items():
        content = (VENDOR / name).read_bytes()
        assert sha256(content).hexdigest() == file["sha256"], name
        assert {"package", "version", "path", "licence", "copyright"} <= file.keys(), name
        assert (VENDOR / f"LICENSE.{file['package']}").is_file(), name
        if changed := file.get("changed"):
            before = content.replace(changed["to"].encode(), changed["from"].encode())
            assert sha256(before).hexdigest() == changed["sha256_before"], name


def test_both_languages_have_the_same_words_with_the_same_values() -> None:
    english, chinese = (keys_of(table) for table in TABLES.values())
    assert with_one_key_for_each_plural(english) == with_one_key_for_each_plural(chinese)
    for key, text in chinese.items():
        original = english.get(key) or english[f"{key}.other"]
        assert set(re.findall(r"\{\w+\}", text)) == set(re.findall(r"\{\w+\}", original)), key


def test_every_word_that_the_page_uses_is_in_the_tables() -> None:
    known = with_one_key_for_each_plural(keys_of(TABLES["en"]))
    used = {
        (path.name, key)
        for path in OWN
        for key in re.findall(r'\bt\((?:[^"`()]*\? )?"([\w.]+)"', path.read_text("utf-8"))
    }
    assert used and [each for each in sorted(used) if each[1] not in known] == []


def test_jobs_their_counts_and_the_failures_of_a_model_have_words() -> None:
    counts = {*compaction.SKIPPED, *compaction.MERGE_COUNTS, *merging.COUNTER_OF.values()}
    for job in (archiving, caches, compaction, decay, merging, retention):
        for node in ast.walk(ast.parse(inspect.getsource(job))):
            match node:
                case ast.Call(func=ast.Name("Counter"), keywords=keywords):
                    counts |= {each.arg for each in keywords if each.arg}
                case ast.Call(func=ast.Name("Done"), args=[ast.Dict(keys=keys), *_]):
                    counts |= {str(key.value) for key in keys if isinstance(key, ast.Constant)}
                case ast.Subscript(value=ast.Name("counts"), slice=named):
                    counts |= {str(each.value) for each in ast.walk(named) if isinstance(each, ast.Constant)}
    codes = {"error", "no-answer"} | {code for code in (*REFUSALS, *CATEGORIES) if code.startswith("model-")}
    for group, shown in (("operation.names", {*NAMES}), ("operation.counts", counts), ("runs.codes", codes)):
        words = {key for key in keys_of(TABLES["en"]) if key.startswith(group)}
        assert {f"{group}.{each}" for each in shown} - words == set()


def test_the_page_has_no_inline_code_and_loads_nothing_from_elsewhere() -> None:
    page = (PAGE / "index.html").read_text("utf-8")
    assert not re.search(r"\bstyle=|\bon\w+=|<script(?![^>]*\bsrc=)|https?:", page)
    for path in OWN:
        code = path.read_text("utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", code), (
            path
        )
        for imported in re.findall(r'(?:^(?:import|export|\}).* from |import\()"([^"]+)"', code, re.M):
            assert (path.parent / imported).is_file(), f"{path}: {imported}"
    for path in PAGE.rglob("*.css"):
        assert not re.search(r"@import|url\(", path.read_text("utf-8")), path
