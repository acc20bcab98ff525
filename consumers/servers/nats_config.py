"""Writes a nats-server's configuration and reads the address back from the file.

The file is the only record of the port and the token that a running server was started with.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from turnlog.events.subjects import operator_subjects, subscriber_services

USER, ACCOUNT = "turnlog", "TURNLOG"
MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class NatsAddress:
    """The address of a nats-server on this machine. token: turnlog's password."""

    port: int
    token: str

    @property
    def url(self) -> str:
        return f"nats://{USER}:{self.token}@127.0.0.1:{self.port}"


def render(
    name: str, address: NatsAddress, subscribers: Mapping[str, str] | None = None, more: Iterable[str] = ()
) -> str:
    """Returns the text of nats.conf. subscribers: the passwords of subscribers by their durables. more: further lines,
    for instance for a cluster.

    Paths are relative to the server's working folder, so that they stay valid when the home is moved or a parent folder
    becomes inaccessible.
    """
    lines = [
        f"server_name: {_quoted(name)}",
        "host: 127.0.0.1",
        f"port: {address.port}",
        *accounts(address.token, subscribers or {}),
        f"max_payload: {8 * MEGABYTE}",
        # A subscriber that replays the log receives many messages at once; the default of 64 MB would disconnect it.
        f"max_pending: {256 * MEGABYTE}",
        "log_file: nats.log",
        f"logfile_size_limit: {16 * MEGABYTE}",
        "logfile_max_num: 3",
        # Without sync_interval an acknowledged message may be lost for two minutes after a power cut.
        "jetstream { store_dir: store, sync_interval: always }",
        *more,
    ]
    return "\n".join(lines) + "\n"


def accounts(token: str, subscribers: Mapping[str, str]) -> list[str]:
    """Returns the lines for turnlog's own account, which has the streams, and for one account per subscriber.

    In turnlog's account, a subscriber could make the server send a reply to another tenant's subject, because reply
    subjects are not checked. From a separate account, replies cannot reach a stream.
    """
    return [
        "accounts {",
        f"  {ACCOUNT} {{",
        "    jetstream: enabled",
        f"    users: [{{ user: {USER}, password: {_quoted(token)} }}]",
        *exports(subscribers),
        "  }",
        *(line for durable, password in sorted(subscribers.items()) for line in subscriber_account(durable, password)),
        "}",
    ]


def exports(durables: Iterable[str]) -> list[str]:
    """Returns the lines that export services from turnlog's account to the subscribers' accounts."""
    offered = dict.fromkeys(taken for durable in sorted(durables) for taken, _ in subscriber_services(durable))
    stream = ", response_type: stream"
    return [
        "    exports: [",
        *(f"      {{ service: {_quoted(service)}{stream if '.MSG.NEXT.' in service else ''} }}" for service in offered),
        "    ]",
    ]


def subscriber_account(durable: str, password: str) -> list[str]:
    services = subscriber_services(durable)
    sent = ", ".join(_quoted(named) for _, named in services)
    never = ", ".join(map(_quoted, operator_subjects(durable)))
    permissions = f'{{ publish: {{ allow: [{sent}], deny: [{never}] }}, subscribe: {{ allow: ["_INBOX.>"] }} }}'
    return [
        f"  {_quoted(durable)} {{",
        f"    users: [{{ user: {_quoted(durable)}, password: {_quoted(password)}, permissions: {permissions} }}]",
        "    imports: [",
        *(
            f"      {{ service: {{ account: {ACCOUNT}, subject: {_quoted(taken)} }}, to: {_quoted(named)} }}"
            for taken, named in services
        ),
        "    ]",
        "  }",
    ]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def read_address(text: str) -> NatsAddress | None:
    """Returns the address in a nats.conf written by render; None if the text is incomplete."""
    port = re.search(r"^port: (\d+)$", text, re.MULTILINE)
    token = re.search(rf'^    users: \[{{ user: {USER}, password: "([\w-]+)" }}\]$', text, re.MULTILINE)
    return NatsAddress(int(port[1]), token[1]) if port and token else None
