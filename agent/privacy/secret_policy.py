"""Keeps, masks or refuses secrets in a person's words, according to the person's preference `secrets`."""

import time
from collections.abc import Sequence

from cachetools import LRUCache
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from turnlog.events.append import RETRY_WAIT_S
from turnlog.events.contracts import Event, PreferencesSet, SecretPolicy, TurnRecorded
from turnlog.events.errors import GapInLog, InvalidEvent, LogUnavailable
from turnlog.events.log import Log
from turnlog.events.subjects import memory_thread

TRUSTED_S = 5.0  # seconds for which another process may still use the old policy after a change
_PATIENCE_S = 30.0  # seconds; the same as for an append
_MOST = 10_000


class SecretRefused(InvalidEvent):
    """The turn contains a secret, and its user's preference is to refuse such turns."""

    code = "secret-refused"


class SecretPolicies:
    """Applies the users' policies on secrets to turns before they are stored. Turns of users without a policy are not
    searched for secrets.

    The policy is read from the log, so that it also applies while Postgres is unavailable.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._known: LRUCache[tuple[str, str], tuple[SecretPolicy | None, float]] = LRUCache(_MOST)

    async def screen(self, events: Sequence[Event]) -> list[Event]:
        """Returns the events, with secrets in turns masked if the policy of their user is `mask` or `refuse`.

        Raises SecretRefused if the policy is `refuse` and a turn of the user, not of the assistant or a tool, contains
        a secret. Raises LogUnavailable, GapInLog, KeyUnavailable.
        """
        return [await self._screened(event) for event in events]

    async def _screened(self, event: Event) -> Event:
        if event.user is None:
            return event
        if isinstance(event.data, PreferencesSet):
            self._known.pop((event.tenant, event.user), None)
            return event
        if not isinstance(event.data, TurnRecorded):
            return event
        policy = await self._policy(event.tenant, event.user)
        if policy in (None, "keep"):
            return event
        from turnlog.agent.privacy.screening import without_secrets  # slow to import: 0.1 s

        masked = without_secrets(event.data)
        if masked == event.data:
            return event
        if policy == "refuse" and event.data.role == "user":
            raise SecretRefused(
                "the turn has a password, a key or the number of a card or of a person, and was not stored: the "
                "preference secrets=refuse of its user says so; leave it out, or set secrets=mask"
            )
        return event.model_copy(update={"data": masked})

    async def _policy(self, tenant: str, user: str) -> SecretPolicy | None:
        policy, until = self._known.get((tenant, user), (None, 0.0))
        if time.monotonic() < until:
            return policy
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type((LogUnavailable, GapInLog)),
            stop=stop_after_delay(_PATIENCE_S),
            wait=wait_fixed(RETRY_WAIT_S),
            reraise=True,
        ):
            with attempt:
                policy = await self._stored(tenant, memory_thread(user))
        self._known[tenant, user] = policy, time.monotonic() + TRUSTED_S
        return policy

    async def _stored(self, tenant: str, thread: str) -> SecretPolicy | None:
        policy: SecretPolicy | None = None
        head = await self._log.thread_head(tenant, thread, "preferences_set")
        if not head:
            return None
        async for recorded in self._log.read_thread(tenant, thread, through_seq=head, types=("preferences_set",)):
            data = recorded.event.data
            assert isinstance(data, PreferencesSet)
            policy = None if "secrets" in data.cleared else policy
            policy = (data.preferences and data.preferences.secrets) or policy
        return policy
