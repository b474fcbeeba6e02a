"""What a path lies on is read from the kernel's list of mounts."""

from pathlib import Path

import pytest

from libra.balancer.mounts import mount_of, read_mountinfo

TEXT = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /home rw shared:2 - nfs4 server:/home rw,vers=4.2
31 30 0:41 / /home/me/My\040Files rw - fuse.sshfs me@host:/ rw
32 22 0:42 / /data rw - ext4 /dev/sdb rw
33 22 0:43 / /data rw - lustre mds@tcp:/fs rw,localflock
34 22 0:44 / /mnt/disk rw master:7 propagate_from:2 - fuseblk /dev/sdc rw
not a mount
"""


@pytest.mark.parametrize(
    ("path", "kind", "over_network", "lockless"),
    [
        ("/var/lib", "ext4", False, None),
        ("/home/you", "nfs4", True, None),
        ("/homely", "ext4", False, None),
        ("/home/me/My Files/x", "fuse.sshfs", True, None),
        ("/data/libra", "lustre", True, "localflock"),
        ("/mnt/disk/a", "fuseblk", False, None),
    ],
)
def test_the_innermost_and_newest_mount_counts(
    path: str, kind: str, over_network: bool, lockless: str | None
) -> None:
    """Whole names are compared, blanks are undone, and a later mount hides an earlier one."""
    mount = mount_of(Path(path), TEXT)

    assert mount is not None
    assert (mount.kind, mount.over_network, mount.local_locks) == (kind, over_network, lockless)


def test_without_a_list_nothing_is_known() -> None:
    """Other systems have none: they are taken at their word."""
    assert mount_of(Path("/x"), "") is None


def test_this_machine_s_list_can_be_read() -> None:
    """Wherever there is one, the root is in it."""
    text = read_mountinfo()

    assert not text or mount_of(Path("/"), text) is not None
