"""NATS clients can forge the bytes of a checkpoint; reading them must not call any function that is not allowed."""

import json
import pickle
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import uuid4

import ormsgpack
import pytest
from helpers.langgraph_graphs import chat, config, one_node
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import StateGraph
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from turnlog.agent.runtime import Pool
from turnlog.consumers.langgraph import TurnlogSaver
from turnlog.consumers.langgraph.checkpoint.allowed import TypeNotAllowed
from turnlog.consumers.runtime import connection_pool
from turnlog.events.codec import encode
from turnlog.events.contracts import Blob, CheckpointSaved, CheckpointWritesSaved, Event, ListGrowth, PendingWrite
from turnlog.events.log import Log
from turnlog.events.signing import Signer
from turnlog.events.subjects import publish_subject
from turnlog.projectors.engine.engine import Runner


@pytest.fixture
async def pool(database_url: str, running_projectors: Runner) -> AsyncIterator[Pool]:
    async with connection_pool(database_url) as opened:
        yield opened


@dataclass
class Plan:
    steps: list[str]


def ext(code: int, *parts: Any) -> bytes:
    packed = ormsgpack.packb(parts, default=lambda inner: inner)
    return ormsgpack.packb(ormsgpack.Ext(code, packed))


def inside(data: bytes) -> ormsgpack.Ext:
    """Returns the Ext object in packed data."""
    return ormsgpack.unpackb(data, ext_hook=ormsgpack.Ext)  # type: ignore[no-any-return]


class _Runs:
    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.mkdir, (Path(self._path),)


def values(path: str) -> dict[str, tuple[str, bytes]]:
    """Returns by name (encoding, bytes) of values that create a folder when LangGraph's serializer reads them."""
    made = ext(0, "os", "mkdir", path)
    return {
        "a function of one argument": ("msgpack", made),
        "a function of several": ("msgpack", ext(1, "os", "mkdir", [path, 0o700])),
        "keywords": ("msgpack", ext(2, "os", "mkdir", {"path": path})),
        "a model of pydantic 1": ("msgpack", ext(4, "os", "mkdir", {"path": path}, None)),
        "a model of pydantic 2": ("msgpack", ext(5, "os", "mkdir", {"path": path}, None)),
        "in a safe type": ("msgpack", ext(0, "builtins", "set", [inside(made)])),
        "in the snapshot of a channel": ("msgpack", ormsgpack.packb(ormsgpack.Ext(7, made))),
        "where a module is expected": ("msgpack", ext(0, inside(made), "x", 1)),
        "in a message": (
            "msgpack",
            ext(5, "langchain_core.messages.human", "HumanMessage", {"content": "hi", "id": inside(made)}, None),
        ),
        "pickled": ("pickle", pickle.dumps(_Runs(path))),
    }


NAMES = tuple(values(""))


def serializer(name: str) -> JsonPlusSerializer | None:
    return JsonPlusSerializer(pickle_fallback=True) if name == "pickled" else None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_langgraphs_own_serializer_executes_forged_bytes(name: str, tmp_path: Path) -> None:
    marker = tmp_path / "made"
    (serializer(name) or JsonPlusSerializer()).loads_typed(values(str(marker))[name])
    assert marker.is_dir()


def base64(data: bytes) -> str:
    return b64encode(data).decode()


def forged(place: str, encoding: str, data: bytes) -> list[CheckpointSaved | CheckpointWritesSaved]:
    """Returns events of a checkpoint with the value in a channel, in a list, beside messages, or in a pending write."""
    blob, lists = Blob(channel="messages", version="1", encoding=encoding, data=base64(data)), ()
    if place == "list":
        blob = blob.model_copy(
            update={"encoding": "turnlog.list", "data": base64(json.dumps({"list": "l", "count": 1}).encode())}
        )
        lists = (ListGrowth(list_id="l", first=0, items=({"type": encoding, "data": base64(data)},)),)
    if place == "beside messages":
        parts = {"items": [], "type": encoding, "data": base64(data)}
        blob = blob.model_copy(update={"encoding": "turnlog.refs", "data": base64(json.dumps(parts).encode())})
    checkpoint = {**empty_checkpoint(), "id": "1ef", "channel_versions": {"messages": "1"}}
    saved = CheckpointSaved(
        checkpoint_id="1ef",
        checkpoint=checkpoint,
        metadata={"source": "loop", "step": 1},
        blobs=() if place == "write" else (blob,),
        lists=lists,
    )
    if place != "write":
        return [saved]
    write = PendingWrite(idx=0, channel="messages", encoding=encoding, data=base64(data))
    return [saved, CheckpointWritesSaved(checkpoint_id="1ef", task_id="t", writes=(write,))]


async def publish(log: Log, thread: str, place: str, value: tuple[str, bytes]) -> None:
    """Publishes the forged events directly to NATS, like any client."""
    for data in forged(place, *value):
        event = Event(source="forged", tenant="default", thread=thread, data=data)
        await log.nc.jetstream().publish(publish_subject("default", thread, event.type), encode(event))


@pytest.mark.parametrize(
    ("place", "name"),
    [("channel", name) for name in NAMES] + [(place, NAMES[0]) for place in ("list", "beside messages", "write")],
)
async def test_a_forged_checkpoint_runs_nothing(log: Log, pool: Pool, tmp_path: Path, place: str, name: str) -> None:
    marker = tmp_path / "made"
    await publish(log, "t", place, values(str(marker))[name])
    saver = TurnlogSaver(log, pool, serde=serializer(name))
    with pytest.raises(TypeNotAllowed, match="pickle" if name == "pickled" else "os.mkdir|not written by"):
        await saver.aget_tuple(config())
    assert not marker.exists()


class Reversing:
    """A trivial cipher."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "reversing", uuid4().bytes + plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return ciphertext[16:][::-1]


async def test_unencrypted_bytes_are_checked_beside_encrypted_ones(log: Log, pool: Pool, tmp_path: Path) -> None:
    marker = tmp_path / "made"
    await publish(log, "t", "channel", values(str(marker))[NAMES[0]])
    saver = TurnlogSaver(log, pool, serde=EncryptedSerializer(Reversing()))
    with pytest.raises(TypeNotAllowed, match=r"os\.mkdir"):
        await saver.aget_tuple(config())
    assert not marker.exists()


@pytest.mark.parametrize("data", [b"\xc1", b"", ext(0), ext(0, 1, 2, 3), ext(9, "a"), ext(3, "datetime")])
async def test_malformed_bytes_are_one_clear_error(log: Log, pool: Pool, data: bytes) -> None:
    await publish(log, "t", "channel", ("msgpack", data))
    with pytest.raises(TypeNotAllowed):
        await TurnlogSaver(log, pool).aget_tuple(config())


async def test_bytes_of_any_depth_are_one_clear_error(log: Log, pool: Pool) -> None:
    data = ormsgpack.packb(1)
    for _ in range(5_000):
        data = ormsgpack.packb(ormsgpack.Ext(7, data))
    await publish(log, "t", "channel", ("msgpack", data))
    with pytest.raises(TypeNotAllowed, match="too deep"):
        await TurnlogSaver(log, pool).aget_tuple(config())


async def test_a_forged_checkpoint_stays_in_its_thread(log: Log, pool: Pool, tmp_path: Path) -> None:
    saver = TurnlogSaver(log, pool)
    graph = chat(saver)
    await graph.ainvoke({"messages": [HumanMessage("one")]}, config("other"))
    await publish(log, "t", "channel", values(str(tmp_path / "made"))[NAMES[0]])
    await graph.ainvoke({"messages": [HumanMessage("two")]}, config("other"))
    assert len((await graph.aget_state(config("other"))).values["messages"]) == 4
    assert {saved.config["configurable"]["thread_id"] async for saved in saver.alist(None)} == {"other"}
    with pytest.raises(TypeNotAllowed):
        [saved async for saved in saver.alist(config())]
    await saver.adelete_thread("t")
    assert await saver.aget_tuple(config()) is None


class Planned(TypedDict):
    plan: Plan


async def planning(state: Planned) -> Any:
    return {"plan": Plan([*state["plan"].steps, "next"])}


async def test_a_type_of_the_application_is_refused_if_nothing_is_signed(log: Log, pool: Pool) -> None:
    saver = TurnlogSaver(log, pool)
    with pytest.raises(TypeNotAllowed, match=r"test_langgraph_forged\.Plan is .*TurnlogSaver\(…, allowed=\[Plan\]\)"):
        await one_node(Planned, planning, saver).ainvoke({"plan": Plan(["first"])}, config())
    assert await saver.aget_tuple(config()) is None


@pytest.mark.parametrize("allowed", [Plan, (Plan.__module__, "Plan")])
async def test_an_allowed_type_comes_back(log: Log, pool: Pool, allowed: Any) -> None:
    saver = TurnlogSaver(log, pool, allowed=[allowed])
    await one_node(Planned, planning, saver).ainvoke({"plan": Plan(["first"])}, config())
    again = one_node(Planned, planning, TurnlogSaver(log, pool, allowed=[allowed]))
    assert (await again.aget_state(config())).values == {"plan": Plan(["first", "next"])}


async def test_types_that_langgraph_finds_in_a_graph_are_allowed_in_its_strict_mode(log: Log, pool: Pool) -> None:
    graph = one_node(Planned, planning, TurnlogSaver(log, pool).with_allowlist([(Plan.__module__, "Plan")]))
    await graph.ainvoke({"plan": Plan(["first"])}, config())
    assert (await graph.aget_state(config())).values == {"plan": Plan(["first", "next"])}


class Mood(Enum):
    GOOD = "good"


class Trip(BaseModel):
    city: str
    mood: Mood


class Travelling(TypedDict, total=False):
    trip: Trip
    plan: Plan
    moods: list[Mood]
    answer: str


def travelling(saver: TurnlogSaver) -> Any:
    async def propose(state: Travelling) -> Travelling:
        return {"trip": Trip(city="Genoa", mood=Mood.GOOD), "moods": [Mood.GOOD]}

    def send(state: Travelling) -> list[Send]:
        return [Send("ask", {"plan": Plan(["pack"])})]

    async def ask(state: Travelling) -> Travelling:
        return {"answer": interrupt(Plan(["go", *state["plan"].steps])), "plan": state["plan"]}

    graph = StateGraph(Travelling).add_node("propose", propose).add_node("ask", ask)
    return graph.set_entry_point("propose").add_conditional_edges("propose", send, ["ask"]).compile(saver)


def signing(log: Log, secret: bytes = b"s") -> Log:
    return replace(log, signer=Signer(lambda: secret * 32))


async def test_signed_types_of_the_application_are_read(log: Log, pool: Pool) -> None:
    asked = await travelling(TurnlogSaver(signing(log), pool)).ainvoke({"plan": Plan(["start"])}, config())
    assert asked["__interrupt__"][0].value == Plan(["go", "pack"])
    done = await travelling(TurnlogSaver(signing(log), pool)).ainvoke(Command(resume="yes"), config())
    kept = await travelling(TurnlogSaver(signing(log), pool)).aget_state(config())
    trip = Trip(city="Genoa", mood=Mood.GOOD)
    assert done == kept.values == {"trip": trip, "plan": Plan(["pack"]), "moods": [Mood.GOOD], "answer": "yes"}


async def test_a_signature_of_another_secret_or_tenant_counts_as_none(log: Log, pool: Pool) -> None:
    await travelling(TurnlogSaver(signing(log), pool)).ainvoke({"plan": Plan(["start"])}, config())
    with pytest.raises(TypeNotAllowed, match="not signed with the secret"):
        await TurnlogSaver(signing(log, b"o"), pool).aget_tuple(config())
    loaded = await TurnlogSaver(signing(log, b"o"), pool, allowed=[Plan, Trip, Mood]).aget_tuple(config())
    assert loaded is not None
    codec, other = (TurnlogSaver(signing(log), pool, tenant)._codec for tenant in ("default", "other"))
    with pytest.raises(TypeNotAllowed):
        other.loads(*codec.dumps(Plan(["x"])))


async def test_an_unsigned_type_of_the_application_is_refused_if_others_are_signed(log: Log, pool: Pool) -> None:
    saver = TurnlogSaver(signing(log), pool)
    await one_node(Planned, planning, saver).ainvoke({"plan": Plan(["first"])}, config("signed"))
    await publish(log, "t", "channel", JsonPlusSerializer().dumps_typed(Plan(["forged"])))
    with pytest.raises(TypeNotAllowed, match=r"Plan is not signed with the secret"):
        await saver.aget_tuple(config())
    assert await saver.aget_tuple(config("signed")) is not None


@pytest.mark.parametrize("name", [name for name in NAMES if name != "pickled"])
async def test_a_signature_of_one_value_does_not_fit_another(log: Log, pool: Pool, tmp_path: Path, name: str) -> None:
    marker, saver = tmp_path / "made", TurnlogSaver(signing(log), pool)
    encoding, signed = saver._codec.dumps(Plan(["x"]))
    await publish(log, "t", "channel", (encoding, signed[:32] + values(str(marker))[name][1]))
    with pytest.raises(TypeNotAllowed):
        await saver.aget_tuple(config())
    assert not marker.exists()


async def test_a_class_inside_a_function_comes_back_as_its_data(log: Log, pool: Pool) -> None:
    """LangGraph's own savers do the same."""

    @dataclass
    class Local:
        steps: list[str]

    async def planning(state: Planned) -> Any:
        return {"plan": Local(["x", "y"])}

    await one_node(Planned, planning, TurnlogSaver(signing(log), pool)).ainvoke({"plan": Local(["x"])}, config())
    state = await one_node(Planned, planning, TurnlogSaver(signing(log), pool)).aget_state(config())
    assert state.values["plan"] == {"steps": ["x", "y"]}
