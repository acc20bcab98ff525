"""docs/configuration.md and agent/settings.py list the same variables with the same defaults, both ways."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import AliasChoices
from pydantic.fields import FieldInfo

from turnlog.agent.settings import Settings

DOCS = Path(__file__).parents[2] / "docs/configuration.md"
ROW = re.compile(r"^\| (`[A-Z].*?) \| (.*?) \| (.*?) \|$", re.MULTILINE)
UNSET = {"none", "empty", "the platform's user data folder"}
# Names and defaults of other systems with the same memory settings, which turnlog must keep.
COMMON = {
    "DATABASE_URL": None,
    "OPENAI_API_KEY": None,
    "MEMORY_CONTEXT_WINDOW": 0,
    "MEMORY_FULL_RECENT_COUNT": 10,
    "MEMORY_ENABLE_SUMMARY": True,
    "MEMORY_SUMMARY_THRESHOLD": 30,
    "MEMORY_MAX_SUMMARY_TOKENS": 1000,
    "MEMORY_CONDENSED_TOOL_MAX": 200,
    "MEMORY_MAX_MESSAGES_PER_THREAD": 200,
    "MEMORY_EMBEDDING_MODEL": "embedding-3",
    "MEMORY_EMBEDDING_BASE_URL": None,
    "MEMORY_EMBEDDING_API_KEY": None,
    "MEMORY_RECALL_TOP_K": 5,
    "MEMORY_DECAY_ENABLED": True,
    "MEMORY_DECAY_RATE": 0.01,
    "MEMORY_ARCHIVE_THRESHOLD": 0.2,
    "MEMORY_ARCHIVE_AFTER_DAYS": 180,
    "MEMORY_DELETE_AFTER_DAYS": 365,
}
OPENAI = "text-embedding-3-small"


def documented() -> dict[tuple[str, ...], str]:
    """Returns the written default of each row, by its names."""
    rows = ROW.findall(DOCS.read_text("utf-8"))
    return {tuple(re.findall(r"`([A-Z_]+)`", names)): default for names, default, _ in rows}


def names_of(field: FieldInfo) -> tuple[str, ...]:
    assert isinstance(field.validation_alias, AliasChoices)
    return tuple(str(choice) for choice in field.validation_alias.choices)


FIELDS = {names_of(field): field for field in Settings.model_fields.values()}


def test_documentation_and_settings_name_the_same_variables() -> None:
    assert documented().keys() == FIELDS.keys()


@pytest.mark.parametrize("names", FIELDS, ids=lambda names: names[0])
def test_documented_default_is_the_default(names: tuple[str, ...]) -> None:
    field, written = FIELDS[names], documented()[names]
    if written in UNSET:
        assert field.default is None or field.default_factory is not None
    else:
        assert parsed(names, written.strip("`")) == default(field)


def default(field: FieldInfo) -> Any:
    """Returns the default if nothing else is set."""
    return field.get_default(call_default_factory=True, validated_data={})


def parsed(names: tuple[str, ...], written: str) -> Any:
    """Returns the written default as the settings parse it from the environment."""
    settings = Settings.model_validate({names[0]: written})
    return getattr(settings, next(name for name, field in Settings.model_fields.items() if names_of(field) == names))


@pytest.mark.parametrize("name", COMMON)
def test_common_variable_keeps_its_name_and_default(name: str) -> None:
    field = next(field for names, field in FIELDS.items() if name in names)
    assert default(field) == COMMON[name]


@pytest.mark.parametrize(
    ("variables", "model"),
    [
        ({"OPENAI_API_KEY": "sk"}, OPENAI),
        ({"MEMORY_EMBEDDING_API_KEY": "sk"}, OPENAI),
        ({"OPENAI_BASE_URL": "https://api.openai.com/v1", "OPENAI_API_KEY": "sk"}, OPENAI),
        ({"API_BASE_URL": "http://localhost/v1", "MEMORY_EMBEDDING_BASE_URL": "https://api.openai.com"}, OPENAI),
        ({"API_BASE_URL": "https://EU.api.openai.com:443/v1", "API_KEY": "sk"}, OPENAI),
        ({"API_BASE_URL": "https://api.openai.com.example.org/v1", "API_KEY": "sk"}, "embedding-3"),
        ({"API_BASE_URL": "http://localhost/v1", "API_KEY": "sk"}, "embedding-3"),
        ({"OPENAI_API_KEY": "sk", "MEMORY_EMBEDDING_BASE_URL": "http://localhost/v1"}, "embedding-3"),
        ({"OPENAI_API_KEY": "sk", "MEMORY_EMBEDDING_MODEL": "embedding-3"}, "embedding-3"),
        ({"OPENAI_EMBEDDING_MODEL": "text-embedding-3-large"}, "text-embedding-3-large"),
    ],
)
def test_the_default_embedding_model_is_one_of_the_server(
    variables: dict[str, str], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With only OpenAI's key, the model is one of OpenAI's, which has no embedding-3."""
    for name in (name for names in FIELDS for name in names):
        monkeypatch.delenv(name, raising=False)
    assert Settings.model_validate(variables).embedding_model == model


def test_every_variable_the_code_names_is_documented() -> None:
    """Messages and docs must name only variables that are read."""
    root = DOCS.parents[1]
    texts = [
        *root.glob("README.md"),
        *root.glob("docs/**/*.md"),
        *(path for folder in ("events", "projectors", "agent", "consumers") for path in root.glob(f"{folder}/**/*.py")),
    ]
    known = {name for names in FIELDS for name in names}
    for path in texts:
        variables = set(re.findall(r"\b(?:TURNLOG|MEMORY|API)_[A-Z]+(?:_[A-Z]+)*\b", path.read_text("utf-8")))
        assert variables <= known | OTHERS, f"{path}: {sorted(variables - known - OTHERS)}"


# Variables of compose.yaml and of the TypeScript example, and a stream's name.
OTHERS = {"TURNLOG_NATS_TOKEN", "TURNLOG_POSTGRES_PASSWORD", "TURNLOG_NATS_PORT"} | {"TURNLOG_KEY"} | {"TURNLOG_KEYS"}


def test_variables_with_the_names_of_settings_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """HOME, LOG_LEVEL or MODEL belong to other programs."""
    defaults = Settings(_env_file=None).model_dump(exclude={"home"})
    for name in Settings.model_fields:
        monkeypatch.setenv(name.upper(), "7")
    settings = Settings(_env_file=None)
    variables = {name for field in Settings.model_fields.values() for name in names_of(field)}
    free = {name for name in defaults if name.upper() not in variables}
    assert {name: getattr(settings, name) for name in free} == {name: defaults[name] for name in free}
    assert settings.home != Path("7")


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({"API_BASE_URL": "http://127.0.0.1:11434/v1"}, 45),
        ({"OPENAI_BASE_URL": "http://ollama:11434/v1"}, 45),
        ({"API_BASE_URL": "http://127.0.0.1:11434/v1", "TURNLOG_ANSWER_TIMEOUT": "300"}, 300),
        ({"API_BASE_URL": "https://models.example.org/v1"}, 120),
        ({"API_KEY": "sk"}, 120),
    ],
)
def test_the_time_limit_of_an_answer_is_shorter_for_a_local_model(variables: dict[str, str], seconds: float) -> None:
    assert Settings.model_validate(variables).answer_timeout_s == seconds
