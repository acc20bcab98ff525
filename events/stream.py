"""Creates the JetStream streams with turnlog's settings, and refuses streams whose settings have changed since."""

from dataclasses import dataclass, replace
from uuid import NAMESPACE_OID, uuid5

from nats.js import JetStreamContext
from nats.js.api import (
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamInfo,
    SubjectTransform,
)
from nats.js.errors import APIError, NotFoundError, ServerError
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_fixed

from turnlog.events.errors import StreamDrift
from turnlog.events.subjects import KEYS, KEYS_STREAM, PUBLISHED, STREAM, stored_transform

DUPLICATE_WINDOW_S = 120.0
CREATE_TRIES, CREATE_WAIT_S = 10, 0.2
NO_STREAM = 10059
# The key, in the stream's metadata, of an id that stays the same for the stream's life and in its backups.
LOG_ID = "turnlog.log"
NOT_DELETED = (10043, 10057)  # error codes for a missing message, in the middle of a stream and at its ends
_COMPARED = (
    "subjects",
    "retention",
    "storage",
    "discard",
    "num_replicas",
    "allow_atomic",
    "max_msgs",
    "max_age",
    "max_msgs_per_subject",
)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options for creating the stream. partitions: their number, fixed for the stream's life because it maps
    threads to partitions. max_bytes: -1 keeps the stream's value."""

    partitions: int = 1
    replicas: int = 1
    max_bytes: int = -1


def stream_config(options: StreamOptions) -> StreamConfig:
    """Returns the configuration of the log's stream. A full stream refuses appends (DiscardPolicy.NEW), so old events
    are never dropped for new ones."""
    source, destination = stored_transform(options.partitions)
    return StreamConfig(
        name=STREAM,
        description="turnlog: every turn and everything derived from it",
        subjects=[PUBLISHED],
        subject_transform=SubjectTransform(src=source, dest=destination),
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,
        num_replicas=options.replicas,
        max_bytes=options.max_bytes,
        max_msgs=-1,
        max_age=0,
        max_msgs_per_subject=-1,
        duplicate_window=DUPLICATE_WINDOW_S,
        allow_atomic=True,
        allow_direct=True,
        deny_delete=False,
        metadata={"turnlog.partitions": str(options.partitions)},
    )


def keys_config(options: StreamOptions) -> StreamConfig:
    """Returns the configuration of the stream of users' keys: that of the log with other names and without a size
    limit. A user needs a few hundred bytes."""
    return replace(
        stream_config(options),
        name=KEYS_STREAM,
        description="turnlog: the keys of users' words, encrypted by the key-encryption key",
        subjects=[KEYS],
        subject_transform=None,
        max_bytes=-1,
        metadata=None,
    )


async def ensure_stream(js: JetStreamContext, options: StreamOptions) -> int:
    """Creates the log's stream or checks the existing one; returns its number of partitions.

    Of an existing stream only the size limit and the id are updated, which never removes messages. Raises StreamDrift.
    """
    config = (info := await ensured(js, stream_config(options))).config
    wanted = replace(config, metadata={**(config.metadata or {}), LOG_ID: log_id(info)})
    if options.max_bytes > 0:
        wanted = replace(wanted, max_bytes=options.max_bytes)
    if wanted != config:
        await js.update_stream(wanted)
    return options.partitions


def log_id(info: StreamInfo) -> str:
    """Returns the id in the stream's metadata. Without one, returns a UUID that is computed from the stream's creation
    time, so that processes that start together choose the same id."""
    stored = (info.config.metadata or {}).get(LOG_ID)
    return stored or str(uuid5(NAMESPACE_OID, f"{info.config.name} {info.created}"))


async def ensured(js: JetStreamContext, wanted: StreamConfig) -> StreamInfo:
    """Returns the stream, after creating it if there is none. Raises StreamDrift if a compared setting differs."""
    try:
        info = await js.stream_info(str(wanted.name))
    except NotFoundError:
        info = await _created(js, wanted)
    _refuse_drift(info, wanted)
    return info


async def overwrite(js: JetStreamContext, stream: str, seq: int) -> bool:
    """Deletes one message and overwrites its bytes on disk; returns False if it no longer exists.

    Raises errors of NATS.
    """
    try:
        return bool(await js.delete_msg(stream, seq))
    except APIError as error:
        if error.err_code not in NOT_DELETED:
            raise
        try:
            await js.get_msg(stream, seq)
        except NotFoundError:
            return False
        raise


@retry(
    retry=retry_if_exception_type(ServerError),
    stop=stop_after_attempt(CREATE_TRIES),
    wait=wait_fixed(CREATE_WAIT_S),
    reraise=True,
)
async def _created(js: JetStreamContext, config: StreamConfig) -> StreamInfo:
    """Creates the stream. It retries, because the server may still be clearing the folder of a deleted stream of the
    same name."""
    return await js.add_stream(config)


def _refuse_drift(info: StreamInfo, wanted: StreamConfig) -> None:
    actual = info.config
    differing = [
        f"{key} is {getattr(actual, key)!r}, not {getattr(wanted, key)!r}"
        for key in _COMPARED
        if getattr(actual, key) != getattr(wanted, key)
    ]
    is_dest = actual.subject_transform.dest if actual.subject_transform else None
    if wanted.subject_transform and is_dest != wanted.subject_transform.dest:
        differing.append(f"subject transform is {is_dest!r}, wanted {wanted.subject_transform.dest!r}")
    if differing:
        raise StreamDrift(
            f"stream {wanted.name} differs from this turnlog's settings: {'; '.join(differing)}. "
            "Set TURNLOG_PARTITIONS and TURNLOG_REPLICAS as the stream has them, "
            "or change the stream with `nats stream edit`."
        )
