"""constraints.txt pins what the package and its extras need, and nothing else."""

import tomllib
from importlib.metadata import PackageNotFoundError, version
from importlib.metadata import requires as requirements_of
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
CORE = "glassgpt"


def installed(name: str) -> str | None:
    """The version of a package that is installed, without what a build adds to it."""
    try:
        return Version(version(name)).public
    except PackageNotFoundError:
        return None


def needed() -> dict[str, bool]:
    """Everything that the package and its extras need, directly or not: whether who needs it says
    which version.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {CORE: project["dependencies"], **project["optional-dependencies"]}
    waiting = {line for lines in required.values() for line in lines}
    found: dict[str, bool] = {}
    seen: set[str] = set()
    while waiting:
        seen.add(line := waiting.pop())
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        extras = {"", *requirement.extras}
        if name == CORE:
            lines = [line for extra in requirement.extras for line in required[extra]]
        else:
            lines = (requirements_of(name) or []) if installed(name) else []
            found[name] = found.get(name, False) or any(
                part.operator == "==" for part in requirement.specifier
            )
        for each in map(Requirement, lines):
            if each.marker is None or any(
                each.marker.evaluate({"extra": extra}) for extra in extras
            ):
                waiting |= {str(each)} - seen
    return found


def pins() -> dict[str, str]:
    """The versions of constraints.txt by name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version.strip() for name, version in pairs}


def test_packages_are_pinned_as_installed_and_pins_are_needed() -> None:
    pinned = pins()
    found = needed()
    assert [name for name, is_exact in found.items() if name not in pinned and not is_exact] == []
    here = {name: installed(name) for name in found}
    assert {
        name: (here[name], pinned[name])
        for name in found.keys() & pinned
        if here[name] not in (None, pinned[name])
    } == {}
    if all(here.values()):  # otherwise what they need in turn is unknown here
        assert sorted(pinned.keys() - found.keys()) == []
