import pytest

from gpt.accounting.parameters import count_parameters
from gpt.accounting.published import find_published
from gpt.system.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "changes", "total"),
    [
        ("gpt2", {}, 124_439_808),
        ("gpt2-medium", {}, 354_823_168),
        ("gpt2-large", {}, 774_030_080),
        ("gpt2-xl", {}, 1_557_611_200),
        ("llama-2-7b", {}, 6_738_415_616),
        ("llama-2-7b", {"tie_weights": True}, 6_607_343_616),
        ("llama-3-8b", {}, 8_030_261_248),
    ],
)
def test_totals_are_the_published_ones(name: str, changes: dict[str, object], total: int) -> None:
    assert count_parameters(find_published(name).model_copy(update=changes)).total == total


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'xyz'; there are gpt2, gpt2-medium, .*llama-3-8b"):
        find_published("xyz")
