"""Where settings come from: the variables and the file that are ours, and near misses of them."""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from libra.balancer.config_fields import declared, tables

CONFIG_VARIABLE = "LIBRA_CONFIG"
# Read by agents, by commands or by tests: a balancer may find them in its environment.
OTHER_VARIABLES = frozenset(
    {
        *("LIBRA_BALANCER", "LIBRA_JOB", "LIBRA_RUN", "LIBRA_ATTEMPT", "LIBRA_AGENT"),
        *("LIBRA_PP_RANK", "LIBRA_RELAY", "LIBRA_TOKEN", "LIBRA_TOKEN_FILE", "LIBRA_CA_FILE"),
        *("LIBRA_CERT_FILE", "LIBRA_KEY_FILE"),
        *("LIBRA_FAILPOINTS", "LIBRA_DATA", "LIBRA_LOOP_SEED", CONFIG_VARIABLE),
    }
)
# Kubernetes tells every pod of a service named "libra" by variables that look like ours.
_SERVICE_LINK = re.compile(r"LIBRA_(SERVICE_(HOST|PORT)|PORT_\d+_).*")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://.*")
_NEAR = 0.8


def our_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the text of each setting that the environment sets, by the setting's name.

    Raises:
        ValueError: a variable is almost one of ours, which is named.
    """
    ours = {setting.variable: setting.name for setting in declared().values()}
    found = {}
    for variable, text in environ.items():
        if not variable.startswith("LIBRA_") or _is_service_link(variable, text):
            continue
        if variable in ours:
            if text:  # an empty one is one that is not set
                found[ours[variable]] = text
        elif variable not in OTHER_VARIABLES:
            near = nearest(variable, ours)
            if near:
                raise ValueError(f"{variable}: there is no such setting: did you mean {near}?")
    return found


def read_file(path: str) -> dict[str, Any]:
    """Return what a TOML file says.

    Raises:
        ValueError: it cannot be read, is no TOML, or has a key that is no setting.
    """
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"config={path!r}: cannot be read: {why}") from error
    known = [*declared(), *tables()]
    for key in content:
        check_key(key, known, path)
    return content


def check_key(key: str, known: Iterable[str], where: str) -> None:
    """Raise ``ValueError`` for a key that is not known; it names the closest that is."""
    known = list(known)
    if key not in known:
        near = nearest(key, known)
        hint = f"did you mean {near}?" if near else f"must be one of {', '.join(sorted(known))}"
        raise ValueError(f"{where}: {key}: there is no such setting: {hint}")


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the word that ``word`` was probably meant to be."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=_NEAR)), None)


def _is_service_link(variable: str, text: str) -> bool:
    link = bool(_SERVICE_LINK.fullmatch(variable))
    return link or (variable == "LIBRA_PORT" and bool(_SERVICE_ADDRESS.fullmatch(text)))
