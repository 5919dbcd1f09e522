from pathlib import Path

import pytest

from gpt.cli import plot, prepare_data


def test_prepare_data_encodes_once_and_says_what_there_is(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare_data.main(["--config", "tiny.yaml"]) == 0
    first = capsys.readouterr()
    assert "uint8 on disk" in first.out
    assert "encoded" in first.err
    assert prepare_data.main(["--config", "tiny.yaml"]) == 0
    assert "encoded" not in capsys.readouterr().err
    assert prepare_data.main(["--config", "tiny.yaml", "--force"]) == 0
    assert "encoded" in capsys.readouterr().err


def test_plot_draws_a_picture_of_a_run(trained: Path, tmp_path: Path) -> None:
    picture = tmp_path / "loss.png"
    assert plot.main([str(trained / "runs/tiny"), "--output", str(picture), "--x", "seconds"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_plot_of_what_is_no_run_gives_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plot.main([str(tmp_path), "--output", str(tmp_path / "x.png")]) == 2
    assert "cannot read the metrics" in capsys.readouterr().err


def test_curves_hold_the_logged_points(trained: Path) -> None:
    assert [step for step, _ in plot.read_curve(trained / "runs/tiny", "val/loss", "step")] == [0, 3, 6]
