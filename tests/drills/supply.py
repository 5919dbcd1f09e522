"""What this package stands on: pins, licenses, and that its code runs and calls nobody without being asked."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from packaging.version import Version

from drills.dependencies import closure, pins, requirements
from drills.frame import ROOT, Drill, Tally
from patience import PATIENCE

IMPORTER = """
import json, pkgutil, sys
from importlib import import_module
calls = []
def watch(event, arguments):
    if event.startswith("socket.") or event in ("subprocess.Popen", "os.system", "urllib.Request"):
        calls.append(event)
sys.addaudithook(watch)
import gpt
names = [module.name for module in pkgutil.walk_packages(gpt.__path__, "gpt.") if not module.name.endswith("__main__")]
guilty = {}
for name in names:
    calls.clear()
    import_module(name)
    if calls:
        guilty[name] = sorted(set(calls))
print(json.dumps([len(names), guilty, sorted({name.partition(".")[0] for name in sys.modules})]))
"""
CALLERS_HOME = {"transformers", "huggingface_hub", "wandb", "openai", "sentry_sdk", "posthog", "datasets", "analytics"}
"""Packages that call their makers or a hub by default; they are for tests and benchmarks."""
FORBIDDEN = {
    **dict.fromkeys(("eval", "exec", "compile", "__import__"), "runs text as code"),
    **dict.fromkeys(("pickle.load", "pickle.loads", "marshal.loads", "shelve.open", "dill.load"), "runs what it reads"),
    **dict.fromkeys(("os.system", "os.popen"), "goes through a shell"),
    **dict.fromkeys(("yaml.unsafe_load", "yaml.full_load", "yaml.load_all"), "builds objects from YAML"),
    "numpy.load": "reads pickles",
    "np.load": "reads pickles",
    "tempfile.mktemp": "gives a name that another process may take",
}
ASKED_FOR = {("gpt/plugins.py", "compile"), ("gpt/plugins.py", "exec")}
"""A plugin is code that its user names."""
NETWORK = {"requests", "urllib3", "httpx", "aiohttp", "urllib.request", "http.client", "ftplib", "smtplib", "telnetlib"}
PAGES = (".html", ".js", ".css")
OUTSIDE = re.compile(
    r"""(?:src|href)\s*=\s*["']https?:|url\(\s*["']?https?:|fetch\(\s*["'`]https?:|@import\s+["']https?:"""
)

FIGURES = ("packages", "not as pinned", "licenses not on the list", "modules imported", "calls on import")
FIGURES += ("files read", "dangerous calls")


def check_pins(tally: Tally) -> None:
    """Compare what is required, pinned and installed."""
    pinned, needed = pins(), closure(requirements())
    direct_only = [name for name, dependency in needed.items() if dependency.installed is None]
    for name, dependency in needed.items():
        tally.count("packages")
        version = pinned.get(name)
        is_pinned = version is not None or dependency.is_exact
        tally.check(is_pinned, f"{name}, which {sorted(dependency.needed_by)} need, is not pinned")
        if dependency.installed is None:
            continue
        found = Version(dependency.installed.version).public
        same = version is None or tally.check(
            Version(version).public == found, f"{name}: {version} is pinned, {found} installed"
        )
        tally.count("not as pinned", not (same and version))
        unknown = dependency.unknown_licenses
        tally.count("licenses not on the list", len(unknown))
        tally.check(not unknown, f"{name}: license {dependency.license}")
    if not direct_only:  # otherwise what they need in turn is unknown here
        stale = sorted(pinned.keys() - needed.keys())
        tally.check(not stale, f"pinned but not needed: {stale}")


def check_imports(tally: Tally) -> None:
    """Import every module in a process that notes sockets and child processes."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    command = [sys.executable, "-c", IMPORTER]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    if not tally.check(result.returncode == 0, f"a module cannot be imported: {result.stderr[-500:]}"):
        return
    count, guilty, loaded = json.loads(result.stdout.splitlines()[-1])
    tally.count("modules imported", count)
    tally.count("calls on import", len(guilty))
    tally.check(not guilty, f"on import: {guilty}")
    tally.check(not CALLERS_HOME & set(loaded), f"imported: {CALLERS_HOME & set(loaded)}")


def check_code(tally: Tally) -> None:
    """Look for calls that run what they read, imports that reach the network, and addresses in pages."""
    for path in sorted((ROOT / "gpt").rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if path.suffix == ".py":
            tally.count("files read")
            problems = list(_problems(ast.parse(path.read_text(encoding="utf-8")), name))
        elif path.suffix in PAGES:
            tally.count("files read")
            problems = [f"loads {found[0]}" for found in OUTSIDE.finditer(path.read_text(encoding="utf-8"))]
        else:
            continue
        for problem in problems:
            tally.count("dangerous calls")
            tally.check(False, f"{name}: {problem}")


def _problems(tree: ast.AST, name: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called, keywords = ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}
            if called in FORBIDDEN and (name, called) not in ASKED_FOR:
                yield f"line {node.lineno}: {called} {FORBIDDEN[called]}"
            if called == "torch.load" and keywords.get("weights_only") != "True":
                yield f"line {node.lineno}: torch.load without weights_only"
            if called == "yaml.load" and keywords.get("Loader") != "_Loader":
                yield f"line {node.lineno}: yaml.load without the strict loader"
            if keywords.get("shell") == "True":
                yield f"line {node.lineno}: a shell"
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for module in names:
            if module.partition(".")[0] in CALLERS_HOME:
                yield f"imports {module}"
            if (module in NETWORK or module.partition(".")[0] in NETWORK) and name != "gpt/corpora/download.py":
                yield f"imports {module}, which is for gpt/corpora/download.py"


def run(folder: Path, full: bool) -> Tally:
    """Check everything that can be checked without a network."""
    tally = Tally(*FIGURES)
    check_pins(tally)
    check_code(tally)
    check_imports(tally)
    return tally


PROMISE = "Every dependency is pinned and licensed; importing and running the package calls nobody."
DRILL = Drill(PROMISE, run)
