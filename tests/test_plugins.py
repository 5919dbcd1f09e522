"""Plugins: what they can add, what a checkpoint says of them, and what is wrong with a bad one."""

import json
import sys
from pathlib import Path

import pytest
import torch

from gpt.accounting.flops import matmul_parameters
from gpt.accounting.parallel import parallel_step
from gpt.accounting.parameters import count_parameters
from gpt.checkpoint import read_checkpoint
from gpt.cli import evaluate, sample, sweep, train
from gpt.config import Config, SamplingParams, dump_config, load_config, parse_config
from gpt.errors import CheckpointError, ConfigError, GenerationError, GPTWarning
from gpt.generation.sampling import next_token_probabilities
from gpt.inspection.tracing.activation_cache import run_with_cache
from gpt.model import GPT
from gpt.parts import PLUGINS, TABLES, shipped_names
from gpt.plugins import load_plugins, plugin_options, require_plugins, used_plugins
from gpt.serving.http.playground.launcher import Launcher
from gpt.training.optimizers import build_optimizer
from plugin_files import PARTS, plugin_of, unload
from tiny import tiny_config

pytestmark = pytest.mark.usefixtures("no_plugins")
CHOSEN = ("model.mlp=mish", "model.position=alibi", "optim.name=momentum", "sample.sharpen=2.0", "run.kernels=torch")
MISH = "import torch.nn.functional as F\nACTIVATIONS = {'mish': F.mish}\n"


@pytest.fixture
def trained_with_parts(workplace: Path) -> Path:
    """The folder of a run whose parts come from a plugin, in a process that has forgotten it."""
    (workplace / "my_parts.py").write_text(PARTS, encoding="utf-8")
    assert train.main(["--config", "tiny.yaml", "--plugin", "my_parts.py", *CHOSEN]) == 0
    unload()
    return Path("runs/tiny")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_names_read_from_the_source_are_those_of_the_table(table) -> None:
    module = __import__(f"gpt.{table.file.removesuffix('.py').replace('/', '.')}", fromlist=[table.name])
    assert shipped_names(table) == tuple(getattr(module, table.name))
    assert shipped_names(table)


def test_a_configuration_names_the_parts_of_a_plugin(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"model.mlp: got 'mish', expected one of gelu, gelu_tanh, relu, relu2, swiglu$"
    ):
        parse_config("model: {mlp: mish}", "a.yaml")
    plugin_of(tmp_path)
    config = parse_config("{model: {mlp: mish, norm: double}, sample: {sharpen: 2.0}}", "a.yaml")
    assert (config.model.mlp, config.sample.sharpen) == ("mish", 2.0)
    with pytest.raises(ConfigError, match=r"sharpen: got 10.0, expected less than or equal to 9"):
        parse_config("sample: {sharpen: 10.0}", "a.yaml")
    with pytest.raises(ConfigError, match="did you mean sharpen"):
        parse_config("sample: {sharpn: 2.0}", "a.yaml")
    assert "mish" in json.dumps(Config.model_json_schema())


def test_a_filter_of_a_plugin_is_applied_after_those_of_the_package(tmp_path: Path) -> None:
    plugin_of(tmp_path)
    row = next_token_probabilities(torch.tensor([1.0, 2.0, 3.0]), SamplingParams(temperature=1.0, top_k=2, sharpen=2.0))
    torch.testing.assert_close(row, torch.tensor([-torch.inf, 4.0, 6.0]).softmax(dim=0))


def test_the_same_file_is_loaded_once_and_again_when_it_has_changed(tmp_path: Path) -> None:
    first = plugin_of(tmp_path, MISH)
    load_plugins([str(tmp_path / "my_parts.py")])
    assert [first] == PLUGINS
    second = plugin_of(tmp_path, MISH.replace("mish", "silu"))
    assert [plugin.names("model.mlp") for plugin in PLUGINS] == [["silu"]]
    assert plugin_options() == ["--plugin", str(second.path)]


def test_two_plugins_add_up_and_may_not_share_a_name(tmp_path: Path) -> None:
    plugin_of(tmp_path, MISH)
    plugin_of(tmp_path, MISH.replace("'mish'", "'silu'"), "others.py")
    parse_config("model: {mlp: silu}", "a.yaml")
    with pytest.raises(ConfigError, match=r"third.py: ACTIVATIONS: mish is a name of the plugin .*my_parts.py already"):
        plugin_of(tmp_path, MISH, "third.py")
    assert len(PLUGINS) == 2


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = (", r":1: the plugin is not Python: '\(' was never closed"),
        ("x = 1\x00", "the plugin is not Python"),
        ("import math\n\nmath.sqrt(-1)\n", ":3: the plugin raises ValueError: math domain error"),
        ("import no_such_module", ":1: the plugin raises ModuleNotFoundError: No module named 'no_such_module'"),
        ("import sys\nsys.exit(3)", ":2: the plugin raises SystemExit: 3"),
        (
            "",
            "the plugin has no parts; it needs one of the tables ACTIVATIONS, MLPS, NORMS, POSITIONS, OPTIMIZERS, FILT",
        ),
        ("ACTIVATIONS = {}", "the plugin has no parts"),
        ("ACTIVATIONS = [abs]", "ACTIVATIONS is of type list, expected a dict by name"),
        ("ACTIVATIONS = {'mish': 3}", "ACTIVATIONS: mish is of type int, expected a function or a class"),
        ("ACTIVATIONS = {'Mish!': abs}", "ACTIVATIONS: 'Mish!' is no name; expected small letters, digits and _"),
        ("ACTIVATIONS = {'gelu': abs}", "ACTIVATIONS: gelu is a name of gpt already; choose another"),
        ("ACTIVATIONS = MLPS = {'mish': abs}", "MLPS: mish is a name of gpt already"),
        ("MLPS = {'relu': abs}", "MLPS: relu is a name of gpt already"),
        (
            "FILTERS = {'sharpen': abs}",
            "FILTERS: sharpen is of type builtin_function_or_method, expected a gpt.filters.F",
        ),
        (
            "from gpt.filters import Filter\nFILTERS = {'sharpen': Filter(abs, 3)}",
            "FILTERS: sharpen needs a pydantic.Field whose default is a number",
        ),
        (
            "from pydantic import Field\nfrom gpt.filters import Filter\nFILTERS = {'seed': Filter(abs, Field(1.0))}",
            "FILTERS: seed is a name of gpt already",
        ),
    ],
)
def test_a_bad_plugin_is_refused_in_one_line(tmp_path: Path, code: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        plugin_of(tmp_path, code)
    assert str(caught.value).startswith(str(tmp_path / "my_parts.py"))
    assert "\n" not in str(caught.value)
    assert PLUGINS == []


def test_a_plugin_that_is_no_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, message in (
        (tmp_path / "none.py", "no such plugin"),
        (tmp_path, "is a folder; a plugin is a Python file"),
    ):
        assert train.main(["--config", "any.yaml", "--plugin", str(path)]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "ACTIVATIONS = {'mish': lambda x: x[..., :4]}",
            r"model.mlp: mish returns a tensor of shape \(1, 2, 4\) for one",
        ),
        ("ACTIVATIONS = {'mish': lambda x: 3}", "model.mlp: mish returns no tensor"),
        ("ACTIVATIONS = {'mish': lambda x: x / nonsense}", "model.mlp: mish raises NameError: name 'nonsense'"),
    ],
)
def test_an_activation_is_tried_when_the_model_is_built(tmp_path: Path, code: str, message: str) -> None:
    plugin_of(tmp_path, code)
    with pytest.raises(ConfigError, match=message):
        GPT(tiny_config(mlp="mish"))


def test_a_position_encoding_acts_in_one_of_three_ways(tmp_path: Path) -> None:
    plugin_of(tmp_path, "from torch import nn\nPOSITIONS = {'odd': lambda config: nn.Identity()}")
    with pytest.raises(ConfigError, match=r"model.position: odd is of Identity; expected a class derived from Added"):
        GPT(tiny_config(position="odd"))


def test_a_filter_that_returns_another_shape_is_an_error(tmp_path: Path) -> None:
    plugin_of(tmp_path, PARTS.replace("logits * power", "logits[..., :1]"))
    with pytest.raises(GenerationError, match="the filter sharpen returns another shape"):
        next_token_probabilities(torch.zeros(1, 5), SamplingParams(sharpen=2.0))


def test_an_activation_keeps_the_parameters_that_it_begins_with(tmp_path: Path) -> None:
    plugin_of(tmp_path)
    parameters = dict(GPT(tiny_config(mlp="prelu")).named_parameters())
    assert parameters["h.1.mlp.activation.weight"].tolist() == [0.25]


def test_parts_of_plugins_are_counted_and_seen(tmp_path: Path) -> None:
    plugin_of(tmp_path)
    config = tiny_config(mlp="bilinear", norm="double", position="alibi")
    model, idx = GPT(config), torch.arange(5).view(1, 5)
    assert count_parameters(config).total == sum(parameter.numel() for parameter in model.parameters())
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "wte" not in name]
    assert matmul_parameters(config) == sum(map(torch.numel, matrices)) + model.wte.weight.numel()
    assert parallel_step(config, "momentum", "fsdp", 2).optimizer == 0  # not counted
    logits, cache = run_with_cache(model.eval(), idx)
    torch.testing.assert_close(logits, model(idx))
    assert "blocks.0.mlp.hook_pre" not in cache
    assert "hook_pos_embed" not in cache


def test_a_checkpoint_without_its_plugin_is_refused_by_every_command(
    trained_with_parts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = "model.mlp: mish comes from the plugin my_parts.py; pass --plugin my_parts.py"
    capsys.readouterr()
    resume = ["--config", str(trained_with_parts / "config.yaml"), "--resume", "auto"]
    checkpoint = ["--checkpoint", str(trained_with_parts)]
    for command, words in ((train, resume), (sample, checkpoint), (evaluate, checkpoint)):
        assert command.main(words) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("error: ")
        assert error.endswith(missing)
        unload()


def test_with_its_plugin_a_checkpoint_is_resumed_and_sampled(
    trained_with_parts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resume = ["--config", "tiny.yaml", *CHOSEN, "run.name=again", "--plugin", "my_parts.py"]
    assert train.main([*resume, "--resume", str(trained_with_parts / "checkpoints/step-000003")]) == 0
    (one, other) = (read_checkpoint(Path(f"runs/{name}/checkpoints/step-000006")) for name in ("tiny", "again"))
    assert all(torch.equal(weight, other.model[name]) for name, weight in one.model.items())
    assert one.state["plugins"][0]["parts"] == dict(pair.split("=") for pair in CHOSEN[:3]) | {"sample.sharpen": 2.0}
    capsys.readouterr()
    words = ["--checkpoint", "runs/again", "--backend", "eager", "--plugin", "my_parts.py", "--max-new-tokens", "9"]
    texts = []
    for power in ("1", "9"):
        assert sample.main([*words, "--sharpen", power, "--temperature", "2"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] != texts[1]
    assert sample.main([*words, "--sharpen", "10"]) == 2
    assert "--sharpen: got 10.0, expected less than or equal to 9" in capsys.readouterr().err


def test_a_plugin_that_has_changed_since_is_reported_in_one_line(
    trained_with_parts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("my_parts.py").write_text(PARTS + "\n# more\n", encoding="utf-8")
    capsys.readouterr()
    assert evaluate.main(["--checkpoint", str(trained_with_parts), "--plugin", "my_parts.py"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines.count("warning: the plugin my_parts.py has changed since the checkpoint was saved") == 1


def test_a_checkpoint_that_uses_no_part_of_a_plugin_does_not_need_it(tmp_path: Path) -> None:
    plugin_of(tmp_path)
    assert used_plugins(Config()) == []
    text = dump_config(Config())
    assert "sharpen" not in text
    unload()
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    assert load_config(tmp_path / "config.yaml").config == Config()


@pytest.mark.parametrize("recorded", [3, [3], [{}], [{"file": "a", "sha256": "b", "parts": 3}], {"file": "a"}])
def test_a_damaged_record_of_plugins_is_an_error(recorded: object) -> None:
    with pytest.raises(CheckpointError, match="what it says of plugins cannot be read"):
        require_plugins(recorded)


def test_a_record_is_quoted_in_one_line() -> None:
    with pytest.raises(CheckpointError) as caught:
        require_plugins([{"file": "a\nb", "sha256": "", "parts": {"model.mlp": "x\x1b[2J"}}])
    assert str(caught.value).isprintable()


def test_a_changed_plugin_warns_in_python_too(tmp_path: Path) -> None:
    plugin_of(tmp_path)
    with pytest.warns(GPTWarning, match="the plugin my_parts.py has changed since the checkpoint was saved"):
        require_plugins([{"file": "my_parts.py", "sha256": "0", "parts": {"model.mlp": "mish"}}])


BAD_OPTIMIZER = """
import torch

class Bad(torch.optim.Optimizer):
    def __init__(self, groups, config):
        super().__init__(groups, {"lr": config.learning_rate})
        self.steps = 0

    @torch.no_grad()
    def step(self):
        self.steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                BODY

OPTIMIZERS = {"bad": Bad}
"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("p.sub_(p.grad * group['lr'] / self.steps)", "bad cannot be resumed: after its state is saved and restored"),
        ("p.sub_(nonsense)", "bad cannot train: a step on a toy parameter raises NameError"),
        ("self.state[p]['hook'] = type(self)", "bad cannot train: a step on a toy parameter raises"),
    ],
)
def test_an_optimizer_that_cannot_be_resumed_is_refused_before_the_first_step(
    workplace: Path, capsys: pytest.CaptureFixture[str], body: str, message: str
) -> None:
    Path("bad.py").write_text(BAD_OPTIMIZER.replace("BODY", body), encoding="utf-8")
    assert train.main(["--config", "tiny.yaml", "--plugin", "bad.py", "optim.name=bad", "run.kernels=torch"]) == 2
    error = capsys.readouterr().err
    assert f"error: optim.name: {message}" in error
    assert not (workplace / "runs" / "tiny" / "checkpoints").exists()


def test_an_optimizer_with_another_constructor_is_refused(tmp_path: Path) -> None:
    plugin_of(tmp_path, "class Bad:\n    def __init__(self):\n        pass\nOPTIMIZERS = {'bad': Bad}")
    config = parse_config("optim: {name: bad}", "a.yaml").optim
    with pytest.raises(ConfigError, match=r"optim.name: bad cannot be made from groups and config: "):
        build_optimizer(GPT(tiny_config()), config, torch.device("cpu"))


def test_the_checks_leave_the_optimizer_as_it_is(tmp_path: Path) -> None:
    plugin_of(tmp_path)
    for name in ("adamw", "muon", "momentum"):
        config = parse_config(f"optim: {{name: {name}}}", "a.yaml").optim
        optimizer = build_optimizer(GPT(tiny_config()), config, torch.device("cpu"))
        state = torch.random.get_rng_state()
        optimizer.check_restorable()
        assert torch.equal(state, torch.random.get_rng_state())
        assert not any(one.state for one in optimizer.optimizers.values())


def test_processes_that_are_started_load_the_plugins_too(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shows_arguments = (sys.executable, "-c", "import sys; print(sys.argv)")
    monkeypatch.setattr("gpt.training.sweeps.processes.COMMAND", shows_arguments)
    monkeypatch.setattr("gpt.serving.http.playground.launcher.COMMAND", shows_arguments)
    Path("my_parts.py").write_text(PARTS, encoding="utf-8")
    Path("grid.yaml").write_text("model:\n  mlp: [mish]\n", encoding="utf-8")
    sweep.main(["--config", "tiny.yaml", "grid.yaml", "--plugin", "my_parts.py", "run.kernels=torch"])
    expected = f"'--plugin', '{workplace / 'my_parts.py'}'"
    assert expected in Path("runs/tiny-grid/model.mlp-mish/console.log").read_text(encoding="utf-8")
    launcher = Launcher(Path("runs"))
    launcher.start("run", ["--config", "tiny.yaml"], is_new=True)
    assert expected in str(launcher.command)
    while launcher.running:
        pass
