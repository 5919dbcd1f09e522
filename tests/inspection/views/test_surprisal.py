import math

import pytest
import torch

from gpt.data.tokenizers import ByteTokenizer, CharTokenizer
from gpt.evaluation.scoring import score_text
from gpt.inspection.tracing.edits import replace
from gpt.inspection.views.surprisal import surprisal
from tiny import sharp_model


@pytest.mark.parametrize(
    ("tokenizer", "vocabulary"), [(CharTokenizer("abcdefghijklmnopqrstuvw"), 23), (ByteTokenizer(), 256)]
)
def test_the_mean_is_that_of_scoring(tokenizer: CharTokenizer | ByteTokenizer, vocabulary: int) -> None:
    model, text = sharp_model(vocab_size=vocabulary), "faceadecadebee"
    result = surprisal(model, torch.tensor(tokenizer.encode(text).tolist()))
    score = score_text(model, tokenizer, text)
    assert result.mean_bits == pytest.approx(score.bits_per_char, abs=1e-5)
    assert 2 ** float(result.bits.sum() / 13) == pytest.approx(score.perplexity, rel=1e-5)


def test_a_distribution_by_hand() -> None:
    """Logits ln 1, ln 2, ln 5 are 1/8, 1/4, 5/8."""
    model = sharp_model(vocab_size=3)
    edits = {"logits": replace(torch.tensor([1.0, 2.0, 5.0]).log())}
    result = surprisal(model, torch.tensor([2, 0, 1, 2]), edits)
    torch.testing.assert_close(result.bits, torch.tensor([3.0, 2.0, math.log2(8 / 5)]))
    assert result.mean_bits == pytest.approx((3 + 2 + math.log2(8 / 5)) / 3)
    assert result.alternatives(2)[1] == [(2, pytest.approx(5 / 8)), (1, pytest.approx(1 / 4))]
