"""What the index by question names is there: commands, their options, and keys of the configuration."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from gpt.cli.commands import COMMANDS
from gpt.config import Config

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "help.md").read_text(encoding="utf-8")
CODE = [re.sub(r"\s+", " ", code) for code in re.findall(r"`([^`]+)`", PAGE)]


@pytest.fixture
def options(capsys: pytest.CaptureFixture[str]) -> dict[str, set[str]]:
    """The options of every command, and of every view of explain, as their help has them."""

    def listed(file: str, *words: str) -> set[str]:
        with pytest.raises(SystemExit):
            import_module(f"gpt.cli.{file}").main([*words, "--help"])
        return set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))

    views = (module.__name__.rpartition(".")[2] for module in import_module("gpt.cli.explain").VIEWS)
    found = {f"explain {view}": listed("explain", view) for view in views}
    return found | {name: listed(command.file) for name, command in COMMANDS.items()}


def test_commands_and_options_are_there(options: dict[str, set[str]]) -> None:
    everything = set[str]().union(*options.values())
    for code in CODE:
        words = code.split()
        named = {word for word in words if word.startswith("--")}
        if words[:1] == ["gpt"] and words[1] != "...":
            name = " ".join(words[1:3]) if words[1] == "explain" else words[1]
            assert named <= options[name], code
        elif "torchrun" not in code:
            assert named <= everything, code


def test_keys_are_there() -> None:
    config = Config()
    keys = re.findall(rf"(?<![\w./])({'|'.join(Config.model_fields)})\.(\w+)(?=[=: ]|$)", "\n".join(CODE), re.MULTILINE)
    assert len(keys) > 20
    for section, key in keys:
        assert hasattr(getattr(config, section), key), f"{section}.{key}"
