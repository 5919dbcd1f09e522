"""What the environment says."""

from pathlib import Path

import pytest

from gpt.environment import Launch, Settings, read_launch, read_settings
from gpt.errors import ConfigError


def test_an_environment_that_says_nothing_is_online_and_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/somewhere")
    assert read_settings() == Settings(data_dir=None, cache_dir=Path("/somewhere/.cache/gpt"), offline=False)


def test_the_cache_is_where_the_system_keeps_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert read_settings().cache_dir == Path("/caches/gpt")


@pytest.mark.parametrize("value", ["1", "true", "TRUE", "Yes", "on", " 1 "])
def test_offline_has_many_spellings(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPT_OFFLINE", value)
    assert read_settings().offline


@pytest.mark.parametrize("value", ["", " ", "0", "false", "no", "off"])
def test_online_has_as_many(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPT_OFFLINE", value)
    assert not read_settings().offline


def test_the_data_folder_may_be_below_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    monkeypatch.setenv("GPT_DATA_DIR", "~/corpora")
    assert read_settings().data_dir == Path("/somewhere/corpora")


def test_an_empty_data_folder_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPT_DATA_DIR", "")
    assert read_settings().data_dir is None


def test_the_environment_is_read_anew_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_settings()
    monkeypatch.setenv("GPT_DATA_DIR", "/elsewhere")
    assert (before.data_dir, read_settings().data_dir) == (None, Path("/elsewhere"))


@pytest.mark.parametrize(
    ("value", "processor"), [("", None), (" ", None), ("AVX2", "AVX2"), (" AVX-512 bf16 ", "AVX-512 bf16")]
)
def test_the_class_of_processors_is_named_or_left_open(
    value: str, processor: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPT_PROCESSOR", value)
    assert read_settings().processor == processor


@pytest.mark.parametrize("name", ["GPT_DATA_DIR", "XDG_CACHE_HOME"])
def test_the_home_of_nobody_is_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "~nosuchuser/x")
    with pytest.raises(ConfigError, match=f"{name}: ~nosuchuser/x has no home folder"):
        read_settings()


@pytest.mark.parametrize(("value", "expected"), [("sesame", "sesame"), ("", None)])
def test_the_key_of_a_server_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, value: str, expected: str | None
) -> None:
    monkeypatch.setenv("GPT_API_KEY", value)
    assert read_settings().api_key == expected


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
        ("LOCAL_RANK", None, "^WORLD_SIZE is set, but LOCAL_RANK is not; start several processes with torchrun$"),
        ("MASTER_ADDR", "", "MASTER_ADDR is not"),
        ("RANK", "8", "^RANK is 8, and of 8 processes the last is 7; use torchrun$"),
        ("LOCAL_RANK", "-1", "^LOCAL_RANK is -1, and of 4 processes the last is 3"),
        ("RANK", "first", "RANK, .* must be numbers, as torchrun sets them"),
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
