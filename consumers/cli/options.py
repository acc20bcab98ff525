"""The options that commands share. `add` and `group` give them to each command; `given` has their values."""

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import Parameter
from typing import Annotated, Any

import typer
from typer.models import ParameterInfo

from turnlog.consumers.cli.completion import known_threads, known_users

Tenant = Annotated[str | None, typer.Option(help="Tenant; TURNLOG_TENANT or 'default'.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
_TENANT = Parameter("tenant", Parameter.KEYWORD_ONLY, default=None, annotation=Tenant)
_JSON = Parameter("json", Parameter.KEYWORD_ONLY, default=False, annotation=Json)


_COMPLETED = {"user": known_users, "thread": known_threads, "conversation": known_threads}


@dataclass(frozen=True, slots=True)
class Given:
    """The options that every command takes. tenant: None where the command takes none, or got none."""

    json: bool = False
    tenant: str | None = None


_given: ContextVar[Given] = ContextVar("given")


def given() -> Given:
    """Returns the shared options of the command that runs."""
    return _given.get(Given())


def commands() -> typer.Typer:
    """Returns what a module's commands are added to; its name in the module is `app`."""
    return typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)


def group(app: typer.Typer, name: str, help: str) -> typer.Typer:
    """Adds a command that has commands below it, which are added to the result."""
    below = typer.Typer(help=help, no_args_is_help=True)
    app.add_typer(below, name=name)
    return below


def with_shared(
    function: Callable[..., None], like: Callable[..., Any], hidden: int, tenant: bool
) -> Callable[..., None]:
    """Returns the function as typer reads it: with --json and, unless `tenant` is False, --tenant, whose values `given`
    returns, and otherwise with the name, docstring and parameters of `like`, without the first `hidden` of them."""
    shared = [_TENANT, _JSON] if tenant else [_JSON]

    def command(**options: Any) -> None:
        _given.set(Given(**{one.name: options.pop(one.name) for one in shared}))
        function(**options)

    functools.update_wrapper(command, like)
    known = inspect.signature(like)
    parameters = [*known.parameters.values()][hidden:]
    for parameter in parameters:
        for about in getattr(parameter.annotation, "__metadata__", ()):
            if parameter.name in _COMPLETED and isinstance(about, ParameterInfo):
                about.autocompletion = _COMPLETED[parameter.name]
    vars(command)["__signature__"] = known.replace(parameters=[*parameters, *shared], return_annotation=None)
    return command


def unless_below(function: Callable[..., None]) -> Callable[..., None]:
    """Returns a group's own command, which does nothing where a command below the group follows."""

    def callback(context: typer.Context, **options: Any) -> None:
        if context.invoked_subcommand is None:
            function(**options)

    functools.update_wrapper(callback, function)
    known = inspect.signature(function)
    context = Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)
    vars(callback)["__signature__"] = known.replace(parameters=[*known.parameters.values(), context])
    return callback
