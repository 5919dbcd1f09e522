"""From files, recipes, keywords and overrides to a configuration, or to a list of everything that
is wrong.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gpt.config import Config, ModelConfig
from gpt.config.composing import compose_config
from gpt.config.loading import dump_config, parse_config
from gpt.config.sections import SECTIONS
from gpt.config.sources import find_config, load_config, name_of_text, override
from gpt.config.suggestions import NAMES_ELSEWHERE, did_you_mean
from gpt.system.errors import ConfigError
from tiny import tiny_config

FORM = " is not of the form section.key=value, for example train.max_steps=500"


def complaint(text: str, *overrides: str) -> str:
    """What is said about a configuration file of this text."""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "some.yaml", overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("section", "line", "problem"),
    [
        # unknown keys
        ("model", "n_layers: 4", "model.n_layers: unknown key; did you mean n_layer?"),
        (
            "model",
            "learning_rate: 1e-3",
            ("model.learning_rate: unknown key; did you mean optim.learning_rate?"),
        ),
        ("train", "max_iters: 5", "train.max_iters: unknown key; did you mean max_steps?"),
        (
            "train",
            "loss_terms.a: 1",
            ("train.loss_terms.a: unknown key; did you mean 'train.loss_terms={a: ...}'?"),
        ),
        ("model", "n_layer.a: 1", "model.n_layer.a: unknown key; did you mean n_layer?"),
        ("model", "4: 4", "model.4: got 4, keys should be strings"),
        # another type
        ("model", "n_layer: four", "model.n_layer: got 'four', expected a valid integer"),
        ("model", "bias: yes", "model.bias: got 'yes', expected one of true, false"),
        ("optim", "betas: [0.9]", "optim.betas: got [0.9], which has too few values"),
        ("run", "name: 7", "run.name: got 7, expected text; put it in quotes"),
        ("sample", "stop: ['']", "sample.stop: got '', string should have at least 1 character"),
        # out of range, or none of the choices
        ("model", "n_layer: 0", "model.n_layer: got 0, expected greater than or equal to 1"),
        ("model", "dropout: 1", "model.dropout: got 1, expected less than 1"),
        (
            "model",
            "norm: batchnorm",
            ("model.norm: got 'batchnorm', expected one of layernorm, rmsnorm"),
        ),
        ("optim", "learning_rate: .inf", "optim.learning_rate: got inf, expected a finite number"),
        (
            "data",
            "source: web",
            ("data.source: got 'web', expected one of shakespeare, pydocs, file"),
        ),
        ("sample", "top_p: 0", "sample.top_p: got 0, expected greater than 0"),
        ("run", "seed: -1", "run.seed: got -1, expected greater than or equal to 0"),
        (
            "run",
            "name: ../up",
            ("run.name: got '../up', expected letters, digits, dots, hyphens and underscores"),
        ),
        (
            "run",
            "name: a/../b",
            ("run.name: got 'a/../b', expected letters, digits, dots, hyphens and underscores"),
        ),
        (
            "run",
            "device: gpu",
            ("run.device: got 'gpu', expected auto, cpu, cuda, cuda:N or mps; did you mean cuda?"),
        ),
        ("run", "device: cpu1", "run.device: got 'cpu1', expected auto, cpu, cuda, cuda:N or mps"),
        # keys that contradict each other
        (
            "model",
            "{n_embd: 6, n_head: 2, position: rope}",
            ("model.n_head: rope needs an even head_dim; n_embd 6"),
        ),
        (
            "model",
            ("{n_embd: 3, n_head: 1, position: sinusoidal}"),
            ("model.n_embd: sinusoidal positions need an even"),
        ),
        ("model", "n_embd: 100", "model.n_embd: 100 is not divisible by n_head 6"),
        ("model", "n_kv_head: 4", "model.n_kv_head: n_head 6 is not divisible by n_kv_head 4"),
        ("optim", "min_lr: 0.01", "optim.min_lr: 0.01 is above learning_rate 0.001"),
        (
            "data",
            "path: a.txt",
            ("data.path: is only read with source: file, and source is shakespeare"),
        ),
        (
            "optim",
            "muon_rate: 0.03",
            ("optim.muon_rate: is only read with name: muon, and name is adamw"),
        ),
        (
            "data",
            "bpe_vocab_size: 999",
            ("data.bpe_vocab_size: is only read with tokenizer: bpe, and tokenizer is char"),
        ),
    ],
)
def test_wrong_line_is_told_in_one_line_with_its_number_and_key(
    section: str, line: str, problem: str
) -> None:
    text = f"# a comment\n{section}:\n\n  {line}\n"
    said = complaint(text)
    assert said.startswith(f"some.yaml:4: {problem}")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("model:\n  n_head: 5", "some.yaml:1: model.n_embd: 384 is not divisible by n_head 5"),
        ("data:\n  source: file\n", "some.yaml:1: data.path: is needed with source: file"),
        ("model: 5\n", "some.yaml:1: model: expected keys below this section, got 5"),
        ("modle:\n  n_layer: 3\n", "some.yaml:1: modle: unknown key; did you mean model?"),
        ("n_layer: 3\n", "some.yaml:1: n_layer: unknown key; did you mean model.n_layer?"),
        ("seed: 3\n", "some.yaml:1: seed: unknown key; did you mean run.seed?"),
        ('"a\\nb\\e[2J": 3\n', "some.yaml:1: 'a\\nb\\x1b[2J': unknown key"),
        ("just words\n", "some.yaml:1: expected 'section: ...' lines"),
        ("model:\n  n_layer: [1\n", "some.yaml:3: expected ',' or ']', but got '<stream end>'"),
    ],
)
def test_file_that_is_misshapen_or_contradicts_itself_is_refused(text: str, problem: str) -> None:
    assert complaint(text) == problem


def test_all_problems_of_file_and_overrides_are_told_at_once() -> None:
    model = "model:\n  n_layers: 4\n  n_head: 5\n  n_kv_head: 2\n"
    optim = "optim:\n  learning_rate: 1e-5\n  warmup: 10\n"
    text = f"{model}{optim}data:\n  source: pydocs\n  source: file\nsound: {{loud: true}}\n"
    first, *problems = complaint(
        text, "train.max_step=10", "run.seed=-1", "oops", "train.batch_size=["
    ).split("\n")
    assert first == f"some.yaml has {len(problems)} problems:"
    assert sorted(problems) == sorted(
        [
            "  some.yaml:2: model.n_layers: unknown key; did you mean n_layer?",
            "  some.yaml:1: model.n_embd: 384 is not divisible by n_head 5",
            "  some.yaml:4: model.n_kv_head: n_head 5 is not divisible by n_kv_head 2",
            "  some.yaml:7: optim.warmup: unknown key; did you mean warmup_steps?",
            "  some.yaml:5: optim.min_lr: 0.0001 is above learning_rate 1e-05",
            "  some.yaml:8: data.path: is needed with source: file",
            "  some.yaml:11: sound: unknown key",
            "  some.yaml:10: data.source: is given twice, first on line 9",
            "  command line: train.max_step: unknown key; did you mean max_steps?",
            "  command line: run.seed: got -1, expected greater than or equal to 0",
            (
                "  command line: 'oops' is not of the form section.key=value, for example "
                "train.max_steps=500"
            ),
            "  command line: train.batch_size: expected the node content, but found '<stream end>'",
        ]
    )


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("optim.learning_rate=3e-4", "optim", "learning_rate", 3e-4),
        ("model.n_kv_head=null", "model", "n_kv_head", None),
        ("run.name='08'", "run", "name", "08"),
        ("optim.betas=[0.8, 0.9]", "optim", "betas", (0.8, 0.9)),
        ('sample.stop=["\\n", "a=b"]', "sample", "stop", ("\n", "a=b")),
        (" run.dir = elsewhere/x=y ", "run", "dir", "elsewhere/x=y"),
        ("data.dir=C:\\data", "data", "dir", "C:\\data"),
    ],
)
def test_override_is_read_like_the_file(override: str, section: str, key: str, value: Any) -> None:
    config = parse_config("model:\n  n_layer: 4\n", "some.yaml", [override])
    assert getattr(getattr(config, section), key) == value


def test_override_wins_over_the_file_and_over_earlier_ones() -> None:
    text = "train:\n  max_steps: bad\nmodel:\n#  n_layer: 3\n"
    overrides = ["train.max_steps=500", "train.max_steps=700", "model.n_layer=2"]
    config = parse_config(text, "some.yaml", overrides)
    assert (config.train.max_steps, config.model.n_layer) == (700, 2)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        *((text, f"{text!r}{FORM}") for text in ("", ".n_layer=3", "=3", ".", "model.=3")),
        ("model", f"'model'{FORM}; did you mean model?"),
        ("max_iters=3", f"'max_iters=3'{FORM}; did you mean train.max_steps?"),
        *(
            (f"train.init_from={blank}", "train.init_from: has no value; write null for none")
            for blank in ("", " ")
        ),
        (r'run.dir="a\0b"', r"run.dir: got 'a\x00b', expected a path, which has no NUL character"),
        (
            "run.threads=10000000000",
            "run.threads: got 10000000000, expected less than or equal to 1024",
        ),
        (f"run.seed={10**22}", f"run.seed: got {10**22}, expected less than {2**32}"),
        (f"train.max_steps={2**63}", f"train.max_steps: got {2**63}, expected less than {2**63}"),
        ("modle.n_layer=4", "modle: unknown key; did you mean model?"),
        ("model.n_kv_head=4", "model.n_kv_head: n_head 6 is not divisible by n_kv_head 4"),
        (
            "run.name=!!python/name:os.system",
            "run.name: a tag is not allowed here; write the value itself",
        ),
        ("run.name='x", "run.name: found unexpected end of stream"),
    ],
)
def test_wrong_override_is_told_of_the_command_line(override: str, problem: str) -> None:
    assert complaint("run:\n  seed: 1\n", override) == f"command line: {problem}"


def test_run_is_named_after_its_file_unless_it_has_a_name(tmp_path: Path) -> None:
    path = tmp_path / "poems.yaml"
    path.touch()
    assert load_config(path).name == "poems"
    assert load_config(path, ["run.name=sonnets"]).name == "sonnets"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("e\u0301te\u0301.txt", "\u00e9t\u00e9"),  # composed
        ("كتاب قديم.txt", "كتاب-قديم"),
        (".hidden.txt", "hidden"),
        ("Dr. Jekyll & Mr. Hyde.txt", "Dr.-Jekyll-Mr.-Hyde"),
        ("\u202ea\tb\u0301.txt", "a-b\u0301"),
        ("\u0301x", "x"),
        ("poems/**/*.txt", "poems"),
        ("poems/.", "poems"),
        ("poems/.bashrc", "bashrc"),
    ],
)
def test_text_of_any_script_gives_a_name_that_a_run_can_have(text: str, name: str) -> None:
    assert name_of_text(text) == name
    assert parse_config("", "some.yaml", [override("run.name", name)]).run.name == name


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("poem.yaml", r"poem\.yaml: no such configuration file; did you mean .*poems\.yaml\?$"),
        ("no/such/folder/a.yaml", r"no such configuration file$"),
        (".", "is a folder; give a YAML file"),
        ("poems.yaml/a.yaml", r"cannot read .*a\.yaml: Not a directory"),
        ("poems.yaml", r"poems.yaml is not UTF-8 text \(byte 12\)"),
        ("pipe", r"cannot read .*pipe: not a regular file$"),
        (
            "sparse.yaml",
            r"cannot read .*sparse\.yaml: it has 3,221,225,472 bytes, more than 1,048,576$",
        ),
        ("from_windows.yaml", r"from_windows.yaml:3: model.n_layers: unknown key"),
    ],
)
def test_unreadable_file_is_refused(path: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "poems.yaml").write_bytes("run: {name: é}".encode("latin-1"))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "sparse.yaml").touch()
    os.truncate(tmp_path / "sparse.yaml", 3 << 30)
    (tmp_path / "from_windows.yaml").write_bytes(
        b"\xef\xbb\xbfmodel:\r\n  n_layer: 2\r\n  n_layers: 3\r\n"
    )
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path / path)


@st.composite
def valid_configs(draw: st.DrawFn) -> Config:
    """Configurations with values of every type: texts of any characters, numbers of any size."""
    anything = st.text(min_size=1, max_size=20)
    small = st.floats(0, 1, exclude_max=True)
    path = anything.filter(lambda text: "\0" not in text)
    like_other_types = st.sampled_from(["1e5", "08", "null", "true", "1.0", "0x1F", "1_0"])
    name = st.from_regex(r"[A-Za-z0-9é日][A-Za-z0-9é日._-]{0,9}", fullmatch=True) | like_other_types
    rate = draw(st.floats(1e-300, 1e300))
    sections = {
        "run": {"name": draw(st.none() | name), "dir": draw(path), "compile": draw(st.booleans())},
        "data": {"source": "file", "path": draw(path)},
        "optim": {
            "learning_rate": rate,
            "min_lr": draw(st.floats(0, rate)),
            "betas": [draw(small), draw(small)],
        },
        "train": {
            "max_steps": draw(st.integers(101, 10**12)),
            "eval_max_tokens": draw(st.none() | st.integers(1, 10**6)),
        },
        "sample": {
            "stop": draw(st.lists(anything, max_size=3)),
            "temperature": draw(st.floats(0, 1e300)),
        },
    }
    return Config.model_validate(sections)


@given(config=valid_configs())
def test_dumped_configuration_loads_to_the_same_values(config: Config) -> None:
    """A checkpoint that holds its configuration would otherwise be lost."""
    text = dump_config(config)
    assert parse_config(text.encode("utf-8").decode("utf-8"), "some.yaml") == config


KEYS = [f"{section}.{key}" for section, value in Config() for key in type(value).model_fields]
SCALARS = [
    "null",
    "true",
    "yes",
    "-1",
    "0",
    "3",
    "0.5",
    "1e-3",
    "1e999",
    ".nan",
    "08",
    "''",
    "file",
    "rope",
    "é𝄞",
]
MARKS = [
    ": ",
    ":\n  ",
    "\n  ",
    "\n",
    "- ",
    "? ",
    "[",
    "]",
    "{",
    "}",
    ", ",
    "'",
    '"',
    "|\n  ",
    "# ",
    "\t",
    "<<: ",
]
ODDITIES = [
    "&a ",
    "*a",
    "!!int ",
    "!!set ",
    "!!timestamp ",
    "!!python/name:os.system",
    "=",
    "---\n",
    "%",
    "\0",
]
WORDS = [word for key in KEYS for word in key.split(".")]
yamlish = st.lists(
    st.sampled_from([*WORDS, *SCALARS, *MARKS * 3, *ODDITIES]) | st.text(max_size=3), max_size=25
)
leaf = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["rope", "file"])
)
values = leaf | st.lists(leaf, max_size=3) | st.dictionaries(st.text(max_size=3), leaf, max_size=3)


def is_taken_or_refused_in_words(text: str, overrides: list[str]) -> bool:
    """Whether a configuration comes out, or an error of which each line says where."""
    try:
        return isinstance(parse_config(text, "some.yaml", overrides), Config)
    except ConfigError as error:
        lines = [line.strip() for line in str(error).split("\n")]
        return all(
            line.startswith(("some.yaml", "command line: ")) and line.isprintable()
            for line in lines
        )


@given(data=st.dictionaries(st.sampled_from(KEYS), values, max_size=5))
def test_any_value_of_any_key_gives_a_config_or_a_config_error(data: dict[str, Any]) -> None:
    sections: dict[str, dict[str, Any]] = {}
    for name, value in data.items():
        section, key = name.split(".")
        sections.setdefault(section, {})[key] = value
    assert is_taken_or_refused_in_words(yaml.safe_dump(sections), [])


@given(key=st.sampled_from([*KEYS, "modle.x", "model"]), text=yamlish, parts=yamlish)
def test_any_text_and_override_give_a_config_or_a_config_error(
    key: str, text: list[str], parts: list[str]
) -> None:
    assert is_taken_or_refused_in_words("".join(text), [])
    assert is_taken_or_refused_in_words("", [f"{key}={''.join(parts)}", "".join(parts)])


def test_names_of_other_projects_lead_to_keys_that_exist() -> None:
    keys = {f"{name}.{key}" for name, section in SECTIONS.items() for key in section.model_fields}
    assert set(NAMES_ELSEWHERE.values()) <= keys
    assert not {key.split(".")[1] for key in keys} & NAMES_ELSEWHERE.keys()
    assert did_you_mean(("lr_scheduler_type",)) == "; did you mean optim.schedule?"
    assert did_you_mean(("sample", "length")) == "; did you mean max_new_tokens?"
    assert did_you_mean(("train", "length")) == "; did you mean length_warmup?"
    assert did_you_mean(("train", "epochs")) == "; did you mean max_steps?"
    assert did_you_mean(("nowhere", "qqqq")) == ""


@pytest.mark.parametrize(
    ("changes", "kv_heads", "head_dim", "mlp_hidden"),
    [
        ({}, 4, 8, 128),
        ({"n_kv_head": 2}, 2, 8, 128),
        ({"n_kv_head": 1, "n_head": 2}, 1, 16, 128),
        ({"mlp": "swiglu"}, 4, 8, 88),  # 8/3 * 32 = 85.3, up to a multiple of 8
        ({"mlp": "swiglu", "n_embd": 96}, 4, 24, 256),  # 8/3 * 96 = 256 exactly
        ({"mlp": "swiglu", "mlp_width": 7}, 4, 8, 7),
        ({"mlp_width": 100}, 4, 8, 100),
    ],
)
def test_derived_shapes(
    changes: dict[str, Any], kv_heads: int, head_dim: int, mlp_hidden: int
) -> None:
    model = tiny_config(**changes)
    assert (model.kv_heads, model.head_dim, model.mlp_hidden) == (kv_heads, head_dim, mlp_hidden)


@pytest.mark.parametrize(
    ("size", "shares", "is_cut"), [(32, 2, True), (24, 2, False), (34, 2, False), (1, 0, True)]
)
def test_windows_are_cut_into_sequences_of_at_least_8_tokens(
    size: int, shares: int, is_cut: bool
) -> None:
    values = {"model": {"block_size": size}, "train": {"length_warmup": shares * [0.1]}}
    if is_cut:
        assert Config.model_validate(values).sequence_lengths()[0][0] == (8 if shares else size)
    else:
        message = (
            f"train.length_warmup: cannot cut model.block_size {size} into 4 sequences of 8 "
            "tokens or more; make "
        )
        with pytest.raises(
            ValidationError,
            match=message + "block_size a multiple of 4, 32 or more, or leave out shares",
        ):
            Config(**values)


def test_all_sources_give_the_same_configuration(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("model: {n_layer: 2}\noptim: {betas: [0.8, 0.9]}\n", encoding="utf-8")
    sections = {"model": {"n_layer": 2}, "optim": {"betas": [0.8, 0.9]}}
    expected = load_config(file)
    assert compose_config(file) == compose_config(str(file)) == expected
    assert (
        compose_config(sections).config
        == compose_config(Config.model_validate(sections)).config
        == expected.config
    )
    assert compose_config(None, sections).config == expected.config
    assert (
        compose_config(None, {"model": ModelConfig(n_layer=2), "betas": (0.8, 0.9)}).config
        == expected.config
    )


def test_keywords_replace_single_values_of_a_recipe() -> None:
    recipe = load_config("shakespeare").config
    given = {
        "max_steps": np.int64(7),
        "model": {"dropout": 0.5},
        "name": "mine",
        "run": {"dir": Path("elsewhere")},
        "seed": 2,
    }
    loaded = compose_config("shakespeare", given)
    changes = {
        "train.max_steps": 7,
        "model.dropout": 0.5,
        "run.name": "mine",
        "run.dir": "elsewhere",
        "run.seed": 2,
    }
    assert loaded.config.leaves() == {**recipe.leaves(), **changes}
    assert loaded.default_name == "shakespeare"
    with pytest.raises(
        ConfigError, match=r"neither a file nor a recipe; expected a file or one of .*sprint"
    ):
        find_config("nonsense")


def problems_of(source: Any = None, **keywords: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        compose_config(source, keywords)
    assert "http" not in str(caught.value)
    return [line.strip() for line in str(caught.value).splitlines()]


def test_all_problems_of_keywords_are_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("train:\n  batch_size: none\n", encoding="utf-8")
    assert problems_of(
        file, max_stepz=3, lr=1, dir="x", model={"n_layers": 1, "n_embd": 10, "n_head": 3}, n_head=4
    ) == [
        f"{file} has 7 problems:",
        "keyword: max_stepz: unknown; did you mean train.max_steps?",
        "keyword: lr: unknown; did you mean optim.learning_rate?",
        "keyword: dir: is a key of several sections; write run=dict(dir='x') or data=dict(dir='x')",
        "keyword: model.n_head: is given twice; leave one of them out",
        "keyword: model.n_layers: unknown key; did you mean n_layer?",
        f"{file}:2: train.batch_size: got 'none', expected a valid integer",
        "keyword: model.n_embd: 10 is not divisible by n_head 4",
    ]


@pytest.mark.parametrize(
    ("source", "keywords", "message"),
    [
        (
            "shakespear",
            {},
            "'shakespear' is neither a file nor a recipe; did you mean shakespeare?",
        ),
        ("gone.yaml", {}, "gone.yaml: no such configuration file"),
        (5, {}, "config is a int, expected a file, a recipe's name, a Config or a dict"),
        ({"modle": {}}, {}, "config: modle: unknown key; did you mean model?"),
        (
            None,
            {"model": 5},
            "keyword: model: got 5, expected a dict of its keys, such as model=dict(...)",
        ),
        (None, {"max_steps": "a"}, "keyword: train.max_steps: got 'a', expected a valid integer"),
    ],
)
def test_mistake_of_source_or_keyword_is_one_line(
    source: Any, keywords: dict[str, Any], message: str
) -> None:
    assert problems_of(source, **keywords) == [message]
