"""Where the balancer listens: whose socket it takes, who may connect, and how it says where."""

import json
import os
import socket
import stat
from pathlib import Path

import pytest

from libra.balancer.listen_settings import ListenSettings
from libra.balancer.listener import ListenError, address_file, listening


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mode", ["0600", "0660"])
def test_a_unix_socket_is_for_whom_it_says(tmp_path: Path, mode: str) -> None:
    """Its mode is as set whatever the umask is, it answers, and is gone at the end."""
    path = tmp_path / "s.sock"
    umask = os.umask(0o002)
    try:
        with listening(ListenSettings(uds=str(path), uds_mode=mode)) as listener:
            assert mode_of(path) == int(mode, 8)
            assert listener.url() == f"unix://{path}"
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
        assert os.umask(0o002) == 0o002
    finally:
        os.umask(umask)

    assert not path.exists()


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    """What a killed balancer left behind does not hinder the next."""
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    with (
        listening(ListenSettings(uds=str(path))),
        socket.socket(socket.AF_UNIX) as client,
    ):
        client.connect(str(path))


def test_a_socket_that_answers_is_another_balancers(tmp_path: Path) -> None:
    """It is neither removed nor taken over, full of waiting clients or not."""
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen(0)
        for _ in range(2):
            with (
                pytest.raises(ListenError, match="in use"),
                listening(ListenSettings(uds=str(path))),
            ):
                pass
        assert path.exists()


def test_another_file_is_left_alone(tmp_path: Path) -> None:
    """A path that holds a file, or lies nowhere, is refused in one line and not touched."""
    path = tmp_path / "data"
    path.write_text("precious")

    for place in (path, tmp_path / "none" / "s.sock", tmp_path / ("long" * 40)):
        with (
            pytest.raises(ListenError, match="cannot listen on"),
            listening(ListenSettings(uds=str(place))),
        ):
            pass
    assert path.read_text() == "precious"


def test_the_socket_of_a_successor_stays(tmp_path: Path) -> None:
    """Who ends removes only the socket that it made."""
    path = tmp_path / "s.sock"
    with listening(ListenSettings(uds=str(path))):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as successor:
            successor.bind(str(path))

    assert path.exists()


def test_the_address_file(tmp_path: Path) -> None:
    """It holds address and process, for the user alone, and is gone at the end."""
    path = tmp_path / "address.json"
    path.write_text("old")
    path.chmod(0o644)

    with address_file(str(path), "http://127.0.0.1:1"):
        assert json.loads(path.read_text()) == {"url": "http://127.0.0.1:1", "pid": os.getpid()}
        assert mode_of(path) == 0o600
        assert list(tmp_path.iterdir()) == [path]
    assert not path.exists()

    with address_file(str(path), "http://127.0.0.1:1"):
        path.write_text("of a successor")
    assert path.read_text() == "of a successor"
    with pytest.raises(ListenError, match="cannot write"), address_file("/proc/none/a", "u"):
        pass


def test_a_wildcard_is_told_as_a_name_that_others_can_use() -> None:
    """Nobody can connect to 0.0.0.0 from elsewhere."""
    with listening(ListenSettings(host="0.0.0.0", port=0)) as listener:
        port = listener.sockets[0].getsockname()[1]

        assert listener.url() == f"http://{socket.gethostname()}:{port}"
        assert listener.url(secure=True).startswith("https://")
