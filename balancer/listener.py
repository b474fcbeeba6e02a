"""The sockets that the balancer listens on, and the file that says where."""

import contextlib
import errno
import json
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from libra.balancer.listen_settings import ListenSettings
from libra.balancer.systemd import handed_sockets

_ANY = ("0.0.0.0", "::")
_CONNECT_TIMEOUT_S = 1.0


class ListenError(Exception):
    """The address cannot be listened on; the message is one sentence for people."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listener:
    """Sockets that listen; the balancer answers on all of them."""

    sockets: list[socket.socket]

    def url(self, *, secure: bool = False) -> str:
        """Return an address that clients on this machine or beyond can use.

        A Unix socket's is ``unix:///path``.
        """
        first = self.sockets[0]
        if first.family == socket.AF_UNIX:
            return f"unix://{os.path.abspath(first.getsockname())}"
        host, port = first.getsockname()[:2]
        host = socket.gethostname() if host in _ANY else host
        scheme = "https" if secure else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def places(self, settings: ListenSettings) -> Iterator[ListenSettings]:
        """Yield the settings that each socket would come from."""
        for one in self.sockets:
            name = one.getsockname()
            if one.family == socket.AF_UNIX:
                yield replace(settings, uds=name)
            else:
                yield replace(settings, uds="", host=name[0], port=name[1])

    def close(self) -> None:
        for one in self.sockets:
            one.close()


@contextmanager
def listening(settings: ListenSettings) -> Iterator[Listener]:
    """Listen on systemd's sockets, else the Unix socket, else the address; close at the end.

    Raises:
        ListenError: the address is taken, or not ours to take.
    """
    handed = handed_sockets(os.environ)
    if handed:
        with contextlib.closing(Listener(sockets=handed)) as listener:
            yield listener
    elif settings.uds:
        with _unix_socket(Path(settings.uds), int(settings.uds_mode, 8)) as one:
            yield Listener(sockets=[one])
    else:
        with _address(settings) as one:
            yield Listener(sockets=[one])


@contextmanager
def address_file(path: str, url: str) -> Iterator[None]:
    """Say in a file of the user alone where the balancer listens; remove it at the end.

    Raises:
        ListenError: it cannot be written.
    """
    if not path:
        yield
        return
    content = json.dumps({"url": url, "pid": os.getpid()}) + "\n"
    temporary = f"{path}.{os.getpid()}"
    try:
        # Removed first, for an existing file would keep its mode.
        Path(temporary).unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError as error:
        raise ListenError(f"cannot write the address file {path}: {error.strerror}") from error
    try:
        yield
    finally:
        # By now it may be the file of a balancer that was started in place of this one.
        with contextlib.suppress(OSError):
            if Path(path).read_text() == content:
                Path(path).unlink()


def _address(settings: ListenSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        raise _refused(f"{settings.host}:{settings.port}", error) from error
    return listener


@contextmanager
def _unix_socket(path: Path, mode: int) -> Iterator[socket.socket]:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # From the first moment: between bind and chmod anybody could connect.
    umask = os.umask(0o777 & ~mode)
    try:
        _remove_stale(path)
        listener.bind(str(path))
        listener.listen(socket.SOMAXCONN)
        own = path.stat()
    except OSError as error:
        listener.close()
        raise _refused(str(path), error) from error
    finally:
        os.umask(umask)
    try:
        yield listener
    finally:
        listener.close()
        with contextlib.suppress(OSError):
            now = path.stat()
            if (now.st_dev, now.st_ino) == (own.st_dev, own.st_ino):
                path.unlink()


def _remove_stale(path: Path) -> None:
    """Remove a socket that nobody answers on; raise ``OSError`` for any other file."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(errno.EEXIST, "it exists, and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except (TimeoutError, BlockingIOError):  # its queue is full: somebody listens
            pass
    raise OSError(errno.EADDRINUSE, "in use")


def _refused(place: str, error: OSError) -> ListenError:
    why = "in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
    return ListenError(f"cannot listen on {place}: {why}")
