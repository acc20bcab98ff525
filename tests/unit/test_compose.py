"""compose.yaml is valid by the compose specification, and its commands and settings exist in the code.

tests/schemas/compose-spec.json is the specification's schema (github.com/compose-spec/compose-spec, Apache-2.0).
"""

import asyncio
import json
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from helpers.key_rings import KEK
from jsonschema import validators
from pydantic import SecretStr

from turnlog.agent.privacy.keys.kek import keks_of
from turnlog.agent.settings import Settings
from turnlog.consumers.cli import app
from turnlog.consumers.roles import ROLES
from turnlog.consumers.servers.binaries import nats_binary
from turnlog.consumers.servers.nats_config import ACCOUNT
from turnlog.consumers.subscribing import admitting
from turnlog.events.stream import StreamOptions, stream_config

ROOT = Path(__file__).parents[2]
INTERPOLATED = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
REQUIRED = re.compile(r"\$\{(\w+):\?([^}]+)\}")


@cache
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
    return document


def workers() -> dict[str, Any]:
    return {name: service for name, service in compose()["services"].items() if service["image"] == "turnlog:local"}


def settings_of(service: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Returns the settings that turnlog reads in that container if the operator sets only the required variables."""
    for name, value in workers()[service]["environment"].items():
        monkeypatch.setenv(name, KEK if REQUIRED.search(value) else with_defaults(value))
    return Settings(_env_file=None)


def with_defaults(text: str) -> str:
    return INTERPOLATED.sub(lambda match: match[2] or "", text)


def test_file_is_valid_by_the_compose_specification() -> None:
    schema = json.loads((ROOT / "tests/schemas/compose-spec.json").read_text("utf-8"))
    validators.validator_for(schema)(schema).validate(compose())


def test_every_role_has_a_service_and_every_service_a_role() -> None:
    assert {name: worker["command"] for name, worker in workers().items()} == {role: ["worker", role] for role in ROLES}


@pytest.mark.parametrize("service", ROLES)
def test_commands_and_health_checks_are_commands_of_turnlog(service: str) -> None:
    worker = workers()[service]
    entry = re.search(r'^ENTRYPOINT \["(\w+)"\]$', worker["build"]["dockerfile_inline"], re.MULTILINE)
    assert entry is not None and entry[1] == app.info.name
    parse(worker["command"])
    check = worker["healthcheck"]["test"]
    if service == "api":
        assert "http://127.0.0.1:8484/health/ready" in check[-1]
    else:
        assert check[:2] == ["CMD", app.info.name]
        parse(check[2:])


def parse(words: list[str]) -> None:
    """Parses the words by the real command line without running the command. Raises a click UsageError."""
    group: Any = typer.main.get_command(app)
    with group.make_context("turnlog", words) as context:
        name, command, rest = group.resolve_command(context, words)
        command.make_context(name, rest, parent=context).close()


def test_parsing_refuses_an_unknown_option() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse(["worker", "projectors", "--shards", "3"])


def test_variables_are_settings_of_turnlog() -> None:
    known = {name for field in Settings.model_fields.values() for name in field.validation_alias.choices}  # type: ignore[union-attr]
    for worker in workers().values():
        assert set(worker["environment"]) <= known


def test_defaults_give_usable_settings_with_given_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of("projectors", monkeypatch)
    assert settings.stream == StreamOptions(partitions=8, replicas=3)
    assert stream_config(settings.stream).num_replicas == 3
    assert settings.offline and settings.model == Settings.model_fields["model"].default
    assert settings.nats_url and settings.database_url


def test_addresses_name_services_and_their_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of("agent", monkeypatch)
    nodes = [name for name in compose()["services"] if name.startswith("nats-")]
    assert settings.nats_url == ",".join(f"nats://turnlog:turnlog@{node}:4222" for node in nodes)
    assert settings.database_url == "postgresql://turnlog:turnlog@postgres:5432/turnlog"
    routes = re.search(r"routes: \[(.*)\]", compose()["configs"]["nats"]["content"])
    assert routes and routes[1].split(", ") == [f"nats://{node}:6222" for node in nodes]
    assert len(nodes) == settings.replicas


def test_workers_start_only_when_all_servers_are_healthy() -> None:
    servers = {name: server for name, server in compose()["services"].items() if name not in workers()}
    assert all("healthcheck" in server for server in servers.values())
    for worker in workers().values():
        assert worker["depends_on"] == {name: {"condition": "service_healthy"} for name in servers}


def test_every_server_keeps_its_data_in_a_separate_volume() -> None:
    kept = [volume.split(":")[0] for service in compose()["services"].values() for volume in service.get("volumes", ())]
    assert sorted(kept) == sorted(compose()["volumes"]) and len(kept) == len(set(kept))


def test_image_copies_every_package_of_the_project() -> None:
    copied = set(re.findall(r"^COPY (\w+) ", compose()["x-turnlog"]["build"]["dockerfile_inline"], re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    folders = project["tool"]["setuptools"]["package-dir"].values()
    assert copied == {folder.split("/")[0] for folder in folders}


def test_the_key_encryption_key_has_no_default_and_the_refusal_says_how_to_make_one() -> None:
    for worker in workers().values():
        required = REQUIRED.fullmatch(worker["environment"]["TURNLOG_KEK"])
        assert required is not None and required[1] == "TURNLOG_KEK"
        command = re.search(r"`(.+)`", required[2])
        assert command is not None
        made = subprocess.run(["sh", "-c", command[1]], capture_output=True, text=True, check=True, timeout=60).stdout
        assert keks_of(Settings(database_url="postgresql://x", kek=SecretStr(made))) is not None


def test_nothing_secret_has_a_fixed_value() -> None:
    text = (ROOT / "compose.yaml").read_text("utf-8")
    for line in text.splitlines():
        if re.search(r"(?i)(password|token|_key)\b.*:", line.split("#")[0]):
            assert "${" in line, line


@pytest.mark.parametrize("subscriber", [False, True])
async def test_real_nats_server_accepts_the_configuration(tmp_path: Path, subscriber: bool) -> None:
    """Tests the configuration as it is, and with the output of `turnlog subscribers create` in its accounts."""
    text = with_defaults(compose()["configs"]["nats"]["content"])
    if subscriber:
        settings = Settings(home=tmp_path, nats_url="nats://elsewhere", database_url="postgresql://elsewhere")
        printed = str(await admitting(settings)("sub~acme~analytics", "secret"))
        _, _, rest = printed.partition(f"  {ACCOUNT} {{\n")
        opening = f"  {ACCOUNT} {{\n"
        assert text.count(opening) == 1
        own, accounts = rest.split("\n  }\n", 1)
        text = text.replace(opening, f"{accounts.removesuffix('}')}{opening}{own}\n")
    path = tmp_path / "turnlog.conf"
    path.write_text(text, "utf-8")
    command = [str(nats_binary()), "--config", str(path), *compose()["services"]["nats-1"]["command"][2:], "-t"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "sync_interval: always" in path.read_text("utf-8")
