"""The packages that this one stands on, and their pins."""

import tomllib
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
CORE = "glassgpt"


@dataclass
class Dependency:
    """A package that is needed, directly or not.

    Attributes:
        name: in its canonical form.
        installed: its metadata; None where it is not installed.
        is_exact: a package that needs it says which version, as torch does of CUDA's libraries.
    """

    name: str
    installed: Distribution | None = None
    is_exact: bool = False


def requirements(root: Path = ROOT) -> dict[str, list[str]]:
    """Return the requirements of the package and of each extra, as pyproject.toml has them."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {CORE: project["dependencies"], **project["optional-dependencies"]}


def closure(required: dict[str, list[str]]) -> dict[str, Dependency]:
    """Return everything that the package and its extras need, by name."""
    found: dict[str, Dependency] = {}
    for lines in required.values():
        waiting, seen = [Requirement(line) for line in lines], set()
        while waiting:
            requirement = waiting.pop()
            name = canonicalize_name(requirement.name)
            if name == CORE:
                waiting += [Requirement(line) for inner in requirement.extras for line in required[inner]]
                continue
            if (name, frozenset(requirement.extras)) in seen:
                continue
            seen.add((name, frozenset(requirement.extras)))
            dependency = found.setdefault(name, Dependency(name))
            dependency.is_exact |= any(part.operator == "==" for part in requirement.specifier)
            try:
                dependency.installed = distribution(name)
            except PackageNotFoundError:
                continue
            inner_lines = map(Requirement, dependency.installed.requires or [])
            waiting += [line for line in inner_lines if _applies(line, requirement.extras)]
    return found


def _applies(requirement: Requirement, extras: set[str]) -> bool:
    return requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in {"", *extras})


def pins(root: Path = ROOT) -> dict[str, str]:
    """Return the versions of constraints.txt by name."""
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version.strip() for name, version in pairs}
