"""Settings that people set: one declaration gives a flag, a variable and a line of a TOML file."""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, field
from typing import Any


def option(
    default: Any = MISSING,
    *,
    help: str,
    factory: Callable[[], Any] | None = None,
    secret: bool = False,
    choices: Sequence[str] = (),
) -> Any:
    """Return a dataclass field that people can set.

    Args:
        help: one line, for ``--help`` and the documentation.
        factory: makes the default, in place of ``default``.
        secret: never printed; passwords in URLs never are, secret or not.
        choices: allowed words; empty allows any.
    """
    metadata = {"help": help, "secret": secret, "choices": tuple(choices)}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)
