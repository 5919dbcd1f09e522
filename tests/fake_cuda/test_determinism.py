"""With `run.deterministic` nothing that CUDA refuses is asked of it."""

from collections.abc import Callable

import pytest

from fake_cuda.conftest import Reports, facts_of
from variants import VARIANTS


@pytest.fixture(scope="module")
def reports(run_scenarios: Callable[[str], Reports]) -> Reports:
    return run_scenarios("determinism")


def test_a_run_comes_to_its_end(reports: Reports) -> None:
    assert facts_of(reports, "run") == {"evaluated": 2, "flag": True}


def test_steps_evaluations_and_tokens_of_every_choice(reports: Reports) -> None:
    assert facts_of(reports, "variants") == {"steps": len(VARIANTS)}


def test_a_planted_one_is_seen(reports: Reports) -> None:
    error = reports["planted"].get("error", "")
    assert error.startswith("RuntimeError: aten.cumsum.default does not have a deterministic implementation"), reports


def test_names_are_read_from_the_documentation(reports: Reports) -> None:
    names = facts_of(reports, "names")["names"]
    assert {"cumsum", "nll_loss2d", "scatter_reduce", "put", "histc", "avg_pool3d", "upsample"} <= set(names)
    assert not {"gather", "index_put", "scatter_add"} & set(names)  # these are computed in another, deterministic way
