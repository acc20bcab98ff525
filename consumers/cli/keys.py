"""keys: what encrypts users' words in the log."""

from typing import TYPE_CHECKING, Annotated

import typer

from turnlog.agent.settings import Settings
from turnlog.consumers.cli.console import Json, Tenant, check_given, emit, out, run, tenant_of

if TYPE_CHECKING:
    from turnlog.agent.privacy.kek import Keks


def register(app: typer.Typer) -> None:
    keys = typer.Typer(help="The keys that encrypt users' words in the log.", no_args_is_help=True)
    keys.command("status")(status)
    keys.command("new-kek")(new_kek)
    keys.command("rotate")(rotate)
    keys.command("rewrap")(rewrap)
    app.add_typer(keys, name="keys")


def status(json: Json = False) -> None:
    """Which key-encryption key is in use, and how many keys of users it wraps."""

    async def work(settings: Settings) -> int:
        from turnlog.agent.privacy.kek import keks_of
        from turnlog.agent.privacy.key_admin import uses
        from turnlog.consumers.runtime import opened

        async with opened(settings) as runtime, runtime.pool.connection() as conn:
            keks = keks_of(settings)
            found = await uses(conn, keks)
        if json:
            kek = None if keks is None else {"id": keks.current.id, "source": keks.source}
            emit({"sealing": keks is not None, "kek": kek, "keys": found})
            return 0
        if keks is None:
            out.print("Users' words in the log are not encrypted: there is no key-encryption key. Set TURNLOG_KEK to")
            out.print("what `turnlog keys new-kek` prints; it holds for what is said from then on.")
            return 0
        out.print(f"key-encryption key {keks.current.id} from {keks.source}", markup=False)
        for one in found:
            old = "" if one.kek_id == keks.current.id else "  old: `turnlog keys rewrap`"
            out.print(
                f"{one.kek_id}  {one.users:,} users: {one.current:,} keys seal, {one.retired:,} only open, "
                f"{one.destroyed:,} destroyed{old}"
            )
        return 0

    run(work, json)


def new_kek(json: Json = False) -> None:
    """Print a new value for TURNLOG_KEK. It is stored nowhere."""
    from turnlog.agent.privacy import kek

    made = kek.new_kek()
    if json:
        emit({"kek": made})
    else:
        out.print(made)


def rotate(
    user: Annotated[str, typer.Option(help="Whose key.")],
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Give a user a new key for what is said from now on; the old one still opens what it sealed."""

    async def work(settings: Settings) -> int:
        from turnlog.agent.privacy.key_admin import rotate as rotated
        from turnlog.consumers.runtime import opened

        place = tenant_of(settings, tenant), user
        check_given("user", user)
        keks = _given(settings)
        async with opened(settings) as runtime, runtime.pool.connection() as conn:
            key_id = await rotated(conn, keks, *place)
        if json:
            emit({"user": user, "key_id": key_id})
        else:
            out.print(f"user {user} has key {key_id} from now on", markup=False)
        return 0

    run(work, json)


def rewrap(json: Json = False) -> None:
    """Encrypt every user's key anew under TURNLOG_KEK, after a change of it; needs TURNLOG_KEK_OLD."""

    async def work(settings: Settings) -> int:
        from turnlog.agent.privacy.key_admin import rewrap as rewrapped
        from turnlog.consumers.runtime import opened

        keks = _given(settings)
        async with opened(settings) as runtime, runtime.pool.connection() as conn:
            count = await rewrapped(conn, keks)
        if json:
            emit({"rewrapped": count, "kek": keks.current.id})
        else:
            out.print(f"{count:,} keys wrapped anew; all are under key-encryption key {keks.current.id}")
        return 0

    run(work, json)


def _given(settings: Settings) -> "Keks":
    from turnlog.agent.privacy.kek import InvalidKek, keks_of

    keks = keks_of(settings)
    if keks is None:
        raise InvalidKek("there is no key-encryption key; set TURNLOG_KEK to what `turnlog keys new-kek` prints")
    return keks
