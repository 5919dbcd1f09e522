import inspect
import re
from pathlib import Path

import pytest
import torch

from gpt.config import SamplingParams
from gpt.generation.sampling import next_token_probabilities
from gpt.inspection.rendering import mathematics
from gpt.inspection.rendering.mathematics_page import mathematics_page

COMMITTED = Path(__file__).resolve().parents[3] / "docs" / "mathematics.md"


def test_the_committed_page_is_the_regenerated_one() -> None:
    same = COMMITTED.read_text(encoding="utf-8") == mathematics_page()
    assert same, "regenerate it: gpt explain mathematics --output docs/mathematics.md"


def test_every_public_function_is_on_the_page_once_in_the_order_of_the_module() -> None:
    functions = [
        function
        for name, function in vars(mathematics).items()
        if inspect.isfunction(function) and function.__module__ == mathematics.__name__ and not name.startswith("_")
    ]
    page = mathematics_page()
    assert re.findall(r"^```python\n((?:(?!^```).*\n)*)```$", page, re.MULTILINE) == list(
        map(inspect.getsource, functions)
    )
    assert not re.search(r"^{\w+}$", page, re.MULTILINE)


def test_formulas_survive_markdown() -> None:
    formulas = re.findall(r"^\$\$\n(.*)\n\$\$$", mathematics_page(), re.MULTILINE)
    assert len(formulas) > 30
    for formula in formulas:
        assert formula.count("{") == formula.count("}")
        assert formula.count(r"\left(") == formula.count(r"\right)")
        assert not re.search(r"\\[^a-zA-Z]|[<>|*]", formula)


@pytest.mark.parametrize(
    ("logits", "params", "digits"),
    [
        ([1, 2, 3], {"temperature": 0.5}, 3),
        ([1, 5, 3, 2, 4], {"top_k": 3}, 3),
        ([0, 1, 2, 3, 4], {}, 4),
    ],
)
def test_worked_numbers_are_those_of_sampling(logits: list[float], params: dict[str, object], digits: int) -> None:
    sampling = SamplingParams.model_validate({"temperature": 1.0} | params)
    probabilities = next_token_probabilities(torch.tensor(logits, dtype=torch.float64), sampling).tolist()
    printed = ", ".join(f"{p:.{digits}f}" if p else "0" for p in probabilities)
    assert f"| [{printed}] |" in mathematics_page()


def test_the_nucleus_is_that_of_sampling() -> None:
    sampling = SamplingParams(temperature=1.0, top_p=0.9)
    kept = int((next_token_probabilities(torch.arange(5.0), sampling) > 0).sum())
    assert f"the smallest set that reaches p | {kept} tokens |" in mathematics_page()
    assert "the tokens whose sum is at most 0.9 | 2 tokens |" in mathematics_page()
    sums = torch.arange(5, dtype=torch.float64).softmax(-1).flip(-1).cumsum(-1).tolist()
    assert f"| [{', '.join(f'{value:.4f}' for value in sums)}] |" in mathematics_page()
