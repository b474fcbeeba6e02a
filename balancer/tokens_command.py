"""``libra token``: make, list and revoke access tokens."""

import argparse
import os
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args

from libra.balancer.access_rules import Scope
from libra.balancer.tokens import Token, new_token
from libra.balancer.tokens_file import read_tokens, tokens_to_change

_UNITS_S = {"m": 60, "h": 3600, "d": 86_400}


def default_tokens() -> Path:
    """Return the file that tokens are in unless someone says otherwise."""
    given = os.environ.get("LIBRA_TOKENS")
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(given) if given else Path(config).expanduser() / "libra" / "tokens.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``libra token``."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    new = verbs.add_parser("new", help="make a token and print it, this once")
    new.add_argument("--scope", choices=get_args(Scope), required=True)
    new.add_argument("--job", default="", help="job that it reports for: a name, or prefix and *")
    new.add_argument("--expires", help="time until it ends, such as 12h or 30d (never)")
    new.add_argument("--note", default="", help="whose it is, for the list")
    revoke = verbs.add_parser("revoke", help="end a token; the balancer notices within a second")
    revoke.add_argument("id", help="its id, as the list has it")
    for verb in (new, revoke, verbs.add_parser("list", help="list tokens, never their secrets")):
        verb.add_argument("--file", type=Path, help=f"file of tokens ({default_tokens()})")


def run(args: argparse.Namespace) -> int:
    """Do what was asked; return the exit status."""
    path = args.file or default_tokens()
    try:
        return {"new": _new, "list": _list, "revoke": _revoke}[args.verb](path, args)
    except OSError as error:
        return _fail(f"cannot write {path}: {error.strerror}")
    except ValueError as error:
        return _fail(str(error))


def _new(path: Path, args: argparse.Namespace) -> int:
    expires = None if args.expires is None else _until(args.expires)
    text, token = new_token(args.scope, job=args.job, expires=expires, note=args.note)
    if args.file is None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tokens_to_change(path) as tokens:
        tokens[token.id] = token
    sys.stdout.write(text + "\n")
    sys.stderr.write(f"Kept as {token.id} in {path}; the token itself is shown this once.\n")
    return 0


def _list(path: Path, _: argparse.Namespace) -> int:
    lines: list[tuple[str, ...]] = [("ID", "SCOPE", "JOB", "CREATED", "EXPIRES", "NOTE")]
    lines += [_row(token) for token in read_tokens(path).tokens.values()]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
    return 0


def _row(token: Token) -> tuple[str, ...]:
    expires = "never" if token.expires is None else _day(token.expires)
    if token.expired(datetime.now(UTC).timestamp()):
        expires = f"{expires} (over)"
    # A note is what someone typed: no control character of it reaches a terminal.
    note = "".join(c if c.isprintable() else "?" for c in token.note)
    return (token.id, token.scope, token.job or "-", _day(token.created), expires, note)


def _day(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def _revoke(path: Path, args: argparse.Namespace) -> int:
    if not path.exists():
        return _fail(f"there is no file {path}")
    with tokens_to_change(path) as tokens:
        if tokens.pop(args.id, None) is None:
            return _fail(f"id={args.id!r}: must be one of those in {path}: see libra token list")
    sys.stderr.write(f"Revoked {args.id}.\n")
    return 0


def _until(text: str) -> datetime:
    found = re.fullmatch(r"([1-9][0-9]{0,4})([mhd])", text)
    if found is None:
        raise ValueError(f"expires={text!r}: must be a number and m, h or d, such as 30d")
    seconds = int(found[1]) * _UNITS_S[found[2]]
    return datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds)


def _fail(message: str) -> int:
    sys.stderr.write(f"libra token: {message}\n")
    return 1
