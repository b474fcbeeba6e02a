"""The ranks of a node meet where no other user's process can."""

import os
import socket
from pathlib import Path

import pytest

from libra.agent.meeting_place import MAX_PATH_BYTES, listen, meeting_place, peer_is_own
from tests.nodes import settings


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
def test_another_users_process_is_not_served(runtime_folder: Path) -> None:
    """The peer's user is asked of the kernel, should a folder ever let one in."""
    path = runtime_folder / "open.sock"
    runtime_folder.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o777)
        listener.listen()
        for user in (65534, 0):
            child = os.fork()
            if child == 0:
                try:
                    os.setuid(user)
                    with socket.socket(socket.AF_UNIX) as client:
                        client.connect(str(path))
                        client.recv(1)
                finally:
                    os._exit(0)
            connection, _ = listener.accept()
            with connection:
                assert peer_is_own(connection) == (user == 0)
            os.waitpid(child, 0)


def test_a_socket_left_behind_is_replaced_and_swept(runtime_folder: Path) -> None:
    """After a kill the next relay listens at once, and dead sockets of others are removed."""
    path, other = runtime_folder / "libra" / "a.relay", runtime_folder / "libra" / "b.relay"
    for each in (path, other):
        with listen(each):
            pass
        assert each.exists()
    with listen(path), listen(other), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    left = runtime_folder / "libra" / "c.relay"
    with listen(left):
        assert [each.name for each in path.parent.iterdir()] == ["c.relay"]


def test_ranks_meet_at_one_short_path(
    runtime_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks of a launch find one path, other launches another, also under long folders."""
    first, second = (meeting_place(settings("http://h", rank)) for rank in (0, 3))
    assert first == second
    assert first is not None
    for change in ({"run": "b"}, {"attempt": 1}, {"group_rank": 1}):
        assert meeting_place(settings("http://h", 0, **change)) != first
    long = runtime_folder / ("x" * MAX_PATH_BYTES)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    shorter = meeting_place(settings("http://h", 0))
    assert shorter is not None
    assert len(os.fsencode(shorter)) <= MAX_PATH_BYTES
    for alone in ({"local_rank": -1}, {"local_world_size": 1}, {"relay": False}):
        assert meeting_place(settings("http://h", 0, **alone)) is None
