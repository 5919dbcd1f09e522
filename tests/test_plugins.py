"""Plugins: what they can add, what a checkpoint says of them, and what is wrong with a bad one."""

import os
import re
from pathlib import Path

import pytest
import torch

from gpt.checkpoint import read_checkpoint
from gpt.cli import evaluate, sample, train
from gpt.config.components import SHIPPED, TABLES, names_of
from gpt.config.loading import parse_config
from gpt.config.plugins import PLUGINS, load_plugins, plugin_options, require_plugins
from gpt.extras.accounting.parameters import count_parameters
from gpt.extras.inspection.tracing.activation_cache import run_with_cache
from gpt.model import GPT
from gpt.model.flops import matmul_parameters
from gpt.model.layers import ACTIVATIONS
from gpt.native.fingerprint import DECODING, TRAINING, changed_code
from gpt.system.errors import CheckpointError, ConfigError
from plugin_files import PARTS, plugin_of, unload
from tiny import tiny_config

pytestmark = pytest.mark.usefixtures("no_plugins")
CHOSEN = (
    "model.mlp=own_mish",
    "model.position=own_alibi",
    "optim.name=momentum",
    "optim.schedule=own_linear",
    "run.kernels=torch",
)
TERMS = "train.loss_terms={own_confidence: 0.1}"
MISH = (
    "import torch.nn.functional as F\nfrom gpt.model.layers import "
    "ACTIVATIONS\nACTIVATIONS['own_mish'] = F.mish\n"
)


def test_every_shipped_name_is_in_its_table() -> None:
    """A table may have more: a part that a reader of docs/changing.md tries has no place in
    `SHIPPED` yet.
    """
    assert SHIPPED.keys() == TABLES.keys()
    for key, names in SHIPPED.items():
        assert set(names) <= set(names_of(key))


def test_a_configuration_names_the_parts_of_a_plugin(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"model.mlp: got 'own_mish', expected one of gelu, .*, swiglu$"
    ):
        parse_config("model: {mlp: own_mish}", "a.yaml")
    plugin_of(tmp_path)
    config = parse_config("model: {mlp: own_mish, norm: double}", "a.yaml")
    assert (config.model.mlp, config.model.norm) == ("own_mish", "double")


def test_plugin_is_loaded_anew_when_changed_refused_if_missing(tmp_path: Path) -> None:
    known = set(names_of("model.mlp"))
    first = plugin_of(tmp_path, MISH)
    load_plugins([str(tmp_path / "my_parts.py")])
    assert list(PLUGINS.values()) == [first]
    second = plugin_of(tmp_path, MISH.replace("own_mish", "own_silu").replace("F.mish", "F.silu"))
    assert set(names_of("model.mlp")) - known == {"own_silu"}
    assert plugin_options() == ["--plugin", str(second.path)]
    (tmp_path / "others.py").write_text(second.path.read_text().replace("F.silu", "F.relu"))
    with pytest.raises(
        ConfigError, match=r"others\.py: own_silu is already registered; choose another name"
    ):
        load_plugins(tmp_path / "others.py")
    os.mkfifo(tmp_path / "pipe.py")
    for name in ("none.py", "pipe.py"):
        with pytest.raises(ConfigError, match=rf"cannot read the plugin .*{name}: "):
            load_plugins(tmp_path / name)


MLP_CALLED = "from gpt.model.layers import MLPS, SwiGLU\nMLPS[{!r}] = SwiGLU\n"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = (", r": the plugin raises SyntaxError: '\(' was never closed"),
        ("import math\n\nmath.sqrt(-1)\n", ":3: the plugin raises ValueError: math domain error"),
        ("import sys\nsys.exit(3)", ":2: the plugin raises SystemExit: 3"),
        ("", ": the plugin adds no parts; write for example from gpt.model.layers import"),
        (MISH + "nonsense", ":4: the plugin raises NameError"),
        (
            MISH.replace("own_mish", "relu"),
            r"my_parts\.py: relu is already registered; choose another",
        ),
        (
            MLP_CALLED.format("gelu"),
            r"my_parts\.py: gelu is already registered for model\.mlp; choose another",
        ),
        (
            MISH.replace("own_mish", "swiglu"),
            r"my_parts\.py: swiglu is already registered for model\.mlp; choose another",
        ),
    ],
)
def test_a_bad_plugin_is_refused_in_one_line_and_adds_nothing(
    tmp_path: Path, code: str, message: str
) -> None:
    before = {key: names_of(key) for key in TABLES}
    with pytest.raises(ConfigError, match=message) as caught:
        plugin_of(tmp_path, code)
    assert str(caught.value).startswith(str(tmp_path / "my_parts.py"))
    assert "\n" not in str(caught.value)
    assert PLUGINS == {}
    assert ACTIVATIONS["relu"] is torch.relu
    assert {key: names_of(key) for key in TABLES} == before


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "ACTIVATIONS['odd'] = lambda x: x[..., :4]",
            r"model.mlp: odd returns a tensor of shape \(1, 2, 4\) for",
        ),
        ("ACTIVATIONS['odd'] = lambda x: 3", "model.mlp: odd returns no tensor"),
        (
            "ACTIVATIONS['odd'] = lambda x: x / nonsense",
            "model.mlp: odd raises NameError: name 'nonsense'",
        ),
        (
            "from torch import nn\nPOSITIONS['odd'] = lambda config: nn.Identity()",
            "model.position: odd is of Identity; expected a class derived from Added",
        ),
    ],
)
def test_a_part_is_tried_when_the_model_is_built(tmp_path: Path, code: str, message: str) -> None:
    tables = "from gpt.model.layers import ACTIVATIONS\nfrom gpt.model.positions import POSITIONS\n"
    plugin_of(tmp_path, tables + code)
    with pytest.raises(ConfigError, match=message):
        GPT(tiny_config(**{"position" if "POSITIONS" in code else "mlp": "odd"}))


def test_components_of_plugins_are_counted_and_run_in_pytorch(tmp_path: Path) -> None:
    plugin_of(tmp_path)
    assert (changed_code(TRAINING), changed_code(DECODING)) == (None, None)
    config = tiny_config(mlp="bilinear", norm="double", position="own_alibi")
    model = GPT(config)
    idx = torch.arange(5).view(1, 5)
    activation = dict(GPT(tiny_config(mlp="prelu")).named_parameters())["h.1.mlp.activation.weight"]
    assert activation.tolist() == [0.25]  # as it begins
    assert count_parameters(config).total == sum(
        parameter.numel() for parameter in model.parameters()
    )
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "wte" not in name]
    assert matmul_parameters(config) == sum(map(torch.numel, matrices)) + model.wte.weight.numel()
    logits, cache = run_with_cache(model.eval(), idx)
    torch.testing.assert_close(logits, model(idx))
    assert "blocks.0.mlp.hook_pre" not in cache
    assert "hook_pos_embed" not in cache


def test_checkpoint_needs_its_plugin_to_be_resumed_and_sampled(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = ("--plugin", "my_parts.py")
    Path("my_parts.py").write_text(PARTS, encoding="utf-8")
    assert train.main(["--config", "tiny.yaml", *plugin, *CHOSEN, TERMS]) == 0
    checkpoint = ("--checkpoint", "runs/tiny")
    for command in (sample, evaluate):
        capsys.readouterr()
        unload()
        assert command.main(checkpoint) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        remedy = "own_mish comes from the plugin my_parts.py; pass --plugin my_parts.py"
        assert re.match(f"error: .*model.mlp: {remedy}$", error)

    earlier = "runs/tiny/checkpoints/step-000003"
    assert (
        train.main(
            [
                "--config",
                "tiny.yaml",
                *CHOSEN,
                TERMS,
                "run.name=again",
                *plugin,
                "--resume",
                earlier,
            ]
        )
        == 0
    )
    (one, other) = (
        read_checkpoint(Path(f"runs/{name}/checkpoints/step-000006")) for name in ("tiny", "again")
    )
    assert all(torch.equal(weight, other.model[name]) for name, weight in one.model.items())
    parts = dict(pair.split("=") for pair in CHOSEN[:4])
    assert one.state["plugins"][0]["parts"] == {**parts, "train.loss_terms": "own_confidence"}

    Path("my_parts.py").write_text(PARTS + "\n# more\n", encoding="utf-8")
    assert evaluate.main([*checkpoint, *plugin]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert (
        lines.count("warning: the plugin my_parts.py has changed since the checkpoint was saved")
        == 1
    )


def test_help_runs_no_plugin(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my_parts.py").write_text("raise ValueError", encoding="utf-8")
    for command in (train, sample):
        with pytest.raises(SystemExit) as stop:
            command.main(["--plugin", "my_parts.py", "--help"])
        assert stop.value.code == 0
        assert "--plugin FILE" in capsys.readouterr().out


@pytest.mark.parametrize(
    "recorded", [3, [3], [{}], [{"file": "a", "sha256": "b", "parts": 3}], {"file": "a"}]
)
def test_a_damaged_record_of_plugins_is_an_error(recorded: object) -> None:
    with pytest.raises(CheckpointError, match="what it says of plugins cannot be read"):
        require_plugins(recorded)
    with pytest.raises(CheckpointError) as caught:
        require_plugins([{"file": "a\nb", "sha256": "", "parts": {"model.mlp": "x\x1b[2J"}}])
    assert str(caught.value).isprintable()
