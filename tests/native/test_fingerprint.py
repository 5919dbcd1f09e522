"""Edits of the model and of sampling, on disk and at run time: one line names each, and PyTorch
computes it.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
import torch.nn.functional as F
from native_support import needs_compiler
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gpt.config import ModelConfig, SamplingParams
from gpt.config.filters import FILTERS, Filter
from gpt.generation import runner as runner_file
from gpt.generation import tokens as tokens_file
from gpt.generation.generator import generate_tokens
from gpt.generation.reference import reference_tokens
from gpt.generation.runner import TorchRunner
from gpt.generation.runtime import DecodeOptions, build_runtime
from gpt.model import GPT
from gpt.model import attention as attention_file
from gpt.model import gpt as gpt_file
from gpt.model.attention import CORES, Attention, ReferenceCore, SDPACore
from gpt.model.gpt import Block
from gpt.model.layers import ACTIVATIONS, MLPS
from gpt.model.positions import POSITIONS
from gpt.model.quantized import QuantizedLinear, quantize
from gpt.native import fingerprint
from gpt.native.coverage import changed_module
from gpt.native.decoding.weights import unsupported_reason
from gpt.native.fingerprint import DECODING, SAMPLING, TRAINING, changed_code
from gpt.native.training.native_model import load_native_model
from gpt.system.device import Compute
from gpt.system.environment import read_settings
from gpt.system.errors import DeviceError
from gpt.training.muon import Muon
from planted_edits import EDITS
from tiny import sharp_model, tiny_config

FLOAT32 = Compute(torch.device("cpu"), torch.float32)
Node = TypeVar("Node", bound=ast.AST)


def test_the_fingerprint_is_that_of_the_code() -> None:
    assert fingerprint.current() == fingerprint.recorded(), (
        "compare and write it: python -m gpt.native.trial"
    )
    assert [changed_code(files) for files in (TRAINING, DECODING, SAMPLING)] == [None] * 3


FILES = sorted({*DECODING, *SAMPLING})


def nodes_of(tree: ast.AST, kind: type[Node]) -> Iterator[Node]:
    """Yield the nodes of a syntax tree that are of one kind."""
    return (node for node in ast.walk(tree) if isinstance(node, kind))


def change_number(tree: ast.Module) -> None:
    numbers = (node for node in nodes_of(tree, ast.Constant) if type(node.value) in (int, float))
    next(numbers).value += 1  # type: ignore[operator]


def change_condition(tree: ast.Module) -> None:
    """Compare by another operator, as `>` in place of `>=`."""
    comparison = next(nodes_of(tree, ast.Compare))
    comparison.ops[0] = ast.NotEq() if isinstance(comparison.ops[0], ast.Eq) else ast.Eq()


def change_name(tree: ast.Module) -> None:
    """Read or write another variable at the end of a function."""
    function = next(nodes_of(tree, ast.FunctionDef))
    next(nodes_of(function.body[-1], ast.Name)).id = "another"


def leave_out_statement(tree: ast.Module) -> None:
    function = next(node for node in nodes_of(tree, ast.FunctionDef) if len(node.body) > 1)
    function.body.pop()


def import_under_its_name(tree: ast.Module) -> None:
    """Import something else from the same module under the name of what was imported."""
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    alias = imports[-1].names[0]
    alias.asname = alias.name
    alias.name = "another"


def import_more(tree: ast.Module) -> None:
    tree.body += ast.parse("import itertools").body


def add_helper(tree: ast.Module) -> None:
    tree.body += ast.parse("def halves(x):\n    return x / 2").body


def add_statement(tree: ast.Module) -> None:
    tree.body += ast.parse("TABLE['gelu'] = None").body


def hide_built_in(tree: ast.Module) -> None:
    tree.body += ast.parse("def sum(x):\n    return x").body


KINDS_OF_EDITS: dict[str, Callable[[ast.Module], None]] = {
    "a number": change_number,
    "a condition": change_condition,
    "a name": change_name,
    "a statement less": leave_out_statement,
    "another import": import_under_its_name,
    "a new import": import_more,
    "a new helper": add_helper,
    "a new statement": add_statement,
    "a hidden built-in": hide_built_in,
}
"""Each changes the syntax tree of a file, wherever it first can."""


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package's files, which the fingerprint reads in their place."""
    for file in fingerprint.recorded():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(fingerprint.PACKAGE / file, tmp_path / file)
    monkeypatch.setattr(fingerprint, "PACKAGE", tmp_path)
    return tmp_path


def edit(path: Path, change: Callable[[ast.Module], None]) -> None:
    """Change the syntax tree of a file, and write it without comments and in another style."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    change(tree)
    path.write_text(ast.unparse(tree), encoding="utf-8")


@pytest.mark.parametrize("kind", KINDS_OF_EDITS)
@pytest.mark.parametrize("file", FILES)
def test_edit_on_disk_is_named_where_the_file_counts(file: str, kind: str, copy: Path) -> None:
    edit(copy / file, KINDS_OF_EDITS[kind])
    for files in (TRAINING, DECODING, SAMPLING):
        expected = f"gpt/{file} was edited" if file in files else None
        assert changed_code(files) == expected


def change_docstrings(tree: ast.Module) -> None:
    for node in (tree, *nodes_of(tree, ast.FunctionDef), *nodes_of(tree, ast.ClassDef)):
        if ast.get_docstring(node) is not None:
            node.body[0] = ast.Expr(ast.Constant("Another docstring."))


@pytest.mark.parametrize("file", FILES)
def test_comments_docstrings_and_style_have_no_part_in_it(file: str, copy: Path) -> None:
    edit(copy / file, change_docstrings)
    assert fingerprint.current() == fingerprint.recorded()


def test_file_that_is_no_python_is_named(copy: Path) -> None:
    (copy / "model/layers.py").write_text("class MLP((", encoding="utf-8")
    assert changed_code(TRAINING) == "gpt/model/layers.py raises SyntaxError"


def twice(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def doubled(*arguments: Any, **options: Any) -> Tensor:
        return 2 * function(*arguments, **options)

    doubled.__wrapped__ = function  # type: ignore[attr-defined]
    return doubled


def replacing(owner: Any, name: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(owner, name, twice(getattr(owner, name)))


AT_RUN_TIME: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "build_mlp of gpt/model/gpt.py": replacing(gpt_file, "build_mlp"),
    "Attention of gpt/model/attention.py": replacing(Attention, "forward"),
    "ReferenceCore of gpt/model/attention.py": replacing(ReferenceCore, "__init__"),
    "Block of gpt/model/gpt.py": lambda patch: patch.setattr(Block.forward, "__defaults__", (1,)),
    "Block of gpt/model": lambda patch: patch.setattr(
        Block, "__call__", Block.forward, raising=False
    ),
    "Attention of gpt/model": lambda patch: patch.setattr(
        gpt_file, "Attention", type("A", (Attention,), {})
    ),
    "ACTIVATIONS of gpt/model/layers.py": lambda patch: patch.setitem(
        ACTIVATIONS, "gelu", torch.sin
    ),
    "ACTIVATIONS of gpt/model": lambda patch: patch.setitem(ACTIVATIONS, "gelu", twice(F.gelu)),
}


@pytest.mark.parametrize("name", [*AT_RUN_TIME, *EDITS])
def test_replacement_at_run_time_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (AT_RUN_TIME | EDITS)[name](monkeypatch)
    for files in (TRAINING, DECODING):
        found = changed_code(files)
        assert found is not None
        assert (name if name in AT_RUN_TIME else " of gpt/model/") in found
        assert found.endswith(" was replaced")


class Fixed:
    """A descriptor, which takes the place of a module of every block."""

    def __get__(self, owner: Any, kind: type) -> nn.Module:
        return nn.Identity()


def swapped(config: ModelConfig) -> nn.Module:
    return POSITIONS["sinusoidal"](config)


def reordered(patch: pytest.MonkeyPatch) -> None:
    first = next(iter(FILTERS))
    part = FILTERS[first]
    patch.delitem(FILTERS, first)
    FILTERS[first] = part


ELSEWHERE: dict[str, tuple[tuple[str, ...], Callable[[pytest.MonkeyPatch], None]]] = {
    "Block of gpt/model/gpt.py": (
        TRAINING,
        lambda patch: patch.setattr(Block, "mlp", Fixed(), raising=False),
    ),
    "Block of gpt/model/gpt.py, an attribute": (
        TRAINING,
        lambda patch: patch.setattr(Block, "n", 2, raising=False),
    ),
    "Attention of gpt/model/attention.py": (
        TRAINING,
        lambda patch: patch.delattr(Attention, "forward"),
    ),
    "CORES of gpt/model/attention.py": (
        TRAINING,
        lambda patch: patch.setitem(CORES, "auto", SDPACore),
    ),
    "POSITIONS of gpt/model/positions.py": (
        TRAINING,
        lambda patch: patch.setitem(POSITIONS, "rope", swapped),
    ),
    "max of gpt/model/attention.py": (
        TRAINING,
        lambda patch: patch.setattr(attention_file, "max", min, raising=False),
    ),
    "GPT of gpt/model/gpt.py": (DECODING, replacing(GPT, "__init__")),
    "QuantizedLinear of gpt/model/quantized.py": (
        DECODING,
        lambda patch: patch.setattr(
            QuantizedLinear, "weight", property(lambda self: self.unpacked)
        ),
    ),
    "Muon of gpt/training/muon.py, a default of another type": (
        TRAINING,
        lambda patch: patch.setattr(
            Muon.__init__, "__defaults__", (0.02, 0.95, 0, 5, torch.float32)
        ),
    ),
    "Filter of gpt/config/filters.py": (SAMPLING, lambda patch: patch.setattr(Filter, "off", 1)),
    "FILTERS of gpt/config/filters.py": (SAMPLING, reordered),
    "sample of gpt/generation/tokens.py": (SAMPLING, replacing(tokens_file, "sample")),
    "sample_tokens of gpt/generation/runner.py": (
        SAMPLING,
        replacing(runner_file, "sample_tokens"),
    ),
    "TorchRunner of gpt/generation/runner.py": (DECODING, replacing(TorchRunner, "_forward")),
    "Linear of torch": (TRAINING, replacing(nn.Linear, "forward")),
    "scaled_dot_product_attention of torch": (
        TRAINING,
        replacing(F, "scaled_dot_product_attention"),
    ),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_replacement_where_a_definition_is_used_is_named(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, replace = ELSEWHERE[name]
    order = list(FILTERS)
    with monkeypatch.context() as patch:
        replace(patch)
        assert changed_code(files) == f"{name.partition(',')[0]} was replaced"
    for key in order:
        FILTERS[key] = FILTERS.pop(key)
    assert changed_code(files) is None


AFTER_IMPORT = """
from pathlib import Path

file = Path("gpt/model/gpt.py")
source = file.read_text()
if FORMER != source:
    file.write_text(FORMER)

from gpt.native import fingerprint, source_file
import gpt.model

for later in LATER:
    file.write_text(later)
    source_file.read_source.cache_clear()
    print(fingerprint.changed_code(fingerprint.TRAINING))
"""


def said_after_import(folder: Path, former: str, later: list[str]) -> list[str]:
    """What is said of `gpt/model/gpt.py` once its former text was imported, and others lie on the
    disk.
    """
    shutil.copytree(
        fingerprint.PACKAGE, folder / "gpt", ignore=shutil.ignore_patterns("__pycache__")
    )
    script = f"FORMER = {former!r}\nLATER = {later!r}\n{AFTER_IMPORT}"
    command = [sys.executable, "-c", script]
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


MODEL = Path(gpt_file.__file__).read_text(encoding="utf-8")
EDITED_LATER = "Block of gpt/model/gpt.py was edited after it was imported; start again"


def edited_model(change: Callable[[ast.FunctionDef], None]) -> str:
    """Return gpt/model/gpt.py with a change of the `forward` of `Block`."""
    tree = ast.parse(MODEL)
    block = next(node for node in nodes_of(tree, ast.ClassDef) if node.name == "Block")
    change(next(node for node in nodes_of(block, ast.FunctionDef) if node.name == "forward"))
    return ast.unparse(tree)


def subtract_result(forward: ast.FunctionDef) -> None:
    """Subtract where the result is a sum, `return x - ...`: no line more or less."""
    returned = next(nodes_of(forward, ast.Return)).value
    assert isinstance(returned, ast.BinOp)
    returned.op = ast.Sub()


def change_docstring(forward: ast.FunctionDef) -> None:
    assert ast.get_docstring(forward) is not None
    forward.body[0] = ast.Expr(ast.Constant("Another docstring."))


def test_file_that_was_edited_after_its_import_was_not_replaced(tmp_path: Path) -> None:
    later = {
        "# a comment\n" + MODEL: "None",
        edited_model(subtract_result): "gpt/model/gpt.py was edited",
        MODEL + " " * 4: "None",
        edited_model(change_docstring): EDITED_LATER,
    }
    assert said_after_import(tmp_path, MODEL, [*later]) == [*later.values()]


def test_edit_that_was_imported_and_then_undone_is_named(tmp_path: Path) -> None:
    """The file has the hash that is recorded, and the same lines; the edited model is in memory."""
    edited = edited_model(subtract_result)
    assert said_after_import(tmp_path, edited, [MODEL]) == [EDITED_LATER]


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return 2 * func(*args, **(kwargs or {}))


class Watching(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_hooks_of_all_modules_and_function_modes_are_named() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, y: None)
    assert changed_code(TRAINING) == "torch has _global_forward_hooks"
    handle.remove()
    with Doubling():
        assert "Doubling" in str(changed_code(TRAINING))
    with Watching():
        assert "Watching" in str(changed_code(TRAINING))
    with torch.device("cpu"):
        assert changed_code(TRAINING) is None


RECIPE = {"norm": "rmsnorm", "position": "rope", "qk_norm": True, "n_embd": 64, "n_head": 2}


def build(**changes: Any) -> GPT:
    torch.manual_seed(0)
    return GPT(tiny_config(**{**RECIPE, "block_size": 72, **changes}))


class Scaled(Block):
    def forward(self, *arguments: Any) -> Tensor:
        return 0.5 * super().forward(*arguments)


class Negated(SDPACore):
    def forward(self, *arguments: Any) -> Tensor:
        return -super().forward(*arguments)


class Halved(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 0.1 * super().forward(x)


class Mine(GPT):
    pass


class Marked(nn.Parameter):
    pass


def marked(layer: nn.Linear) -> nn.Parameter:
    return Marked(layer.weight.detach())


def with_forward(module: Any) -> None:
    module.forward = twice(module.forward)


IN_MODEL: dict[str, Callable[[Any], object]] = {
    "modules of class Scaled": lambda model: model.h.__setitem__(1, Scaled(model.config)),
    "modules of class ParametrizedLinear": lambda model: parametrizations.weight_norm(
        model.h[0].attn.c_q
    ),
    "the shapes of h.0": lambda model: setattr(
        model.h[0].mlp, "c_fc", nn.Linear(64, 512, bias=False)
    ),
    "a model with h.0.more": lambda model: setattr(model.h[0], "more", nn.Linear(2, 2)),
    "a model without h.1": lambda model: setattr(model, "h", model.h[:1]),
    "hooks, and h.1.mlp has one": lambda model: model.h[1].mlp.register_forward_hook(
        lambda m, a, y: 2 * y
    ),
    "hooks, and h.1 has one": lambda model: model.h[1].register_forward_pre_hook(lambda m, a: a),
    "h.0.mlp.forward, which was changed": lambda model: with_forward(model.h[0].mlp),
    "h.0._call_impl, which was": lambda model: setattr(
        model.h[0], "_call_impl", model.h[0].forward
    ),
    "h.1.mlp.activation, which was changed": lambda model: setattr(
        model.h[1].mlp, "activation", F.mish
    ),
    "h.1.ln_1.eps, which was changed": lambda model: setattr(model.h[1].ln_1, "eps", 0.1),
    ".*mlp.c_fc.weight, a Marked": lambda model: setattr(
        model.h[1].mlp.c_fc, "weight", marked(model.h[1].mlp.c_fc)
    ),
    "modules of class Mine": lambda model: setattr(model, "__class__", Mine),
    "lm_head.forward, which was": lambda model: with_forward(model.lm_head),
}
IN_DROPOUT = {
    "h.0.mlp.dropout.p, which was": lambda model: setattr(model.h[0].mlp.dropout, "p", 0.5)
}


@pytest.mark.parametrize("said", [*IN_MODEL, *IN_DROPOUT])
def test_change_in_a_model_is_named_where_it_matters(said: str) -> None:
    """Decoding has no dropout."""
    model = build(dropout=0.1)
    assert unsupported_reason(model) is None
    assert changed_module(model, trains=True) is None
    (IN_MODEL | IN_DROPOUT)[said](model)
    reason = unsupported_reason(model)
    if said in IN_DROPOUT:
        assert reason is None
    else:
        assert re.match(f"the native backend does not cover {said}", str(reason))
    with pytest.raises(DeviceError, match=f"^the native kernels do not cover {said}"):
        load_native_model(model, FLOAT32, read_settings())


@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
def test_function_set_on_a_quantized_module_is_named(weights: str) -> None:
    """The decoder reads the weights of the module, and would not call the function."""
    model = quantize(build(), weights)
    assert unsupported_reason(model) is None
    with_forward(model.h[0].attn.c_q)
    assert unsupported_reason(model) == (
        "the native backend does not cover h.0.attn.c_q.forward, which was changed"
    )


@pytest.mark.usefixtures("no_plugins")
def test_plugin_replacing_a_shipped_activation_runs_in_pytorch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(MLPS, "gelu", MLPS["swiglu"])
    said = "do(es)? not cover model.mlp=gelu, which is both an activation and an MLP$"
    assert re.search(said, str(unsupported_reason(build())))
    with pytest.raises(DeviceError, match=said):
        load_native_model(build(), FLOAT32, read_settings())


@needs_compiler
def test_edited_model_trains_and_decodes_by_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = sharp_model(**RECIPE)
    lines: list[str] = []
    assert build_runtime(model, report=lines.append).name == "native, fp32 cache"
    EDITS["no residual"](monkeypatch)
    assert build_runtime(model, report=lines.append).name == "eager, fp32 cache"
    assert lines == [
        "no native backend, which is several times faster: Block of gpt/model/gpt.py was replaced"
    ]
    with pytest.raises(DeviceError, match=r"^Block of gpt/model/gpt\.py was replaced$"):
        load_native_model(build(), FLOAT32, read_settings())


def same(logits: Tensor, *_: Any) -> Tensor:
    return logits


@needs_compiler
@pytest.mark.parametrize("name", ["top_k", "repetition_penalty"])
def test_edited_sampling_is_by_pytorch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = sharp_model(**RECIPE)
    lines: list[str] = []
    params = SamplingParams.model_validate({"temperature": 0.9, name: 3, "max_new_tokens": 30})
    if name in FILTERS:
        monkeypatch.setitem(FILTERS, name, Filter(same, FILTERS[name].field))
    else:
        monkeypatch.setattr(f"gpt.generation.sampling.{name}", same)
    runtime = build_runtime(model, DecodeOptions("native"), report=lines.append)
    assert list(generate_tokens(model, [1, 2], params, runtime)) == list(
        reference_tokens(model, [1, 2], params)
    )
    where = (
        "FILTERS of gpt/config/filters.py"
        if name in FILTERS
        else f"{name} of gpt/generation/sampling.py"
    )
    assert lines == [f"sampling with PyTorch's operators: {where} was replaced"]
