"""Reads conversations that branch at edited or repeated messages; imports the branch that was shown last."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from turnlog.agent.operations.importers.imported import (
    EMPTY,
    MALFORMED,
    Conversation,
    Defaults,
    Item,
    Rejected,
    Repeated,
    Skipped,
    ThreadNames,
    reason_of,
)
from turnlog.agent.operations.importers.jsontext import Record
from turnlog.events.contracts import Block, Content, TextBlock, TurnRecorded

OTHER_BRANCH = "on a branch that was not shown last"
Message = dict[str, Any]


def path_to(leaf: Any, messages: Mapping[str, Message], parent: str) -> list[Message]:
    """Returns the messages from the root to `leaf`. parent: the field that names the previous message.

    The path ends where parents form a loop.
    """
    path: dict[str, Message] = {}
    while isinstance(leaf, str) and leaf in messages and leaf not in path:
        path[leaf] = messages[leaf]
        leaf = messages[leaf].get(parent)
    return list(reversed(path.values()))


class Fields(NamedTuple):
    """The names that a product gives to the fields of a message."""

    id: str
    parent: str
    time: str


class Tree(NamedTuple):
    """One exported conversation. id and label are ignored if they are not text.

    leaf: id of the last message that was shown; None if the export does not name it, which means the last message.
    model: the model of answers that do not name one.
    """

    id: Any
    label: Any
    start: Any
    messages: list[Any]
    leaf: Any = None
    model: Any = None


TreeOf = Callable[[Message], Tree]
DataOf = Callable[[Message, str | None], TurnRecorded | None]


def read_trees(
    records: Iterable[Record], names: ThreadNames, defaults: Defaults, fields: Fields, tree_of: TreeOf, data_of: DataOf
) -> Iterator[Item]:
    """Yields the turns of every conversation in the records.

    tree_of and data_of convert a conversation and a message of one product; they may raise the errors in MALFORMED, and
    data_of returns None for an empty message.
    """
    for record in records:
        try:
            if record.error or not isinstance(record.value, dict):
                raise ValueError(record.error or "a conversation must be an object")
            tree = tree_of(record.value)
            label = tree.label if isinstance(tree.label, str) and tree.label else None
            opened = Conversation(defaults, names.next(tree.id), label, None, tree.start)
        except MALFORMED as error:
            yield Rejected(record.where, reason_of(error))
            continue
        if not tree.messages:
            yield Skipped(opened.thread, "without messages")
        yield from _items(opened, tree, fields, data_of)


def _items(opened: Conversation, tree: Tree, fields: Fields, data_of: DataOf) -> Iterator[Item]:
    messages: dict[str, Message] = {}
    for number, message in enumerate(tree.messages, 1):
        refused = _refused(message, fields.id, messages, f"{opened.thread}, message {number}")
        if refused is not None:
            yield refused
        else:
            messages[message[fields.id]] = message
    shown = _shown(messages, tree.leaf, fields.parent)
    for message in shown:
        yield _item(opened, message, fields, data_of, tree.model if isinstance(tree.model, str) else None)
    on_path = {message[fields.id] for message in shown}
    for key in messages:
        if key not in on_path:
            yield Skipped(f"{opened.thread}, message {key}", OTHER_BRANCH)


def _refused(message: Any, id: str, earlier: Mapping[str, Message], where: str) -> Rejected | Repeated | None:
    if not isinstance(message, dict):
        return Rejected(where, f"a message must be an object, not {type(message).__name__}")
    key = message.get(id)
    if not isinstance(key, str) or not key:
        return Rejected(where, f"the message has no text `{id}`")
    if key not in earlier:
        return None
    return Repeated(where, key) if earlier[key] == message else Rejected(where, f"{key} is another message's `{id}`")


def _shown(messages: Mapping[str, Message], leaf: Any, parent: str) -> list[Message]:
    """Returns the branch that ends in the leaf; if no message names its predecessor, all messages in order."""
    parents = {message.get(parent) for message in messages.values() if isinstance(message.get(parent), str)}
    if not parents & messages.keys():
        return list(messages.values())
    known = isinstance(leaf, str) and leaf in messages
    return path_to(leaf if known else list(messages)[-1], messages, parent)


def _item(opened: Conversation, message: Message, fields: Fields, data_of: DataOf, model: str | None) -> Item:
    opened.number += 1
    where = f"{opened.thread}, message {message[fields.id]}"
    try:
        data = data_of(message, model)
        if data is None:
            return Skipped(where, EMPTY)
        return opened.turn(data, message.get(fields.time), message[fields.id])
    except MALFORMED as error:
        return Rejected(where, reason_of(error))


def as_content(blocks: Iterable[Block]) -> Content:
    """Returns the blocks without empty texts; a single text as a string."""
    kept = tuple(block for block in blocks if not isinstance(block, TextBlock) or block.text.strip())
    return kept[0].text if len(kept) == 1 and isinstance(kept[0], TextBlock) else kept
