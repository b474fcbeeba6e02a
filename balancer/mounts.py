"""On what kind of file system a path lies, and what that means for SQLite.

A write-ahead log needs memory that all users of a file share, and every lock must hold on every
machine. File systems over a network promise less.
"""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

MOUNTINFO = Path("/proc/self/mountinfo")
_NETWORK = frozenset(
    {
        *("nfs", "nfs3", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "coda", "9p"),
        *("lustre", "gpfs", "ceph", "beegfs", "orangefs", "pvfs2", "panfs", "ocfs2", "gfs2"),
        *("wekafs", "virtiofs", "glusterfs", "davfs"),
    }
)
# What the kernel knows only as FUSE may be anything; these are of this machine.
_LOCAL_FUSE = frozenset({"fuseblk", "fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.mergerfs"})
# Locks that other machines do not see.
_LOCAL_LOCKS = frozenset({"nolock", "local_lock=all", "local_lock=posix", "localflock", "nobrl"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    """One mounted file system.

    Attributes:
        point: where it is mounted.
        kind: as in ``mount -t``.
        options: of the mount and of the file system.
    """

    point: str
    kind: str
    options: frozenset[str] = frozenset()

    @property
    def over_network(self) -> bool:
        is_fuse = self.kind.startswith("fuse")
        return self.kind in _NETWORK or (is_fuse and self.kind not in _LOCAL_FUSE)

    @property
    def local_locks(self) -> str | None:
        """Return the option that keeps locks from other machines, None if they see them."""
        return next(iter(sorted(self.options & _LOCAL_LOCKS)), None) if self.over_network else None


def mount_of(path: Path, mountinfo: str) -> Mount | None:
    """Return what an absolute path without links lies on; None if the text does not tell.

    Args:
        mountinfo: the text of ``/proc/self/mountinfo``.
    """
    found: Mount | None = None
    for line in mountinfo.splitlines():
        mount = _parse(line)
        if mount is None or not PurePosixPath(path).is_relative_to(mount.point):
            continue
        # Of several at one place the last one hides the others.
        if found is None or len(mount.point) >= len(found.point):
            found = mount
    return found


def read_mountinfo() -> str:
    """Return the mounts of this process, an empty text where the system has no such file."""
    try:
        return MOUNTINFO.read_text(errors="surrogateescape")
    except OSError:
        return ""


def _parse(line: str) -> Mount | None:
    before, separator, after = line.partition(" - ")
    fields, rest = before.split(), after.split()
    if not separator or len(fields) < 6 or len(rest) < 1:
        return None
    options = {*fields[5].split(","), *(rest[2].split(",") if len(rest) > 2 else ())}
    return Mount(point=_unescape(fields[4]), kind=rest[0], options=frozenset(options))


def _unescape(text: str) -> str:
    """Undo the kernel's octal escapes of blanks and backslashes."""
    for code in ("040", "011", "012", "134"):
        text = text.replace(f"\\{code}", chr(int(code, 8)))
    return text
