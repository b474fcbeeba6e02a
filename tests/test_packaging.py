"""What is installed is this checkout, whole, and each part loads no more than it must."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import libra.agent

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = ("agent", "attention", "balancer", "dashboard", "examples")


def test_tests_run_against_this_checkout() -> None:
    """An editable install left by another checkout would be imported silently."""
    assert Path(libra.agent.__file__).is_relative_to(ROOT)


def test_every_package_is_listed_and_linked() -> None:
    """A folder that setuptools or a type checker does not know fails here, not at a user's."""
    inits = [init for folder in FOLDERS for init in (ROOT / folder).rglob("__init__.py")]
    found = {".".join(("libra", *init.parent.relative_to(ROOT).parts)) for init in inits}

    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == found
    assert set(PYPROJECT["tool"]["importlinter"]["root_packages"]) == found
    assert {link.name for link in (ROOT / ".typing/libra").iterdir()} == set(FOLDERS)
    assert all((ROOT / folder / "py.typed").is_file() for folder in FOLDERS)


def test_changelog_opens_with_the_version() -> None:
    """Nothing is released that the changelog does not describe."""
    versions = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert versions[0] == PYPROJECT["project"]["version"]


@pytest.mark.parametrize("module", ["libra.balancer", "libra.attention"])
def test_light_imports_stay_light(module: str) -> None:
    """Importing the balancer or the planner loads neither torch nor FastAPI."""
    script = f"import sys, {module}; print(*sorted({{'torch', 'fastapi'}} & set(sys.modules)))"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )

    assert loaded.stdout.strip() == ""


def test_installing_without_extras_needs_no_torch() -> None:
    """The balancer's machine never downloads torch, not even through another package."""
    names = _closure(PYPROJECT["project"]["dependencies"])

    assert "fastapi" in names
    assert "torch" not in names


def test_constraints_cover_what_is_asked_for() -> None:
    """Every dependency but flash-attn, which builds against the user's torch or GPU, is pinned."""
    extras = dict(PYPROJECT["project"]["optional-dependencies"])
    del extras["flash"], extras["flash4"]
    asked = [PYPROJECT["project"]["dependencies"], *extras.values()]
    names = {canonicalize_name(Requirement(text).name) for group in asked for text in group}

    assert names - {"libra-balancer"} <= set(_constraints())


def test_hooks_and_make_run_the_same_ruff() -> None:
    """A commit hook must not reformat what `make check` accepts."""
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()

    assert set(re.findall(r"ruff==([\d.]+)", hooks)) == {_constraints()["ruff"]}


def _constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pins}


def _closure(requirements: list[str]) -> set[str]:
    """Return the names of all packages that pip would bring for these requirements."""
    names: set[str] = set()
    pending = [(Requirement(text), {""}) for text in requirements]
    while pending:
        requirement, extras = pending.pop()
        name = canonicalize_name(requirement.name)
        marker = requirement.marker
        wanted = marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)
        if not wanted or name in names:
            continue
        names.add(name)
        children = distribution(name).requires or []
        pending += [(Requirement(child), {"", *requirement.extras}) for child in children]
    return names
