"""Every view of a model on a device without numbers."""

from collections.abc import Callable

import pytest

from fake_cuda.conftest import Reports, facts_of


@pytest.fixture(scope="module")
def reports(run_scenarios: Callable[[str], Reports]) -> Reports:
    return run_scenarios("views")


def test_every_view_is_shown(reports: Reports) -> None:
    codes = facts_of(reports, "commands")
    assert codes.pop("page") > 10_000
    assert len(codes) == 12
    assert set(codes.values()) == {0}


@pytest.mark.parametrize(("scenario", "count"), [("activations", 39), ("activations of a rotary model", 44)])
def test_activations_and_edits_stay_on_the_device(reports: Reports, scenario: str, count: int) -> None:
    assert facts_of(reports, scenario) == {"captured": count, "devices": ["cuda:0"]}
