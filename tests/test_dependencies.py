"""What this package stands on: pins, and that its code runs and calls nobody without being asked."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from patience import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
CORE = "glassgpt"

IMPORTER = """
import json, pkgutil, sys
from importlib import import_module
calls = []
def watch(event, arguments):
    if event.startswith("socket.") or event in ("subprocess.Popen", "os.system", "urllib.Request"):
        calls.append(event)
sys.addaudithook(watch)
import gpt
names = [module.name for module in pkgutil.walk_packages(gpt.__path__, "gpt.")]
names = [name for name in names if not name.endswith("__main__")]
guilty = {}
for name in names:
    calls.clear()
    import_module(name)
    if calls:
        guilty[name] = sorted(set(calls))
print(json.dumps([guilty, sorted({name.partition(".")[0] for name in sys.modules})]))
"""

CALLERS_HOME = {"transformers", "huggingface_hub", "wandb", "openai", "sentry_sdk", "posthog", "datasets", "analytics"}
"""Packages that call their makers or a hub by default; they are for tests and benchmarks."""
FORBIDDEN = {
    **dict.fromkeys(("eval", "exec", "compile", "__import__"), "runs text as code"),
    **dict.fromkeys(("pickle.load", "pickle.loads", "marshal.loads", "shelve.open", "dill.load"), "runs what it reads"),
    **dict.fromkeys(("os.system", "os.popen"), "goes through a shell"),
    **dict.fromkeys(("yaml.unsafe_load", "yaml.full_load", "yaml.load_all"), "builds objects from YAML"),
    **dict.fromkeys(("numpy.load", "np.load"), "reads pickles"),
    "tempfile.mktemp": "gives a name that another process may take",
}
ASKED_FOR = {(name, called) for name in ("plugins.py", "kernels/fingerprint.py") for called in ("compile", "exec")}
"""A plugin is code that its user names; a fingerprint runs modules of this package anew, beside those in memory."""
NETWORK = {"requests", "urllib3", "httpx", "aiohttp", "urllib.request", "http.client", "ftplib", "smtplib", "telnetlib"}
OUTSIDE = re.compile(
    r"""(?:src|href)\s*=\s*["']https?:|url\(\s*["']?https?:|fetch\(\s*["'`]https?:|@import\s+["']https?:"""
)
FILES = sorted((ROOT / "gpt").rglob("*"))


def problems(tree: ast.AST, name: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called, keywords = ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}
            if called in FORBIDDEN and (name, called) not in ASKED_FOR:
                yield f"{called} {FORBIDDEN[called]}"
            if called == "torch.load" and keywords.get("weights_only") != "True":
                yield "torch.load without weights_only"
            if called == "yaml.load" and keywords.get("Loader") != "_Loader":
                yield "yaml.load without the strict loader"
            if keywords.get("shell") == "True":
                yield "a shell"
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for module in names:
            if module.partition(".")[0] in CALLERS_HOME:
                yield f"imports {module}"
            if {module, module.partition(".")[0]} & NETWORK and name != "corpora/download.py":
                yield f"imports {module}, which is for corpora/download.py"


def test_no_code_runs_what_it_reads_or_reaches_the_network() -> None:
    found = {
        name: list(problems(ast.parse(path.read_text(encoding="utf-8")), name))
        for path in FILES
        if path.suffix == ".py" and (name := path.relative_to(ROOT / "gpt").as_posix())
    }
    assert len(found) > 150
    assert not any(found.values()), {name: every for name, every in found.items() if every}


def test_no_page_loads_anything_from_elsewhere() -> None:
    assert OUTSIDE.search('<script src="https://cdn.example/x.js">')
    pages = [path for path in FILES if path.suffix in (".html", ".js", ".css")]
    assert len(pages) > 20
    assert [path for path in pages if OUTSIDE.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.slow
def test_importing_any_module_calls_nobody() -> None:
    command = [sys.executable, "-c", IMPORTER]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=True)
    guilty, loaded = json.loads(result.stdout.splitlines()[-1])
    assert guilty == {}
    assert not CALLERS_HOME & set(loaded)


def requirements() -> dict[str, list[str]]:
    """The requirements of the package and of each extra, as pyproject.toml has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {CORE: project["dependencies"], **project["optional-dependencies"]}


def needed() -> dict[str, bool]:
    """Everything that the package and its extras need, directly or not: whether who needs it says which version."""
    required, found, seen = requirements(), dict[str, bool](), set[str]()
    waiting = [Requirement(line) for lines in required.values() for line in lines]
    while waiting:
        requirement = waiting.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        name, extras = canonicalize_name(requirement.name), {"", *requirement.extras}
        if name == CORE:
            waiting += [Requirement(line) for extra in requirement.extras for line in required[extra]]
            continue
        found[name] = found.get(name, False) or any(part.operator == "==" for part in requirement.specifier)
        for each in map(Requirement, (distribution(name).requires or []) if is_installed(name) else []):
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(each)
    return found


def is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def pins() -> dict[str, str]:
    """The versions of constraints.txt by name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version.strip() for name, version in pairs}


def test_every_package_is_pinned_and_every_pin_is_needed() -> None:
    pinned, found = pins(), needed()
    assert [name for name, is_exact in found.items() if name not in pinned and not is_exact] == []
    if all(map(is_installed, found)):  # otherwise what they need in turn is unknown here
        assert sorted(pinned.keys() - found.keys()) == []


def test_what_is_installed_is_what_is_pinned() -> None:
    pinned = pins()
    for name in filter(is_installed, needed()):
        version = Version(distribution(name).version).public
        assert Version(pinned.get(name, version)) == Version(version), name
