"""What a wheel has to contain, and what it must not."""

import zipfile
from pathlib import Path

import pytest


def problems(wheel: Path, *names: str) -> list[str]:
    from checks import check_contents

    with zipfile.ZipFile(wheel, "w") as archive:
        for name in names:
            archive.writestr(name, name)
    return list(check_contents(wheel))


def test_a_wheel_with_all_it_needs_has_no_problem_and_others_are_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import checks

    wheel = tmp_path / "package.whl"
    whole = [name if name.startswith("gpt/") else f"package-1{name}" for name in checks.EXPECTED]
    assert problems(wheel, *whole) == []
    assert problems(wheel, *whole[1:]) == [f"{whole[0]} is missing"]
    assert problems(wheel, *whole, "tests/test_it.py") == ["tests/test_it.py is outside the package"]
    assert problems(wheel, *whole, "gpt/it.pyc") == ["gpt/it.pyc should not be there"]
    monkeypatch.setattr(checks, "MAX_BYTES", 100)
    assert problems(wheel, *whole)[0].startswith("it has more than ")
