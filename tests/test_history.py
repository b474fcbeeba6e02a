"""The history checker finds each way in which a policy could go wrong, and nothing else."""

import pytest

from tests.history import Kind, Operation, violations

KEPT = {1: "a", 2: "b", 3: "c"}


def own(
    version: int | None,
    began_s: float,
    ended_s: float,
    *,
    kind: Kind = "fetch",
    client: str = "reader",
    checksum: str | None = None,
    sound: bool = True,
) -> Operation:
    """An operation whose checksum is the right one unless another is given."""
    return Operation(
        client=client,
        kind=kind,
        began_s=began_s,
        ended_s=ended_s,
        version=version,
        checksum=KEPT.get(version or 0, "home") if checksum is None else checksum,
        sound=sound,
    )


def publish(version: int | None, began_s: float, ended_s: float) -> Operation:
    return own(version, began_s, ended_s, kind="publish", client="publisher")


def kinds(*history: Operation, kept: dict[int, str] | None = None) -> list[str]:
    return [found.kind for found in violations(history, KEPT if kept is None else kept)]


def test_what_a_register_can_show_is_fine() -> None:
    """Old or new while a publication is under way, one that was never answered, late events."""
    assert not kinds(
        publish(1, 0, 1),
        own(0, 0, 2),
        own(1, 0.5, 0.9, client="lucky"),
        publish(None, 2, 3),
        own(2, 2.5, 2.6, client="saw it"),
        own(2, 4, 5),
        publish(3, 6, 7),
        own(1, 8, 8, kind="event", client="page"),
        own(2, 8, 8, kind="apply", client="agent"),
        own(3, 9, 9, kind="event", client="page"),
    )


def test_a_stale_read_is_found() -> None:
    """Who asks after an acknowledgement must see it; so must who asks after another reader."""
    assert kinds(publish(1, 0, 1), own(0, 2, 3)) == ["stale"]
    assert kinds(own(2, 0, 1, client="first"), own(1, 2, 3, client="second")) == ["stale"]
    assert kinds(publish(2, 0, 1), publish(1, 2, 3)) == ["stale", "backwards"]


@pytest.mark.parametrize("kind", ["event", "apply"])
def test_going_back_in_time_is_found(kind: Kind) -> None:
    """One client saw a newer version before, even where it need not be fresh."""
    assert kinds(own(2, 0, 1, kind=kind), own(1, 2, 3, kind=kind)) == ["backwards"]


def test_a_lost_policy_is_found() -> None:
    """Acknowledged, or only seen: it must be there at the end, unless it is too old to be kept."""
    assert kinds(publish(2, 0, 1), kept={1: "a"}) == ["lost"]
    assert kinds(own(2, 0, 1), kept={1: "a"}) == ["lost"]
    assert not violations([publish(1, 0, 1)], {2: "b"}, oldest_kept=2)


def test_two_bodies_of_one_version_are_found() -> None:
    """Two clients, or a client and the list at the end, know the same version as another one."""
    assert kinds(own(1, 0, 1), own(1, 2, 3, checksum="z")) == ["forked"]
    assert kinds(own(0, 0, 1, checksum="y"), own(0, 2, 3, checksum="z")) == ["forked"]


def test_a_read_ahead_of_time_is_found() -> None:
    """Nobody can read what its publisher has not sent yet."""
    assert kinds(own(1, 0, 1), publish(1, 2, 3)) == ["early"]


def test_a_torn_body_is_found() -> None:
    """A body that is not what its checksum says was shown as if it were whole."""
    assert kinds(own(1, 0, 1, sound=False)) == ["torn"]
