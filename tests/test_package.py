"""The package as a whole: its public names, which part may import which, what an import costs."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from graphlib import TopologicalSorter
from itertools import chain
from pathlib import Path

import pytest

import gpt
from patience import PATIENCE

PACKAGE = Path(gpt.__file__).parent
FLOORS = [
    {"system"},
    {"config"},
    {"model", "data"},
    {"native", "checkpoint"},
    {"generation"},
    {"training"},
    {"extras"},
    {"api"},
    {"cli"},
    {"__main__"},
]
"""From the ground up: a part imports from lower floors and from itself only."""
REACH = {
    "gpt.cli.train": {
        "system",
        "config",
        "model",
        "data",
        "native",
        "checkpoint",
        "generation",
        "training",
        "cli",
    },
    "gpt.cli.sample": {
        "system",
        "config",
        "model",
        "data",
        "native",
        "checkpoint",
        "generation",
        "cli",
    },
    "gpt.model.gpt": {"system", "config", "model"},
}
"""The rooms that a command can load, imports inside functions included."""
LOADED_EXTRAS = {
    "gpt.cli.train": {"gpt.extras", "gpt.extras.snapshots", "gpt.extras.snapshot_text"}
}
"""Modules of extras that a command can load nevertheless.

A training is watched by snapshots unless they are switched off, and the trainer itself knows
nothing of them.
"""
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
FACADES = {module for module, path in MODULES.items() if path.name == "__init__.py"}
"""What stands for other files."""
WITHOUT_COMPILER = """
import sys
from pathlib import Path

import torch

from gpt.checkpoint import load_trained
from gpt.config import ModelConfig, OptimConfig
from gpt.extras.inspection.tracing.hooks import with_hooks
from gpt.native.decoding.weights import lay_out_weights
from gpt.model import GPT
from gpt.system.device import meta_device
from gpt.training.optimizers import build_optimizer

for position in ("learned", "sinusoidal", "rope"):
    sizes = dict(n_layer=1, n_head=2, n_embd=16, block_size=8, vocab_size=5)
    config = ModelConfig(**sizes, position=position)
    with meta_device():
        GPT(config)
    assert "torch._dynamo" not in sys.modules, "built without memory"
    model = GPT(config).eval()
    lay_out_weights(model)
    assert "torch._dynamo" not in sys.modules, "laid out for decoding"
    for name in ("adamw", "muon"):
        optimizer = build_optimizer(model, OptimConfig(name=name), torch.device("cpu"))
        optimizer.zero_grad()
        optimizer.load_state_dict(optimizer.state_dict())
    assert "torch._dynamo" not in sys.modules, "built, saved and loaded an optimizer"
with_hooks(model, ["logits"], lambda name, x: x)(torch.zeros(1, 2, dtype=torch.long))
assert "torch._dynamo" not in sys.modules, "looked into a model that is not compiled"
load_trained(Path("runs/tiny"), Path("runs"), torch.device("cpu"))
assert "torch._dynamo" not in sys.modules, "loaded"
"""


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def imported(nodes: Iterable[ast.AST]) -> set[str]:
    """The modules that some statements import."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} - {"gpt"} | {
                f"{node.module}.{alias.name}" for alias in node.names
            }
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def loaded_by(module: str, inside_functions: bool = False) -> set[str]:
    """The modules of the package that one imports, but for types only."""
    body: list[ast.AST] = [node for node in tree_of(module).body if not isinstance(node, ast.If)]
    return (
        imported(chain.from_iterable(map(ast.walk, body)) if inside_functions else body)
        & MODULES.keys()
    )


def closure_of(module: str) -> set[str]:
    """A module, and all that it can load."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        if (each := waiting.pop()) not in found:
            found.add(each)
            waiting += [
                *loaded_by(each, inside_functions=True),
                *([each.rpartition(".")[0]] if "." in each else []),
            ]
    return found


def part_of(module: str) -> str:
    return module.removeprefix("gpt.").partition(".")[0]


def test_import_sets_no_environment_variable() -> None:
    code = "import os; before = dict(os.environ); import gpt, benchmarks.cli; gpt.GPT; "
    code += "assert dict(os.environ) == before"
    variables = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    result = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_imports_run_down_only_and_never_to_the_benchmarks() -> None:
    wrong = {}
    for module in MODULES.keys() - {"gpt"}:
        part = part_of(module)
        modules = imported(ast.walk(tree_of(module)))
        floor = next(number for number, parts in enumerate(FLOORS) if part in parts)
        used = {part_of(each) for each in modules if each.startswith("gpt.")}
        above = used - set().union(*FLOORS[:floor], {part}) | {"benchmarks"} & {
            name.split(".")[0] for name in modules
        }
        wrong |= {module: above} if above else {}
    assert wrong == {}


@pytest.mark.parametrize("module", REACH)
def test_command_loads_its_rooms_only(module: str) -> None:
    loaded = closure_of(module)
    assert {each for each in loaded if part_of(each) == "extras"} == LOADED_EXTRAS.get(
        module, set()
    )
    assert {part_of(each) for each in loaded} - {"gpt", "extras"} == REACH[module]


OPENERS = {
    *(
        "open",
        "fdopen",
        "FileIO",
        "read_text",
        "read_bytes",
        "memmap",
        "mmap",
        "fromfile",
        "genfromtxt",
        "loadtxt",
    ),
    *("load", "safe_open", "load_file", "from_file", "from_pretrained", "PyTorchFileReader"),
    *("copyfile", "copyfileobj", "copy2", "copytree", "unpack_archive", "ZipFile"),
}
"""Functions and methods that open a file to read it, by whatever library."""
OTHER_READERS = {
    "gpt.system.device: read_text": "the kernel's own files below /proc and /sys",
    "gpt.system.idle_threads: read_text": "the kernel's own file below /proc",
    "gpt.system.machine: read_text": "the kernel's own files below /proc",
    "gpt.system.processor: read_text": "the kernel's own files below /proc",
    "gpt.checkpoint.pickles: PyTorchFileReader": (
        "bytes in memory, or a file that `open_file` opened"
    ),
    "gpt.checkpoint.pickles: load": "bytes in memory, or a file that `open_file` opened",
    "gpt.checkpoint.folder: load": "bytes in memory",
    "gpt.extras.inspection.views.snapshots: load": "bytes in memory",
    "gpt.extras.export.nanogpt: load": "bytes in memory",
    "gpt.config.strict_yaml: load": "a text",
    "gpt.data.dataset: memmap": "a file that `open_file` opened",
    "gpt.data.encoding: memmap": "a file that `open_file` opened",
    "gpt.extras.export.hugging_face: load_file": (
        "weights of an import, mapped, in files seen to be regular"
    ),
    "gpt.extras.web.document: read_text": "files of the package",
    "gpt.cli.command: open": "the null device",
    "gpt.cli.serve: open": "a page in a browser",
    "gpt.cli.shared_options: read_bytes": (
        "a text that a user names, which a shell may hand over as a pipe"
    ),
}
"""What may open files beside `gpt.system.files`, and why.

The kernels' sources, libraries and verdicts are not data.
"""


def openers_in(module: str) -> set[str]:
    """The functions by which a module opens files, but those that only write."""
    nodes = list(ast.walk(tree_of(module)))
    own = imported(ast.walk(tree_of(module)))
    writing = {
        node.func
        for node in nodes
        if isinstance(node, ast.Call) and mode_of(node) in ("w", "wb", "a", "x")
    }
    found = set()
    for node in nodes:
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
        is_ours = isinstance(node, ast.Name) and any(
            each.endswith(f".{name}") for each in own if each[:4] == "gpt."
        )
        is_module_or_argument = isinstance(node, ast.Name) and name in ("mmap", "load")
        if name in OPENERS and node not in writing and not is_ours and not is_module_or_argument:
            found.add(f"{module}: {name}")
    return found


def mode_of(call: ast.Call) -> object:
    """The mode of a call of `open`, or of the method of a path, where it is written out."""
    values = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    modes = [
        value.value
        for value in values
        if isinstance(value, ast.Constant) and isinstance(value.value, str)
    ]
    return modes[0] if modes else None


def test_files_of_users_are_opened_by_one_bounded_reader() -> None:
    """Others may have made them: a pipe, a link to a device or a huge file must not hold up or fill
    a process.
    """
    ours = [
        module for module in MODULES if part_of(module) != "native" and module != "gpt.system.files"
    ]
    assert set().union(*map(openers_in, ours)) == OTHER_READERS.keys()


def test_what_opens_files_is_seen_whatever_it_is_called_by(monkeypatch: pytest.MonkeyPatch) -> None:
    for code, name in (
        ("open(path)", "open"),
        ("io.open(path, 'r+b')", "open"),
        ("path.open(mode='rb')", "open"),
        ("list(map(Path.read_text, paths))", "read_text"),
        ("torch.load(path)", "load"),
        ("from safetensors import safe_open\nsafe_open(path, 'pt')", "safe_open"),
    ):
        monkeypatch.setattr(
            sys.modules[__name__], "tree_of", lambda module, code=code: ast.parse(code)
        )
        assert openers_in("gpt.new") == {f"gpt.new: {name}"}
    for code in (
        "path.open('wb')",
        "from gpt.cli.shared_options import read_text\nread_text(path)",
    ):
        monkeypatch.setattr(
            sys.modules[__name__], "tree_of", lambda module, code=code: ast.parse(code)
        )
        assert openers_in("gpt.new") == set()


def test_no_file_needs_itself() -> None:
    """Not even by way of others: within a part too, imports run in one direction."""
    TopologicalSorter(
        {each: loaded_by(each) - FACADES for each in MODULES.keys() - FACADES}
    ).prepare()


@pytest.mark.slow
def test_no_step_before_a_token_or_a_look_imports_the_compiler(trained: Path) -> None:
    """It would cost a second each time."""
    variables = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    command = [sys.executable, "-c", WITHOUT_COMPILER]
    result = subprocess.run(
        command, cwd=trained, env=variables, capture_output=True, text=True, timeout=PATIENCE
    )
    assert result.returncode == 0, result.stderr


def test_extras_and_files_that_texts_name_are_there() -> None:
    """Extras in messages, files in the tables of the architecture."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    sources = "".join(path.read_text(encoding="utf-8") for path in MODULES.values())
    extras = set(re.findall(r"glassgpt\[(\w+)\]", sources))
    assert len(extras) > 3
    assert extras <= project["optional-dependencies"].keys()
    document = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    for row in re.findall(r"^\|.*", document, re.MULTILINE):
        near = PACKAGE / "room"
        for name in re.findall(
            r"`([\w/]+\.(?:py|h))`", row
        ):  # one may be relative to a folder of the one before it
            near = next(
                (folder / name for folder in near.parents if (folder / name).is_file()), None
            )
            assert near is not None, name


def test_public_names_are_documented_and_seen_by_type_checkers() -> None:
    assert all(getattr(gpt, name).__doc__ for name in gpt.__all__)
    imports = [
        node for block in tree_of("gpt").body if isinstance(block, ast.If) for node in block.body
    ]
    seen = {
        alias.asname: node.module
        for node in imports
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == gpt._MODULE_OF
    assert dir(gpt) == sorted(seen)
    assert set(gpt.__all__) <= set(seen)
    assert isinstance(gpt.edits.zero(head=2), gpt.edits.Edit)  # without another import
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        gpt.nonsense  # noqa: B018
