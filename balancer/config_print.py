"""The settings in force as TOML, which gives the same settings when it is read again."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from libra.balancer.config import Loaded
from libra.balancer.config_fields import declared, groups, nested_types, tables
from libra.balancer.config_values import masked, to_toml


def print_config(loaded: Loaded) -> str:
    """Return every setting in force with its source; secrets are masked, and commented out."""
    lines: list[str] = []
    for group, owner in groups().items():
        lines += ["", f"# {(owner.__doc__ or group).partition(chr(10))[0]}"]
        values = getattr(loaded.settings, group)
        for name, setting in declared().items():
            if setting.group == group:
                origin = loaded.origins.get(name, "default")
                lines.append(_line(name, getattr(values, name), origin, secret=setting.secret))
    for name, table in tables().items():
        origin = loaded.origins.get(name, "default")
        lines += _table(name, getattr(getattr(loaded.settings, table.group), name), origin)
    return "\n".join(lines[1:]) + "\n"


def _line(name: str, value: Any, origin: str, *, secret: bool = False) -> str:
    if value is None:
        return f"# {name} is not set"
    shown = masked(value, secret=secret)
    # Read again, a mask would be taken for the secret.
    hidden = "# " if shown != value else ""
    return f"{hidden}{name} = {to_toml(shown)}  # {origin}"


def _table(path: str, values: Any, origin: str) -> Iterator[str]:
    inner = nested_types(type(values))
    yield from ("", f"[{path}]  # {origin}")
    for field in dataclasses.fields(values):
        if field.name not in inner:
            value = getattr(values, field.name)
            yield f"{field.name} = {to_toml(value)}"
    for name in inner:
        yield from _table(f"{path}.{name}", getattr(values, name), origin)
