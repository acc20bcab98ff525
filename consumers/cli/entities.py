"""entities: whom and what a user speaks of (P8); list, add, update."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from json import loads
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnlog.consumers.cli.console import BadOption
from turnlog.consumers.cli.options import add, group
from turnlog.consumers.cli.runner import serve
from turnlog.events.contracts.base import is_undated

if TYPE_CHECKING:
    from turnlog.agent.runtime import Runtime
    from turnlog.agent.use_cases.entities import EntityFound


User = Annotated[str, typer.Option("--user", "-u", help="Whose.")]
Name = Annotated[str, typer.Argument(help="As the user calls it.")]
Type = Annotated[str, typer.Option("--type", help="PERSON, SCHOOL, EVENT, TOPIC or another.")]
Description = Annotated[str | None, typer.Option(help="What is known of it, in a sentence.")]
Attributes = Annotated[list[str] | None, typer.Option("--attribute", help="NAME=VALUE; a value may be JSON.")]
Relations = Annotated[list[str] | None, typer.Option("--relation", help="TYPE=TARGET, such as friend_of=Mia.")]


def register(app: typer.Typer) -> None:
    entities = group(app, "entities", "People, schools, events and topics of a user.", listed)
    add(entities, _writer("Write an entity by hand.", is_new=True), "add")
    replaces = "Add to an entity: a description or an attribute replaces the earlier one, relations add up."
    add(entities, _writer(replaces, is_new=False), "update")


def listed(
    user: Annotated[str | None, typer.Option("--user", "-u", help="Whose.")] = None,
    type_: Annotated[str | None, typer.Option("--type", help="Only these: PERSON, SCHOOL, EVENT, TOPIC, …")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 100,
) -> None:
    """People, schools, events and topics that a user speaks of, most mentioned first."""
    if user is None:
        raise typer.BadParameter("say whose entities", param_hint="--user")
    whose = user
    from turnlog.agent.use_cases.entities import list_entities

    def show(found: "list[EntityFound]") -> Iterator[str]:
        if not found:
            yield f"{whose} has no entities"
        for one in found:
            yield from entity_lines(one)

    serve(lambda rt: list_entities(rt, rt.settings.tenant, whose, type_, limit), show, projecting=False)


def _writer(help: str, is_new: bool) -> Callable[..., None]:
    """`add` or `update`: they have the same options."""

    def write(
        name: Name,
        user: User,
        type_: Type,
        description: Description = None,
        attribute: Attributes = None,
        relation: Relations = None,
    ) -> None:
        from turnlog.agent.use_cases.entities import EntityInput, add_entity, update_entity

        def use(runtime: "Runtime") -> "Awaitable[EntityFound]":
            given = EntityInput(type_, name, description, _attributes(attribute), _relations(relation))
            change = add_entity if is_new else update_entity
            return change(runtime, runtime.settings.tenant, user, given)

        serve(use, entity_lines)

    write.__doc__ = help
    return write


def _attributes(given: Sequence[str] | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in _pairs("--attribute", given):
        try:
            found[name] = loads(value)
        except ValueError:
            found[name] = value
    return found


def _relations(given: Sequence[str] | None) -> list[tuple[str, str]]:
    return list(_pairs("--relation", given))


def _pairs(option: str, given: Sequence[str] | None) -> Iterator[tuple[str, str]]:
    for one in given or ():
        name, sign, value = one.partition("=")
        if not sign or not name.strip() or not value.strip():
            raise BadOption(f"{option} {one!r} cannot be read; write NAME=VALUE")
        yield name.strip(), value.strip()


def entity_lines(one: "EntityFound") -> Iterator[str]:
    """An entity with its attributes and relations."""
    said = f"  {' '.join(one.description.split())}" if one.description else ""
    last = "" if is_undated(one.last_seen_at) else f", last {one.last_seen_at:%Y-%m-%d}"
    yield f"{one.type:<12}  {one.name}{said}  ({one.mention_count}×{last})"
    yield from (f"          {name}: {value}" for name, value in one.attributes.items())
    yield from (f"          {relation['type']} → {relation['target']}" for relation in one.relations)
