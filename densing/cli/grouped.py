"""Groups of options: a dataclass in a command's signature stands for its fields' options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import Any, get_type_hints


def _parameters(group: Any) -> dict[str, Parameter]:
    """Return a group's options; a field that is not declared as one keeps its default."""
    hints = get_type_hints(group, include_extras=True)
    parameters = {}
    for field in fields(group):
        if hasattr(hints[field.name], "__metadata__"):
            made = field.default if field.default_factory is MISSING else field.default_factory()
            default = Parameter.empty if made is MISSING else made
            parameters[field.name] = Parameter(
                field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]
            )
    return parameters


def grouped(*runs: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flat signature, as typer reads it, and call it with groups as objects.

    Parameters
    ----------
    *runs : str
        Options that follow one another in the help although several groups declare them:
        ``"pp nodes"`` lists ``--nodes`` behind ``--pp``. Others are listed as they are declared.
    """

    def flat(command: Callable[..., None]) -> Callable[..., None]:
        options: dict[str, Parameter] = {}
        groups: dict[str, tuple[Any, dict[str, Parameter]]] = {}
        own = signature(command, eval_str=True)
        for name, parameter in own.parameters.items():
            if is_dataclass(kind := parameter.annotation):
                groups[name] = (kind, _parameters(kind))
                options |= groups[name][1]
            else:
                # By keyword only, so that an option without a default may stand behind one with.
                options[name] = parameter.replace(kind=Parameter.KEYWORD_ONLY)
        order = list(options)
        for before, *names in map(str.split, runs):
            for name in names:
                order.remove(name)
                order.insert(order.index(before) + 1, name)
                before = name

        @wraps(command)
        def call(**values: Any) -> None:
            objects = {
                name: kind(**{option: values.pop(option) for option in parameters})
                for name, (kind, parameters) in groups.items()
            }
            command(**objects, **values)

        flattened = own.replace(parameters=[options[name] for name in order])
        call.__signature__ = flattened  # type: ignore[attr-defined]
        return call

    return flat


def given(options: Any) -> list[str]:
    """Return the names of the options set in a group; empty is set where the default is not."""
    hints = get_type_hints(type(options), include_extras=True)
    values = [(field, getattr(options, field.name)) for field in fields(options)]
    # typer keeps an option's first name where its default could stand; without one it is the field's.
    names = {name: hint.__metadata__[0].default for name, hint in hints.items() if hasattr(hint, "__metadata__")}
    return [
        f"--{field.name.replace('_', '-')}" if names[field.name] is ... else names[field.name]
        for field, value in values
        if field.default is not MISSING and value != field.default and (value or field.default)
    ]
