"""The views of one text as plain data: what tables, pictures, pages and JSON all show."""

from typing import Any

from torch import Tensor

from gpt.config import SamplingParams
from gpt.data.tokenizers import Tokenizer
from gpt.inspection.activations import MEMORY_LIMIT, Edits
from gpt.inspection.heads import attention_patterns
from gpt.inspection.labels import labels_of
from gpt.inspection.lens import lens_rows, logit_lens
from gpt.inspection.surprisal import Alternative, surprisal
from gpt.model import GPT

View = dict[str, Any]
Labelled = tuple[str, float]


def attention_view(model: GPT, tokenizer: Tokenizer, idx: Tensor, memory_limit: int = MEMORY_LIMIT) -> View:
    """`labels` (T,), and `weights`, a tensor (n_layer, H, T, T)."""
    return {"labels": labels_of(tokenizer, idx.tolist()), "weights": attention_patterns(model, idx, memory_limit)}


def lens_view(
    model: GPT,
    tokenizer: Tokenizer,
    idx: Tensor,
    count: int = 5,
    edits: Edits | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> View:
    """The lens as lists.

    `labels` (T,); `rows`, a name for each; `top[row][position]`, the `count` most likely next tokens
    with their probabilities; `next` (T,), the tokens that came, null after the last; `next_probability`
    [row][position] of those.
    """
    labels = labels_of(tokenizer, idx.tolist())
    probabilities = logit_lens(model, idx.unsqueeze(0), edits, memory_limit)[:, 0].softmax(dim=-1)  # (rows, T, V)
    values, ids = probabilities.topk(min(count, probabilities.size(-1)))
    names = labels_of(tokenizer, range(probabilities.size(-1)))
    top = [
        [[(names[i], p) for i, p in zip(*pair, strict=True)] for pair in zip(*row, strict=True)]
        for row in zip(ids.tolist(), values.tolist(), strict=True)
    ]
    came = probabilities[:, :-1].gather(2, idx[1:].expand(len(probabilities), -1).unsqueeze(-1)).squeeze(-1)
    return {
        "labels": labels,
        "rows": lens_rows(model.config.n_layer),
        "top": top,
        "next": [*labels[1:], None],
        "next_probability": [[*row, None] for row in came.tolist()],
    }


def surprisal_view(
    model: GPT,
    tokenizer: Tokenizer,
    idx: Tensor,
    params: SamplingParams,
    count: int = 5,
    edits: Edits | None = None,
) -> View:
    """Surprisal as lists, an entry a token.

    `labels` (T,); `bits` (T,), null for the first; `before[i]` and `after[i]`, the `count` most likely
    tokens in place of token i with their probabilities, empty for the first; `mean_bits`; `settings`.
    """
    result = surprisal(model, idx, params, edits)
    names = labels_of(tokenizer, range(result.before.size(-1)))

    def named(alternatives: list[Alternative]) -> list[Labelled]:
        return [(names[index], probability) for index, probability in alternatives]

    pairs = [result.alternatives(entry, count) for entry in range(len(result.bits))]
    return {
        "labels": labels_of(tokenizer, idx.tolist()),
        "bits": [None, *result.bits.tolist()],
        "before": [[], *(named(before) for before, _ in pairs)],
        "after": [[], *(named(after) for _, after in pairs)],
        "mean_bits": result.mean_bits,
        "settings": describe_sampling(params),
    }


def describe_sampling(params: SamplingParams) -> str:
    """The settings that change the distribution, in a few words."""
    parts = [f"temperature {params.temperature:g}"]
    parts += [f"top-k {params.top_k}"] if params.top_k else []
    parts += [f"top-p {params.top_p:g}"] if params.top_p < 1 else []
    parts += [f"min-p {params.min_p:g}"] if params.min_p else []
    parts += [f"repetition penalty {params.repetition_penalty:g}"] if params.repetition_penalty != 1 else []
    return ", ".join(parts)
