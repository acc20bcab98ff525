"""The options that commands share. `add` and `group` give them to each command; `given` has their values."""

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import Parameter
from typing import Annotated, Any

import typer

Tenant = Annotated[str | None, typer.Option(help="Tenant; TURNLOG_TENANT or 'default'.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
_TENANT = Parameter("tenant", Parameter.KEYWORD_ONLY, default=None, annotation=Tenant)
_JSON = Parameter("json", Parameter.KEYWORD_ONLY, default=False, annotation=Json)


@dataclass(frozen=True, slots=True)
class Given:
    """tenant: None where the command takes none, or got none."""

    json: bool = False
    tenant: str | None = None


_given: ContextVar[Given] = ContextVar("given")


def given() -> Given:
    """The shared options of the command that runs."""
    return _given.get(Given())


def add(app: typer.Typer, function: Callable[..., None], name: str | None = None, *, tenant: bool = True) -> None:
    """Makes a function a command of the app: its parameters are options, and --json and, unless False, --tenant."""
    app.command(name)(_with_shared(function, tenant))


def group(
    app: typer.Typer, name: str, help: str, listed: Callable[..., None] | None = None, *, tenant: bool = True
) -> typer.Typer:
    """A command with commands below it. listed: what it does by itself, with options as those of `add`."""
    made = typer.Typer(help=help, no_args_is_help=listed is None, invoke_without_command=listed is not None)
    if listed is not None:
        made.callback()(_unless_below(_with_shared(listed, tenant)))
    app.add_typer(made, name=name)
    return made


def _with_shared(function: Callable[..., None], tenant: bool) -> Callable[..., None]:
    shared = [_TENANT, _JSON] if tenant else [_JSON]

    def command(**options: Any) -> None:
        _given.set(Given(**{one.name: options.pop(one.name) for one in shared}))
        function(**options)

    return _wrapped(command, function, shared)


def _unless_below(function: Callable[..., None]) -> Callable[..., None]:
    """Does nothing where a command below the group follows."""

    def callback(context: typer.Context, **options: Any) -> None:
        if context.invoked_subcommand is None:
            function(**options)

    return _wrapped(callback, function, [Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)])


def _wrapped(made: Callable[..., None], function: Callable[..., None], more: list[Parameter]) -> Callable[..., None]:
    """`made` with a function's name, docstring and parameters, and more parameters, where typer looks for them."""
    known = inspect.signature(function)
    functools.update_wrapper(made, function)
    vars(made)["__signature__"] = known.replace(parameters=[*known.parameters.values(), *more])
    return made
