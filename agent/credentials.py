"""What the agent shows the balancer, and what it checks of it: token, certificates.

All are files that others may replace while the job runs. A token is never logged.
"""

import logging
import os
import re
import ssl
import stat
from pathlib import Path

from libra.agent.settings import AgentSettings

logger = logging.getLogger(__name__)

MAX_TOKEN_BYTES = 16 << 10
# What may stand in a header; a token is one word.
_TOKEN = re.compile(r"[!-~]+")
# Mounted by the kubelet, which decides on their modes.
_MOUNTED = ("/var/run/secrets/", "/run/secrets/")

Stamp = tuple[int, int, int]


class CredentialsError(Exception):
    """A file cannot be used now; the message names it and tells nothing of what it holds."""


class Token:
    """The token in a file, read again when the file changes.

    Args:
        path: the file; empty for no token.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._stamp: Stamp | None = None
        self._value = ""
        self._warned = False

    @property
    def value(self) -> str:
        """The token, empty without a file; raise ``CredentialsError`` where there is none in it."""
        if not self._path:
            return ""
        stamp = _stamp(self._path)
        if stamp != self._stamp:
            self._value = self._read()
            self._stamp = stamp
        return self._value

    def forget(self) -> None:
        """Read the file again next time, for the balancer does not take what was in it."""
        self._stamp = None

    def _read(self) -> str:
        try:
            with open(self._path, "rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                content = file.read(MAX_TOKEN_BYTES + 1)
        except OSError as error:
            raise CredentialsError(f"{self._path}: {error.strerror}") from None
        if mode & 0o077 and not self._warned and not self._path.startswith(_MOUNTED):
            self._warned = True
            logger.warning(
                "%s has mode %03o: others can read the token. Set it to 600.", self._path, mode
            )
        value = content.decode("latin-1").strip()
        if len(content) > MAX_TOKEN_BYTES or not _TOKEN.fullmatch(value):
            raise CredentialsError(f"{self._path}: must hold one token and nothing else")
        return value


class Certificates:
    """The TLS settings of an ``https`` balancer, made anew when a file changes."""

    def __init__(self, settings: AgentSettings) -> None:
        self._ca_file = settings.ca_file
        self._cert_file = settings.cert_file
        self._key_file = settings.key_file

    @property
    def stamps(self) -> list[Stamp]:
        """What tells a change of a file; raise ``CredentialsError`` if one is missing."""
        files = self._ca_file, self._cert_file, self._key_file
        return [_stamp(path) for path in files if path]

    def context(self) -> ssl.SSLContext:
        """Return a context of the files as they are; raise ``CredentialsError`` if it cannot be."""
        try:
            context = ssl.create_default_context(cafile=self._ca_file or None)
            if self._cert_file:
                # A key under a password would be asked for at the terminal: it is refused.
                context.load_cert_chain(
                    self._cert_file, self._key_file or None, password=lambda: ""
                )
        except (OSError, ValueError) as error:
            files = " ".join(filter(None, (self._ca_file, self._cert_file, self._key_file)))
            raise CredentialsError(f"certificates ({files}): {error}") from None
        return context


def _stamp(path: str) -> Stamp:
    try:
        found = Path(path).stat()
    except (OSError, ValueError) as error:
        raise CredentialsError(f"{path}: {getattr(error, 'strerror', error)}") from None
    return found.st_mtime_ns, found.st_ino, found.st_size
