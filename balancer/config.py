"""The settings of ``libra serve``: a flag goes before a variable, that before the file.

``--port 1``, ``LIBRA_PORT=1`` and ``port = 1`` in the file that ``--config`` or ``LIBRA_CONFIG``
names are the same setting. How jobs are judged has a table of its own in the file, ``[job]``.
"""

import argparse
import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from libra.balancer.config_fields import (
    Declared,
    Table,
    declared,
    groups,
    nested_types,
    simple_kind,
    tables,
)
from libra.balancer.config_sources import (
    CONFIG_VARIABLE,
    check_key,
    our_variables,
    read_file,
)
from libra.balancer.config_values import from_text, from_toml
from libra.balancer.settings import ServeSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """Settings, and where each of them that is no default comes from."""

    settings: ServeSettings
    origins: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Given:
    """A value and its source; ``label`` stands before the value where it is complained of."""

    value: Any
    origin: str
    label: str


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare a flag for every setting."""
    parser.add_argument(
        "--config", metavar="FILE", help=f"TOML file of settings (default: ${CONFIG_VARIABLE})"
    )
    for group, owner in groups().items():
        title = (owner.__doc__ or group).partition("\n")[0].rstrip(".")
        section = parser.add_argument_group(title)
        for setting in declared().values():
            if setting.group == group:
                _add_flag(section, setting)


def load(flags: Mapping[str, Any], environ: Mapping[str, str]) -> Loaded:
    """Return the settings that flags (None where not given), environment and file make.

    Raises:
        ValueError: a setting is wrong; the message names it, its value and its source.
    """
    path = flags.get("config") or environ.get(CONFIG_VARIABLE)
    content = read_file(path) if path else {}
    variables = our_variables(environ)
    given: dict[str, _Given] = {}
    for name, setting in declared().items():
        if flags.get(name) is not None:
            given[name] = _from_flag(setting, flags[name])
        elif name in variables:
            given[name] = _from_variable(setting, variables[name])
        elif name in content:
            given[name] = _from_file(setting, content[name], str(path))
    chosen = {
        name: _nested(table, content[name], str(path))
        for name, table in tables().items()
        if name in content
    }
    built = {group: _build(group, given, chosen) for group in groups()}
    origins = {name: value.origin for name, value in given.items()}
    return Loaded(
        settings=ServeSettings(**built), origins=origins | dict.fromkeys(chosen, str(path))
    )


def _add_flag(section: Any, setting: Declared) -> None:
    if setting.kind is bool:
        section.add_argument(
            setting.flag, action=argparse.BooleanOptionalAction, default=None, help=setting.help
        )
        return
    metavar = f"{{{','.join(setting.choices)}}}" if setting.choices else None
    text = f"{setting.help} (default: {shown_default(setting)})".replace("%", "%%")
    many = setting.kind not in (str, int, float)
    action = "append" if many else "store"
    section.add_argument(setting.flag, metavar=metavar, help=text, action=action)


def shown_default(setting: Declared) -> str:
    """Return a setting's default as people write it."""
    owner = groups()[setting.group]
    default = next(f.default for f in dataclasses.fields(owner) if f.name == setting.name)
    if default is dataclasses.MISSING:
        return "in the user's state directory" if setting.name == "store" else "made at the start"
    if isinstance(default, tuple):
        return ",".join(map(str, default)) or "none"
    if isinstance(default, bool):
        return str(default).lower()
    return "none" if default in ("", None) else str(default)


def _from_flag(setting: Declared, flag: Any) -> _Given:
    if isinstance(flag, bool):
        origin = setting.flag if flag else "--no-" + setting.flag[2:]
        return _Given(value=flag, origin=origin, label=f"{setting.flag}=")
    text = ",".join(flag) if isinstance(flag, list) else str(flag)
    return _parsed(setting, text, setting.flag)


def _from_variable(setting: Declared, text: str) -> _Given:
    return _parsed(setting, text, setting.variable)


def _parsed(setting: Declared, text: str, origin: str) -> _Given:
    try:
        value = from_text(setting.kind, text, setting.choices)
    except ValueError as error:
        shown = "(hidden)" if setting.secret else text
        raise ValueError(f"{origin}={shown}: {error}") from None
    return _Given(value=value, origin=origin, label=f"{origin}=")


def _from_file(setting: Declared, value: Any, path: str) -> _Given:
    label = f"{path}: {setting.name}="
    try:
        return _Given(
            value=from_toml(setting.kind, value, setting.choices), origin=path, label=label
        )
    except ValueError as error:
        shown = "(hidden)" if setting.secret else repr(value)
        raise ValueError(f"{label}{shown}: {error}") from None


def _nested(table: Table, content: Any, path: str) -> Any:
    """Build a dataclass from a file's table; deeper ones are tables of that table."""
    where = f"{path}: [{table.path}]"
    if not isinstance(content, dict):
        raise ValueError(f"{path}: {table.path}={content!r}: must be a table, [{table.path}]")
    hints, inner = get_type_hints(table.type), nested_types(table.type)
    values: dict[str, Any] = {}
    for key, value in content.items():
        check_key(key, hints, where)
        if key in inner:
            below = Table(group=table.group, path=f"{table.path}.{key}", type=inner[key])
            values[key] = _nested(below, value, path)
            continue
        try:
            values[key] = from_toml(simple_kind(hints[key])[0], value)
        except ValueError as error:
            raise ValueError(f"{where} {key}={value!r}: {error}") from None
    try:
        return table.type(**values)
    except ValueError as error:
        raise ValueError(f"{where} {error}") from None


def _build(group: str, given: Mapping[str, _Given], chosen: Mapping[str, Any]) -> Any:
    own = {name: one for name, one in given.items() if declared()[name].group == group}
    nested = {name: value for name, value in chosen.items() if tables()[name].group == group}
    try:
        return groups()[group](**{name: one.value for name, one in own.items()}, **nested)
    except ValueError as error:
        raise ValueError(_with_source(str(error), own)) from None


def _with_source(message: str, given: Mapping[str, _Given]) -> str:
    """Say in a complaint of ``name=value: ...`` where the value came from."""
    found = re.match(r"(\w+)=", message)
    source = given.get(found[1]) if found else None
    return source.label + message[found.end() :] if found and source else message
