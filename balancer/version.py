"""The installed version of Libra."""

from importlib.metadata import PackageNotFoundError, version


def libra_version() -> str:
    """Return the distribution's version; a checkout that is not installed has none."""
    try:
        return version("libra-balancer")
    except PackageNotFoundError:
        return "0+unknown"
