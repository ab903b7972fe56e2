"""Options that commands of the corpus share, and commands made of several functions' options."""

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

RedoOption = Annotated[
    bool,
    typer.Option("--redo", help="Discard finished work that was made with other options, instead of refusing to run."),
]


def typer_command(
    call: Callable[..., None], like: Callable[..., Any], parameters: Iterable[inspect.Parameter]
) -> Callable[..., None]:
    """`call`, which takes keyword arguments, as a command with the name and help of `like` and these parameters."""
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    call.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    call.__name__, call.__doc__ = like.__name__, like.__doc__
    return call


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def option_groups(**groups: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of other functions, and for each of its parameters named here what one returns."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def call(**values: Any) -> None:
            made = {
                name: group(**{option: values.pop(option) for option in parameters_of(group)})
                for name, group in groups.items()
            }
            command(**values, **made)

        parameters: list[inspect.Parameter] = []
        for name, parameter in parameters_of(command).items():
            parameters += parameters_of(groups[name]).values() if name in groups else [parameter]
        return typer_command(call, command, parameters)

    return decorate
