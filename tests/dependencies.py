"""The packages that this one stands on, their pins and licenses; `make licenses` writes the page."""

import re
import tomllib
from dataclasses import dataclass, field
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
CORE = "glassgpt"
PERMISSIVE = {
    *("0BSD", "Apache", "BSD", "BSL", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "CC0-1.0", "CNRI-Python"),
    *("ISC", "ISCL", "MIT", "MIT-CMU", "PSF-2.0", "Zlib", "BSL-1.0", "LLVM-exception", "Unlicense"),
}
NAMED = {
    "MPL-2.0": "changes to its own files must be published; it is used unchanged",
    "PSF-based": "matplotlib's own, modeled on Python's: permissive",
}
"""Licenses that are not on the list, and why they are no obstacle."""
WORDS = {
    "Apache Software License": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-based",
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0 License": "Apache-2.0",
}

FROM_FILES = {"atheris": "Apache-2.0"}
"""Licenses of packages that have them in a file only, not in their metadata."""


@dataclass
class Dependency:
    """A package that is needed, directly or not.

    Attributes:
        name: in its canonical form.
        needed_by: extras that need it; `glassgpt` where the package itself does.
        installed: its metadata; None where it is not installed.
        is_exact: a package that needs it says which version, as torch does of CUDA's libraries.
    """

    name: str
    needed_by: set[str] = field(default_factory=set)
    installed: Distribution | None = None
    is_exact: bool = False

    @property
    def license(self) -> str:
        """Return its license as an SPDX expression where its metadata has one, else in a word."""
        assert self.installed is not None
        metadata = self.installed.metadata
        if expression := metadata.get("License-Expression"):
            return expression
        classifiers = [
            c.rpartition(" :: ")[2] for c in metadata.get_all("Classifier", []) if c.startswith("License ::")
        ]
        known = [WORDS[name] for name in classifiers if name in WORDS]
        text = (metadata.get("License") or "").strip()
        stated = WORDS.get(text, text.partition("\n")[0][:40])
        return " AND ".join(known) or stated or FROM_FILES.get(self.name, "unknown")


def unknown_parts(expression: str) -> list[str]:
    """Return the licenses of an expression that are on no list."""
    parts = re.split(r"\s+(?:AND|OR|WITH)\s+|[()]", expression)
    return [part for part in map(str.strip, parts) if part and part not in PERMISSIVE and part not in NAMED]


def requirements(root: Path = ROOT) -> dict[str, list[str]]:
    """Return the requirements of the package and of each extra, as pyproject.toml has them."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {CORE: project["dependencies"], **project["optional-dependencies"]}


def closure(required: dict[str, list[str]]) -> dict[str, Dependency]:
    """Return everything that the package and its extras need, by name."""
    found: dict[str, Dependency] = {}
    for extra, lines in required.items():
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
            dependency.needed_by.add(extra)
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


def page() -> str:
    """Return docs/dependencies.md."""
    rows = []
    pinned, needed_here = pins(), closure(requirements())
    for name in sorted(pinned.keys() & needed_here.keys()):
        dependency = needed_here[name]
        needed = CORE if CORE in dependency.needed_by else ", ".join(sorted(dependency.needed_by))
        license_ = dependency.license if dependency.installed else "not installed where this was written"
        rows.append(f"| {name} | {pinned[name]} | {license_} | {needed} |")
    named = "\n".join(f"- {name}: {why}." for name, why in NAMED.items())
    return f"""# Dependencies

What this package and its extras install, in the versions of `constraints.txt` with which it is tested, and under which
licenses. Those of `{CORE}` are always installed, the others come with an extra, most only with `dev`. A torch with
CUDA brings NVIDIA's libraries, in versions that it pins itself and under licenses of NVIDIA's.
`make licenses` writes this page from the metadata of what is installed, and `tests/test_dependencies.py` fails where a
version is not pinned, is another than the pinned one, or has a license that is not permissive and not named here:

{named}

| package | version | license | needed by |
|---|---|---|---|
{chr(10).join(rows)}
"""


if __name__ == "__main__":
    (ROOT / "docs" / "dependencies.md").write_text(page(), encoding="utf-8")
