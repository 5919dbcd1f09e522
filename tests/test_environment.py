"""What the environment says."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpt.system.environment import Launch, Settings, read_launch, read_settings
from gpt.system.errors import ConfigError

EMPTY = Settings(data_dir=None, cache_dir=Path("/somewhere/.cache/gpt"), offline=False)


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/somewhere")


@pytest.mark.parametrize(
    ("variables", "settings"),
    [
        ({}, {}),
        ({"XDG_CACHE_HOME": "/caches"}, {"cache_dir": Path("/caches/gpt")}),
        *(({"GPT_OFFLINE": value}, {"offline": True}) for value in ("1", "true", "TRUE", "Yes", "on", " 1 ")),
        *(({"GPT_OFFLINE": value}, {}) for value in ("", " ", "0", "false", "no", "off")),
        ({"GPT_DATA_DIR": "~/corpora"}, {"data_dir": Path("/somewhere/corpora")}),
        ({"GPT_PROCESSOR": " AVX-512 bf16 "}, {"processor": "AVX-512 bf16"}),
        ({"GPT_API_KEY": "sesame"}, {"api_key": "sesame"}),
        ({"GPT_DATA_DIR": "", "GPT_PROCESSOR": " ", "GPT_API_KEY": ""}, {}),
    ],
)
def test_the_environment_is_read_anew_each_time(
    variables: dict[str, str], settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_settings() == EMPTY
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert read_settings() == replace(EMPTY, **settings)


@pytest.mark.parametrize("name", ["GPT_DATA_DIR", "XDG_CACHE_HOME"])
def test_the_home_of_nobody_is_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "~nosuchuser/x")
    with pytest.raises(ConfigError, match=f"{name}: ~nosuchuser/x has no home folder"):
        read_settings()


TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
TORCHRUN |= {"MASTER_ADDR": "node0", "MASTER_PORT": "29500", "TORCHELASTIC_RESTART_COUNT": "2"}


def test_torchrun_says_where_a_process_is_among_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert read_launch() == Launch(5, 8, 1, 4, "node0:29500", 2)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert read_launch() == Launch()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "LOCAL_RANK",
            None,
            r"^WORLD_SIZE is set, .* \('LOCAL_RANK'\); start with torchrun$",
        ),
        ("MASTER_ADDR", None, "'MASTER_ADDR'"),
        ("RANK", "first", "'first'"),
    ],
)
def test_half_a_launch_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str | None, message: str) -> None:
    for variable, number in {**TORCHRUN, name: value}.items():
        if number is None:
            monkeypatch.delenv(variable, raising=False)
        else:
            monkeypatch.setenv(variable, number)
    with pytest.raises(ConfigError, match=message):
        read_launch()
