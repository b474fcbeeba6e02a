"""Where the ranks of a node meet: a Unix socket that only this user's processes can reach.

All ranks find the same path without a word to each other, from what they were told.
"""

import contextlib
import hashlib
import os
import socket
import stat
import struct
import tempfile
from pathlib import Path

from libra.agent.settings import AgentSettings

# What a socket's address holds, less a little: Linux takes 108 bytes with the zero at the end.
MAX_PATH_BYTES = 100
_SUFFIX = ".relay"
_SWEPT = 256


def meeting_place(settings: AgentSettings, folder: Path | None = None) -> Path | None:
    """Return the path of the socket of this rank's relay; ``None`` where there can be none.

    Args:
        settings: job, run, attempt and launcher are in the name, so that two never meet.
        folder: in place of the user's own.
    """
    alone = settings.local_rank < 0 or settings.local_world_size == 1
    if alone or not settings.relay or not hasattr(socket, "SO_PEERCRED"):
        return None
    names = settings.job, settings.run, settings.attempt, settings.node, settings.group_rank
    digest = hashlib.sha256("\0".join(map(str, (os.getuid(), *names))).encode()).hexdigest()
    for place in [folder] if folder else _folders():
        path = place / f"{digest[:24]}{_SUFFIX}"
        if len(os.fsencode(path)) <= MAX_PATH_BYTES:
            return path
    return None


def listen(path: Path) -> socket.socket:
    """Return a socket that listens there, in place of whatever did before.

    Raises:
        OSError: the folder cannot be made, or is not this user's alone.
    """
    path.parent.mkdir(mode=0o700, exist_ok=True)
    _check_private(path.parent)
    sweep(path.parent)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    part = path.with_suffix(f".{os.getpid()}")
    try:
        listener.bind(str(part))
        listener.listen(_SWEPT)
        listener.setblocking(False)
        # The newest takes the name at once: no rank finds a socket where nobody listens.
        part.replace(path)
    except OSError:
        listener.close()
        part.unlink(missing_ok=True)
        raise
    return listener


def leave(path: Path, inode: int) -> None:
    """Remove the socket if it is still the one that was made here."""
    with contextlib.suppress(OSError):
        if path.lstat().st_ino == inode:
            path.unlink()


def sweep(folder: Path) -> None:
    """Remove sockets that processes left behind which did not end by themselves."""
    with contextlib.suppress(OSError):
        for path in sorted(folder.glob(f"*{_SUFFIX}"))[:_SWEPT]:
            if _is_dead(path):
                path.unlink(missing_ok=True)


def peer_is_own(connection: socket.socket) -> bool:
    """Tell whether the process at the other end runs as this user."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, uid, _ = struct.unpack("3i", credentials)
    return bool(uid == os.getuid())


def _folders() -> list[Path]:
    """Return the user's runtime folder, else one of its own beside other users'."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    folders = [Path(runtime, "libra")] if runtime and os.access(runtime, os.W_OK) else []
    shared = dict.fromkeys((tempfile.gettempdir(), "/tmp"))
    return folders + [Path(place, f"libra-{os.getuid()}") for place in shared]


def _check_private(folder: Path) -> None:
    found = folder.lstat()
    private = stat.S_ISDIR(found.st_mode) and not stat.S_IMODE(found.st_mode) & 0o077
    if not private or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} is not a folder of this user alone")


def _is_dead(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
