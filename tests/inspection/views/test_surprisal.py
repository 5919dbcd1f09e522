import math

import pytest
import torch

from gpt.config import SamplingParams
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer
from gpt.evaluation.scoring import score_text
from gpt.generation.sampling import next_token_probabilities
from gpt.inspection.tracing.edits import replace
from gpt.inspection.views.surprisal import surprisal
from inspection.variants import some_ids
from tiny import sharp_model

IDS = some_ids(1, 9)[0]
PLAIN = SamplingParams(temperature=1.0)


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
    """Logits ln 1, ln 2, ln 5 are 1/8, 1/4, 5/8; temperature 1/2 squares them: 1/30, 4/30, 25/30."""
    model = sharp_model(vocab_size=3)
    edits = {"logits": replace(torch.tensor([1.0, 2.0, 5.0]).log())}
    result = surprisal(model, torch.tensor([2, 0, 1, 2]), SamplingParams(temperature=0.5), edits)
    torch.testing.assert_close(result.bits, torch.tensor([3.0, 2.0, math.log2(8 / 5)]))
    assert result.mean_bits == pytest.approx((3 + 2 + math.log2(8 / 5)) / 3)
    before, after = result.alternatives(2)
    assert before[1] == [(2, pytest.approx(5 / 8)), (1, pytest.approx(1 / 4))]
    assert after[1] == [(2, pytest.approx(25 / 30)), (1, pytest.approx(4 / 30))]


@pytest.mark.parametrize("params", [SamplingParams(top_k=1), SamplingParams(temperature=0.0)], ids=["top-k", "greedy"])
def test_filters_that_leave_one_alternative(params: SamplingParams) -> None:
    result = surprisal(sharp_model(), IDS, params)
    for before, after in zip(*result.alternatives(5), strict=True):
        assert len(before) == 5
        assert after == [(before[0][0], 1.0)]


def test_the_settings_change_the_alternatives_but_not_the_bits() -> None:
    model, params = sharp_model(), SamplingParams(temperature=0.7, top_p=0.8, min_p=0.05, repetition_penalty=1.5)
    result, plain = surprisal(model, IDS, params), surprisal(model, IDS, PLAIN)
    assert torch.equal(result.bits, plain.bits)
    assert torch.equal(result.before, plain.before)
    with torch.no_grad():
        logits = model(IDS[None])[0]
    for entry in range(8):  # the penalty is on the tokens up to the entry's own
        expected = next_token_probabilities(logits[entry : entry + 1], params, [IDS[: entry + 1].tolist()])
        torch.testing.assert_close(result.after[entry], expected[0], rtol=1e-5, atol=1e-6)


def test_no_settings_are_the_defaults_of_sampling() -> None:
    model = sharp_model()
    assert torch.equal(surprisal(model, IDS).after, surprisal(model, IDS, SamplingParams()).after)
    assert not torch.allclose(surprisal(model, IDS).after, surprisal(model, IDS).before, atol=1e-3)
