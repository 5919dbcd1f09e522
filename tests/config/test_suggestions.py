"""Which key an unknown one probably meant."""

import pytest

from gpt.config.sections import SECTIONS
from gpt.config.suggestions import NAMES_ELSEWHERE, did_you_mean


@pytest.mark.parametrize(("name", "key"), NAMES_ELSEWHERE.items())
def test_names_of_other_projects_lead_to_keys_that_exist(name: str, key: str) -> None:
    section, _, field = key.partition(".")
    assert field in SECTIONS[section].model_fields
    assert all(name not in kind.model_fields for kind in SECTIONS.values())
    assert did_you_mean((name,)) == f"; did you mean {key}?"


def test_a_name_like_no_key_has_no_suggestion() -> None:
    assert did_you_mean(("qqqq",)) == ""
    assert did_you_mean(("nowhere", "qqqq")) == ""
