"""The installed version of Libra."""

import json
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version


def libra_version() -> str:
    """Return the distribution's version; a checkout that is not installed has none."""
    try:
        return version("libra-balancer")
    except PackageNotFoundError:
        return "0+unknown"


@cache
def libra_revision() -> str:
    """Return the commit that was installed from a repository, "unknown" for anything else."""
    try:
        origin = distribution("libra-balancer").read_text("direct_url.json")
        return str(json.loads(origin or "{}")["vcs_info"]["commit_id"])
    except (PackageNotFoundError, KeyError, TypeError, ValueError):
        return "unknown"
