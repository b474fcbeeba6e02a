"""Which versions of agent and balancer work together: those one minor version apart at most."""

import re

# Both sides put their version into every request and answer.
VERSION_HEADER = "Libra-Version"
_RELEASE = re.compile(r"(\d{1,9})\.(\d{1,9})(?!\d)")
# A checkout that is not installed has no version, and is run by those who know what it is.
_UNKNOWN = "0+unknown"


def neighbours(one: str, other: str) -> bool:
    """Tell whether two versions work together: the same major, minors at most one apart.

    A version that is unknown works with every other; one that cannot be read only with itself.
    """
    if one == other or _UNKNOWN in (one, other):
        return True
    releases = _RELEASE.match(one), _RELEASE.match(other)
    if not (releases[0] and releases[1]):
        return False
    (major, minor), (other_major, other_minor) = (
        (int(found[1]), int(found[2])) for found in releases if found
    )
    return major == other_major and abs(minor - other_minor) <= 1


def refusal(agent: str, balancer: str) -> str:
    """Return the sentence that says why two versions do not work together, and what helps."""
    return (
        f"agent {_shown(agent)} and balancer {_shown(balancer)} do not work together: their "
        "versions may differ by one minor version at most. Install the same version of "
        "libra-balancer in the job and at the balancer."
    )


def _shown(version: str) -> str:
    """Return a version that may come from anywhere as something to print."""
    return re.sub(r"[^A-Za-z0-9.+_-]", "?", version[:64]) or "without a version"
