import re

import pytest
import torch

from gpt.data.tokenizers import CharTokenizer
from gpt.inspection.rendering.walk import walk_page
from inspection.variants import VARIANTS, every_variant
from tiny import sharp_model

TOKENIZER = CharTokenizer("`|*_abcdefghijklmnopqrs")
IDS = torch.as_tensor(TOKENIZER.encode("a`|*")).long()


@every_variant
def test_headings_are_counted_without_a_gap(variant: dict[str, object]) -> None:
    page = walk_page(sharp_model(**variant), TOKENIZER, IDS)
    numbers = re.findall(r"^## (\d+)\. ", page, re.MULTILINE)
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    assert len(numbers) == (8 if variant.get("position") == "rope" else 9)


def test_labels_that_mean_something_in_markdown() -> None:
    page = walk_page(sharp_model(**VARIANTS["gpt2"]), TOKENIZER, IDS)
    assert "| character | `a` | `` ` `` | `\\|` | `*` |" in page
    assert "- `*`, the last character: [" in page
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table


@pytest.mark.parametrize("length", [1, 8, 9])
def test_matrices_are_printed_where_they_are_small(length: int) -> None:
    page = walk_page(sharp_model(), TOKENIZER, torch.arange(length))
    assert ("The scores of head 0" in page) is (length <= 8)
