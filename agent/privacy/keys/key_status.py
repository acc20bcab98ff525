"""Shows the keys that encrypt users' words in the log, rotates the key of a user, and wraps all keys with another
KEK."""

from dataclasses import dataclass

from turnlog.agent.privacy.keys import key_admin
from turnlog.agent.privacy.keys.kek import InvalidKek, keks_of
from turnlog.agent.privacy.keys.key_admin import KekUse
from turnlog.agent.privacy.keys.key_stream import KeyStream
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.events.subjects import check_place


@dataclass(frozen=True, slots=True)
class KekName:
    """A key-encryption key. source: the variable or file that contains it."""

    id: str
    source: str


@dataclass(frozen=True, slots=True)
class KeyStatus:
    """The keys in use. sealing: whether users' words are encrypted. keys: how many keys of users each KEK wraps."""

    sealing: bool
    kek: KekName | None
    keys: tuple[KekUse, ...]


@dataclass(frozen=True, slots=True)
class RotatedKey:
    user: str
    key_id: str


@dataclass(frozen=True, slots=True)
class RewrappedKeys:
    """The result of wrapping keys again. rewrapped: number of keys. kek: the id of the KEK that now wraps all of
    them."""

    rewrapped: int
    kek: str


def refuse_plaintext(settings: Settings) -> None:
    """Raises InvalidKek if users' words would be stored in clear and no setting allows it."""
    if keks_of(settings) is None and settings.database_url is not None and not settings.plaintext:
        raise InvalidKek(
            "TURNLOG_KEK is not set: on servers of your own, what users say would be stored in the log in clear, and "
            "erasing a user would leave it there. Set it, for every process, to what `turnlog encryption-key new-kek` "
            "prints and keep a copy; or set TURNLOG_PLAINTEXT=yes to store everything in clear"
        )


async def key_status(runtime: Runtime) -> KeyStatus:
    """Returns whether words are encrypted, and how many keys each KEK wraps. Raises InvalidKek."""
    keks = keks_of(runtime.settings)
    async with runtime.pool.connection() as conn:
        uses = await key_admin.uses(conn, keks)
    kek = None if keks is None else KekName(keks.current.id, keks.source)
    return KeyStatus(keks is not None, kek, tuple(uses))


async def rotate_key(runtime: Runtime, tenant: str, user: str) -> RotatedKey:
    """Makes a new key for the user's events from now on; the old key still opens the events that it sealed.

    Raises InvalidToken, InvalidKek, NotFound, KeyUnavailable.
    """
    check_place(tenant, user=user)
    stream = _stream(runtime)
    async with runtime.pool.connection() as conn:
        return RotatedKey(user, await key_admin.rotate(conn, stream, tenant, user))


async def rewrap_keys(runtime: Runtime) -> RewrappedKeys:
    """Wraps every user's key with a new TURNLOG_KEK, after unwrapping it with TURNLOG_KEK_OLD; returns the number.

    Raises InvalidKek, KeyUnavailable.
    """
    stream = _stream(runtime)
    async with runtime.pool.connection() as conn:
        return RewrappedKeys(await key_admin.rewrap(conn, stream), stream.keks.current.id)


def _stream(runtime: Runtime) -> KeyStream:
    keks = keks_of(runtime.settings)
    if keks is None:
        raise InvalidKek(
            "there is no key-encryption key; set TURNLOG_KEK to what `turnlog encryption-key new-kek` prints"
        )
    return KeyStream(runtime.log.nc, keks)
