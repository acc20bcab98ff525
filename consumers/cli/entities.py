"""The commands `entities`: people and things that a user speaks of; list, add, update."""

from collections.abc import Callable, Iterator, Sequence
from json import loads
from typing import Annotated, Any

import typer

from turnlog.agent.memory import entities
from turnlog.consumers.cli.console import BadOption, Result
from turnlog.consumers.cli.options import commands, group
from turnlog.consumers.cli.runner import Runtime, command, listed
from turnlog.consumers.cli.text_tables import table
from turnlog.events.contracts.base import is_undated

User = Annotated[str, typer.Option("--user", "-u", help="Whose.")]
Name = Annotated[str, typer.Argument(help="The name that the user gives it.")]
Type = Annotated[str, typer.Option("--type", help="PERSON, SCHOOL, EVENT, TOPIC or another.")]
Description = Annotated[str | None, typer.Option(help="What is known about it, in a sentence.")]
Attributes = Annotated[list[str] | None, typer.Option("--attribute", help="NAME=VALUE; a value may be JSON.")]
Relations = Annotated[list[str] | None, typer.Option("--relation", help="TYPE=TARGET, such as friend_of=Mia.")]

app = commands()
below = group(app, "entities", "People, schools, events and topics that a user speaks of.")


def _named(user: str | None) -> None:
    if user is None:
        raise typer.BadParameter("say whose entities", param_hint="--user")


@listed(below, checks=_named)
async def list_(
    rt: Runtime,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Whose.")] = None,
    type_: Annotated[str | None, typer.Option("--type", help="Only this type: PERSON, SCHOOL, EVENT, TOPIC, …")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 100,
) -> Result:
    """List people, schools, events and topics that a user speaks of, most mentioned first."""
    known = await entities.list_entities(rt, rt.settings.tenant, user or "", type_, limit)
    return table(known, _COLUMNS, f"{user} has no entities")


@command(below)
async def add(
    rt: Runtime,
    name: Name,
    user: User,
    type_: Type,
    description: Description = None,
    attribute: Attributes = None,
    relation: Relations = None,
) -> Result:
    """Add an entity by hand."""
    entity = entities.EntityInput(type_, name, description, _attributes(attribute), _relations(relation))
    made = await entities.add_entity(rt, rt.settings.tenant, user, entity)
    return Result(made, table([made], _COLUMNS).lines)


@command(below)
async def update(
    rt: Runtime,
    name: Name,
    user: User,
    type_: Type,
    description: Description = None,
    attribute: Attributes = None,
    relation: Relations = None,
) -> Result:
    """Add to an entity: a description or an attribute replaces the earlier one, relations add up."""
    entity = entities.EntityInput(type_, name, description, _attributes(attribute), _relations(relation))
    made = await entities.update_entity(rt, rt.settings.tenant, user, entity)
    return Result(made, table([made], _COLUMNS).lines)


def _attributes(pairs: Sequence[str] | None) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for name, value in _pairs("--attribute", pairs):
        try:
            attributes[name] = loads(value)
        except ValueError:
            attributes[name] = value
    return attributes


def _relations(pairs: Sequence[str] | None) -> list[tuple[str, str]]:
    return list(_pairs("--relation", pairs))


def _pairs(option: str, pairs: Sequence[str] | None) -> Iterator[tuple[str, str]]:
    for pair in pairs or ():
        name, sign, value = pair.partition("=")
        if not sign or not name.strip() or not value.strip():
            raise BadOption(f"{option} {pair!r} cannot be read; write NAME=VALUE")
        yield name.strip(), value.strip()


def _about(entity: "entities.EntityFound") -> str:
    """Returns an entity's description, attributes and relations, one per line."""
    attributes = (f"{name}: {value}" for name, value in entity.attributes.items())
    relations = (f"{relation['type']} → {relation['target']}" for relation in entity.relations)
    return "\n".join(filter(None, (" ".join((entity.description or "").split()), *attributes, *relations)))


_COLUMNS: dict[str, Callable[["entities.EntityFound"], Any]] = {
    "TYPE": lambda entity: entity.type,
    "NAME": lambda entity: entity.name,
    "MENTIONS": lambda entity: entity.mention_count,
    "LAST": lambda entity: "" if is_undated(entity.last_seen_at) else f"{entity.last_seen_at:%F}",
    "ABOUT": _about,
}
