"""The options that all commands share. `with_shared` adds them to a command; `given` returns their values."""

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

Tenant = Annotated[str | None, typer.Option(help="Tenant. Default: TURNLOG_TENANT or 'default'.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout.")]
_TENANT = Parameter("tenant", Parameter.KEYWORD_ONLY, default=None, annotation=Tenant)
_JSON = Parameter("json", Parameter.KEYWORD_ONLY, default=False, annotation=Json)


_COMPLETED = {"user": known_users, "thread": known_threads, "conversation": known_threads}


@dataclass(frozen=True, slots=True)
class Given:
    """The values of the shared options. tenant: None if the command has no such option, or got none."""

    json: bool = False
    tenant: str | None = None


_given: ContextVar[Given] = ContextVar("given")


def given() -> Given:
    """Returns the shared options of the running command."""
    return _given.get(Given())


def commands() -> typer.Typer:
    """Returns a typer application for a module's commands; the module calls it `app`."""
    return typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)


def group(app: typer.Typer, name: str, help: str) -> typer.Typer:
    """Adds a group of commands, and returns the application to add them to."""
    below = typer.Typer(help=help, no_args_is_help=True)
    app.add_typer(below, name=name)
    return below


def with_shared(
    function: Callable[..., None], like: Callable[..., Any], hidden: int, tenant: bool
) -> Callable[..., None]:
    """Returns the function with the signature that typer reads. Name, docstring and parameters are those of `like`,
    without the first `hidden` parameters; --json and, unless `tenant` is False, --tenant are added. `given` returns the
    values of these two."""
    shared = [_TENANT, _JSON] if tenant else [_JSON]

    def command(**options: Any) -> None:
        _given.set(Given(**{option.name: options.pop(option.name) for option in shared}))
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
    """Makes the function a group's own command, which does nothing if a command of the group follows."""

    def callback(context: typer.Context, **options: Any) -> None:
        if context.invoked_subcommand is None:
            function(**options)

    functools.update_wrapper(callback, function)
    known = inspect.signature(function)
    context = Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)
    vars(callback)["__signature__"] = known.replace(parameters=[*known.parameters.values(), context])
    return callback
