"""After losses, Postgres is rebuilt from the log and the keys, but a lost KEK is never replaced."""

import asyncio
import os
import shutil
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from helpers.erased_users import erase
from helpers.personal_events import conversation, secret
from helpers.preloaded_cli import run_command
from helpers.sample_events import turn
from helpers.servers import files_with, rows
from helpers.stage import Stage, on_stage
from pydantic import SecretStr

from turnlog.agent.privacy.keys.kek import WrongKek, new_kek
from turnlog.agent.privacy.keys.key_admin import wrapped_forms
from turnlog.agent.privacy.keys.key_status import rewrap_keys
from turnlog.agent.settings import Settings
from turnlog.consumers.runtime import opened
from turnlog.consumers.servers import stop
from turnlog.events.contracts import ERASED
from turnlog.projectors.models.registry import PROJECTIONS

pytestmark = pytest.mark.slow

TABLES = sorted({table.name for projection in PROJECTIONS for table in projection.tables})


def on(home: Path, **keys: SecretStr) -> AbstractAsyncContextManager[Stage]:
    return on_stage(Settings(home=home, nats_url=None, database_url=None, **keys), ["projectors"])


async def every_row(stage: Stage) -> dict[str, list[str]]:
    """Returns the rows of each read model table as text."""
    async with stage.runtime.pool.connection() as conn:
        return {
            name: [text for (text,) in await rows(conn, f"SELECT t::text FROM {name} t ORDER BY 1")] for name in TABLES
        }


async def keys_of(stage: Stage, *users: str) -> list[str]:
    async with stage.runtime.pool.connection() as conn:
        return [key for user in users for key in await wrapped_forms(conn, "default", user)]


@pytest.mark.nightly
async def test_without_postgres_a_rebuild_gives_every_row_back_and_the_erased_stay_erased(home: Path) -> None:
    async with on(home) as stage:
        for user in ("ann", "bob", "李雷"):
            await stage.runtime.log.append_many(conversation(user, 6))
        talk = [
            turn(f"{user} in company", thread="shared", minutes=at, user=user) for at, user in enumerate(("bob", "ann"))
        ]
        await stage.runtime.log.append_many([*talk, turn("said by nobody", thread="shared", minutes=3)])
        await stage.bad("turn_recorded", "damaged")
        await stage.runtime.wait_until_projected()
        await erase(stage)
        await stage.runtime.wait_until_projected()
        before = await every_row(stage)
    assert any("bob's said 0" in message for message in before["messages"])
    await stop(home)
    await asyncio.to_thread(shutil.rmtree, home / "postgres")

    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment |= {"TURNLOG_HOME": str(home)}
    done = await asyncio.to_thread(run_command, "rebuild", "--all", "--json", environment=environment)
    assert done.code == 0, done.err
    async with on(home) as stage:
        await stage.runtime.wait_until_projected()
        after = await every_row(stage)
        assert {name: after[name] for name in TABLES if after[name] != before[name]} == {}
        assert ERASED in "\n".join(after["messages"])
        assert secret("ann", "said") not in "\n".join(after["messages"])
        await stage.runtime.log.append(turn("I am back.", thread="talk-bob", minutes=90, user="bob"))
        await stage.runtime.wait_until_projected()
        assert len(await every_row(stage)) == len(TABLES)


@pytest.mark.nightly
async def test_a_lost_or_changed_kek_is_an_error_and_no_new_one_is_made(home: Path) -> None:
    async with on(home) as stage:
        await stage.runtime.log.append(turn("My secret.", user="ann"))
        await stage.runtime.wait_until_projected()
    kek, kept = home / "kek", (home / "kek").read_bytes()
    kek.unlink()
    for _ in range(2):
        with pytest.raises(WrongKek, match=r"kek is missing.*Copy the file back from a backup"):
            await use(home)
        assert not kek.exists()
    kek.write_text(new_kek())
    with pytest.raises(WrongKek, match=r"encrypted under key-encryption key .*, not by .*kek\. Set TURNLOG_KEK"):
        await use(home)
    await stop(home)
    await asyncio.to_thread(shutil.rmtree, home / "postgres")
    with pytest.raises(WrongKek, match="not by"):
        await use(home)
    kek.unlink()
    with pytest.raises(WrongKek, match="is missing"):
        await use(home)
    assert not kek.exists()
    async with on(home, kek=SecretStr(kept.decode())) as stage:
        await stage.runtime.wait_until_projected()
        assert "My secret." in "".join((await every_row(stage))["messages"])


async def use(home: Path) -> None:
    async with opened(Settings(home=home, nats_url=None, database_url=None)):
        pass


@pytest.mark.nightly
async def test_an_erasure_and_a_changed_kek_leave_no_old_key_bytes_in_the_files_of_nats(home: Path) -> None:
    async with on(home) as stage:
        await stage.runtime.log.append_many([turn(f"I am {user}.", user=user) for user in ("ann", "bob", "cho", "dan")])
        [ann], others = await keys_of(stage, "ann"), await keys_of(stage, "bob", "cho", "dan")
        assert files_with(home / "nats", [ann]) and files_with(home / "nats", others)
        await erase(stage)
        assert files_with(home / "nats", [ann]) == set()
        assert files_with(home / "nats", others[:1])
    old, new = (home / "kek").read_text(), new_kek()
    async with on(home, kek=SecretStr(new), kek_old=SecretStr(old)) as stage:
        assert (await rewrap_keys(stage.runtime)).rewrapped == 3
        assert files_with(home / "nats", others) == set()
        assert files_with(home / "nats", await keys_of(stage, "bob", "cho", "dan"))
