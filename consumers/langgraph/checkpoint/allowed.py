"""Checks which types a stored value may create, because anyone who can publish an event chooses its bytes.

A value with other types is stored with a signature, made with a key that only turnlog's processes have, and is read if
the signature matches.
"""

from collections.abc import Iterable
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_METHODS, SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.jsonplus import EXT_DELTA_SNAPSHOT, EXT_METHOD_SINGLE_ARG, EXT_NUMPY_ARRAY

from turnlog.events.errors import TurnlogError

Allowed = frozenset[tuple[str, ...]]
RUNS_CODE = frozenset({"json", "pickle"})  # values with these encodings name the code that creates them


class TypeNotAllowed(TurnlogError):
    """A value of a checkpoint names a type that is not on the saver's allow-list; no part of it was created."""

    code = "type-not-allowed"


def allow_list(types: Iterable[type | tuple[str, str]]) -> Allowed:
    """Returns (module, name) of types that are given as classes or as (module, name)."""
    return frozenset((type_.__module__, type_.__name__) if isinstance(type_, type) else tuple(type_) for type_ in types)


def check(encoding: str, data: bytes, allowed: Allowed) -> None:
    """Checks unsigned bytes of LangGraph's JsonPlusSerializer that are not encrypted, without making an object of them.

    Raises TypeNotAllowed, also if the serializer cannot have written the bytes.
    """
    if encoding in RUNS_CODE:
        raise TypeNotAllowed(
            f"a value written as {encoding} is not read, because it could run any code: whoever can publish on NATS "
            "may have written it. Use types that LangGraph's serializer writes as msgpack, or an EncryptedSerializer"
        )
    if refused := sorted(own_types(encoding, data) - allowed):
        raise TypeNotAllowed(
            f"a value of the type {'.'.join(refused[0])} is not signed with the secret of this turnlog "
            f"(TURNLOG_API_SECRET), so it is not allowed: whoever can publish on NATS could choose the type. If it is "
            f"one of yours: TurnlogSaver(…, allowed=[{refused[0][1]}])"
        )


def own_types(encoding: str, data: bytes) -> Allowed:
    """Returns the types and methods in the bytes that are neither LangGraph's nor plain ones. Raises TypeNotAllowed."""
    if encoding != "msgpack":
        return frozenset()
    try:
        return _types_in(data) - SAFE_MSGPACK_TYPES - SAFE_MSGPACK_METHODS
    except ValueError:  # ormsgpack also raises this for any error of `note`
        raise TypeNotAllowed(
            "a value was not written by LangGraph's serializer, or is nested too deep; it is not read"
        ) from None


def _types_in(data: bytes) -> Allowed:
    """Returns (module, name) of each type and (module, name, method) of each method that the bytes call."""
    calls: set[tuple[str, ...]] = set()

    def note(code: int, inner: bytes) -> None:
        parts: Any = _unpacked(inner, note)
        if code in (EXT_DELTA_SNAPSHOT, EXT_NUMPY_ARRAY):
            return
        module, name, _, *method = parts
        called = (module, name, *method[:1]) if code == EXT_METHOD_SINGLE_ARG else (module, name)
        if not all(isinstance(part, str) for part in called):
            raise ValueError
        calls.add(called)

    _unpacked(data, note)
    return frozenset(calls)


def _unpacked(data: bytes, note: Any) -> Any:
    return ormsgpack.unpackb(data, ext_hook=note, option=ormsgpack.OPT_NON_STR_KEYS)
