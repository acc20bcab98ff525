"""Lets a tenant's subscriber connect to NATS: changes the embedded server, or returns configuration for another."""

from turnlog.agent.access.subscribers import Admit
from turnlog.agent.settings import Settings
from turnlog.consumers.servers import change_subscriber
from turnlog.consumers.servers.nats_config import ACCOUNT, exports, subscriber_account


def admitting(settings: Settings) -> Admit:
    async def admit(durable: str, password: str | None) -> str | None:
        if settings.nats_url is None:
            await change_subscriber(settings.home, durable, password)
            return None
        if password is None:
            return f"Remove the account {durable} from the configuration of nats-server."
        return _to_configure(durable, password)

    return admit


def _to_configure(durable: str, password: str) -> str:
    return "\n".join(
        [
            f"# In nats-server.conf of every node; {ACCOUNT} is the account with jetstream and the user of NATS_URL.",
            "accounts {",
            f"  {ACCOUNT} {{",
            *exports([durable]),
            "  }",
            *subscriber_account(durable, password),
            "}",
        ]
    )
