"""The file of access tokens: read with care, replaced whole, and watched."""

import contextlib
import logging
import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from libra.balancer.tokens import MAX_TOKENS, Token, TokenSet, decode_tokens, encode_tokens

logger = logging.getLogger(__name__)

_MAX_BYTES = 512 * MAX_TOKENS
_POLL_S = 0.5

Mark = tuple[int, ...]


def read_tokens(path: Path) -> TokenSet:
    """Return a file's tokens; raise ``ValueError``, one sentence, if it cannot be trusted."""
    return _read(path)[0]


def _read(path: Path) -> tuple[TokenSet, Mark]:
    try:
        # Without waiting for a writer, should the path name a pipe.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            _check_owner(path, status)
            body = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"tokens={str(path)!r}: cannot be read: {error.strerror}") from error
    if len(body) > _MAX_BYTES:
        raise ValueError(f"tokens={str(path)!r}: must have at most {_MAX_BYTES} bytes")
    try:
        return decode_tokens(body), _mark(status)
    except ValueError as error:
        raise ValueError(f"tokens={str(path)!r}: {error}") from error


def _check_owner(path: Path, status: os.stat_result) -> None:
    """Who can write the file is admin, and who can read it knows whom to imitate."""
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"tokens={str(path)!r}: must be a file")
    if status.st_uid not in (os.geteuid(), 0):
        raise ValueError(
            f"tokens={str(path)!r}: belongs to user {status.st_uid}: must belong to the "
            f"balancer's, {os.geteuid()}, or to root"
        )
    # A Kubernetes secret belongs to root, and fsGroup lets the container's group read it. Root
    # chose that group, and hashes are no tokens; to write is still root's alone.
    ours = status.st_uid == 0 and status.st_gid in {os.getegid(), *os.getgroups()}
    if status.st_mode & (0o037 if ours else 0o077):
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        raise ValueError(
            f"tokens={str(path)!r}: its mode is {mode}: must be closed to others: chmod 600 {path}"
        )


def _mark(status: os.stat_result) -> Mark:
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@contextlib.contextmanager
def tokens_to_change(path: Path) -> Iterator[dict[str, Token]]:
    """Give the tokens of a file, by id, to change; the file is replaced whole at the end.

    Commands that run at the same time wait for each other. A file that is not there is made, for
    its owner alone.
    """
    import fcntl

    path = path.resolve()
    with open(os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tokens = dict(read_tokens(path).tokens) if path.exists() else {}
        before = dict(tokens)
        yield tokens
        if len(tokens) > MAX_TOKENS:
            raise ValueError(f"tokens={str(path)!r}: must have at most {MAX_TOKENS} tokens")
        if tokens != before or not path.exists():
            _replace(path, encode_tokens(tokens.values()))


def _replace(path: Path, body: bytes) -> None:
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(number, "wb") as file:
            if path.exists():
                with contextlib.suppress(PermissionError):
                    os.fchown(number, path.stat().st_uid, path.stat().st_gid)
            file.write(body)
            file.flush()
            os.fsync(number)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class WatchedTokens:
    """The tokens of a file as they change; raise ``ValueError`` if it cannot be trusted at first.

    Later a file that has become invalid keeps the last good set: ``fault`` says why, ``faults``
    counts. A file that cannot be reached looks on a thread of its own, not in anyone's way.
    """

    def __init__(self, path: Path) -> None:
        self.fault: str | None = None
        self.faults = 0
        self._path = path
        self.current, self._seen = _read(path)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look for changes, twice a second."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="libra-tokens", daemon=True)
            self._thread.start()

    def close(self, timeout_s: float = 5.0) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def look(self) -> None:
        """Take up the file if it is another one than before."""
        try:
            seen = _mark(os.stat(self._path))
        except OSError:
            seen = ()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self.current, self._seen = _read(self._path)
        except ValueError as error:
            self.faults += 1
            self.fault = str(error)
            logger.error("The access tokens stay as they were: %s.", error)
            return
        self.fault = None
        logger.info("Took up %d access tokens.", len(self.current.tokens))

    def _run(self) -> None:
        while not self._stop.wait(_POLL_S):
            self.look()
