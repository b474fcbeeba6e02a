"""docs/agents.md lists the variables that the agent reads, all of them and no other."""

import re

from libra.agent.settings import settings_from_env
from tests.running import ROOT


class _Asked(dict[str, str]):
    """An environment that remembers what was looked for."""

    def __init__(self) -> None:
        super().__init__(LIBRA_BALANCER="http://127.0.0.1:8765")
        self.names: set[str] = set()

    def get(self, key: str, default: str = "") -> str:  # type: ignore[override]
        self.names.add(key)
        value: str = super().get(key, default)
        return "job" if key == "LIBRA_JOB" else value


def test_the_table_has_every_variable() -> None:
    """What is read is said, and what is said is read."""
    environ = _Asked()
    assert settings_from_env(environ) is not None
    page = (ROOT / "docs/agents.md").read_text()
    told = set(re.findall(r"^\| `(LIBRA_\w+)` \|", page, re.MULTILINE))

    assert told == {name for name in environ.names if name.startswith("LIBRA_")}
