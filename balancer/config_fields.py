"""What can be set: every ``option`` of the groups of ``ServeSettings``, found by looking."""

import dataclasses
import types
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from libra.balancer.settings import ServeSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """One setting.

    Attributes:
        group: the field of ``ServeSettings`` that holds it.
        kind: its type without ``None``: str, int, float, bool, or a tuple of one of them.
        nullable: may it be ``None``?
        choices: allowed words; empty allows any.
    """

    group: str
    name: str
    kind: Any
    nullable: bool
    help: str
    secret: bool
    choices: tuple[str, ...]

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "LIBRA_" + self.name.upper()


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Settings inside settings, which only a file sets; ``path`` leads there, ``job.decide``."""

    group: str
    path: str
    type: type[Any]


@cache
def groups() -> dict[str, type[Any]]:
    """Return the dataclass of each group."""
    hints = get_type_hints(ServeSettings)
    return {field.name: hints[field.name] for field in dataclasses.fields(ServeSettings)}


@cache
def declared() -> dict[str, Declared]:
    """Return every setting by name; a name is one setting, whatever group it is in."""
    found: dict[str, Declared] = {}
    for group, owner in groups().items():
        hints = get_type_hints(owner)
        for field in dataclasses.fields(owner):
            if "help" in field.metadata:
                assert field.name not in found, f"{field.name} is declared twice"
                found[field.name] = _declare(group, field, hints[field.name])
    return found


@cache
def tables() -> dict[str, Table]:
    """Return the tables at the top of a file, by name."""
    return {
        name: Table(group=group, path=name, type=kind)
        for group, owner in groups().items()
        for name, kind in nested_types(owner).items()
    }


def nested_types(owner: type[Any]) -> dict[str, type[Any]]:
    """Return the fields of a dataclass that hold another one."""
    hints = get_type_hints(owner)
    return {
        field.name: hints[field.name]
        for field in dataclasses.fields(owner)
        if "help" not in field.metadata and dataclasses.is_dataclass(hints[field.name])
    }


def simple_kind(hint: Any) -> tuple[Any, bool]:
    """Return a type without ``None`` and its ``Literal`` taken off, and whether None is allowed."""
    arguments = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        rest = [argument for argument in arguments if argument is not type(None)]
        return simple_kind(rest[0])[0], len(rest) < len(arguments)
    if get_origin(hint) is Literal:
        return type(arguments[0]), False
    return hint, False


def _declare(group: str, field: "dataclasses.Field[Any]", hint: Any) -> Declared:
    kind, nullable = simple_kind(hint)
    words = get_args(hint) if get_origin(hint) is Literal else ()
    return Declared(
        group=group,
        name=field.name,
        kind=kind,
        nullable=nullable,
        help=field.metadata["help"],
        secret=field.metadata["secret"],
        choices=field.metadata["choices"] or words,
    )
