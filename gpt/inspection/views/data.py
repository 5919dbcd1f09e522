"""The views of one text as plain data: what tables, pictures, pages and JSON all show."""

from typing import Any

from torch import Tensor

from gpt.config import SamplingParams
from gpt.data.tokenizers import Tokenizer
from gpt.errors import InputError
from gpt.inspection.tracing.activations import MEMORY_LIMIT, Edits
from gpt.inspection.views.heads import attention_patterns
from gpt.inspection.views.labels import labels_of
from gpt.inspection.views.lens import lens_rows, logit_lens
from gpt.inspection.views.likeliest import Alternative, likeliest
from gpt.inspection.views.surprisal import surprisal
from gpt.model import GPT

View = dict[str, Any]
Labelled = tuple[str, float]


def attention_view(
    model: GPT, tokenizer: Tokenizer, idx: Tensor, edits: Edits | None = None, memory_limit: int = MEMORY_LIMIT
) -> View:
    """Compute where every head attends, for one text (T,).

    Returns:
        `labels` (T,), and `weights`, a tensor (n_layer, H, T, T) float32 on the CPU.

    Raises:
        InputError: as `attention_patterns`, or the model gives values that are not finite.
    """
    weights = attention_patterns(model, idx, edits, memory_limit).float().cpu()
    _check_finite(weights)
    return {"labels": labels_of(tokenizer, idx.tolist()), "weights": weights}


def lens_view(
    model: GPT,
    tokenizer: Tokenizer,
    idx: Tensor,
    count: int = 5,
    edits: Edits | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> View:
    """Compute the logit lens of one text (T,) as lists.

    Returns:
        `labels` (T,); `rows`, a name for each; `top[row][position]`, the `count` most likely next tokens
        with their probabilities; `next` (T,), the tokens that came, null after the last;
        `next_probability[row][position]` of those.

    Raises:
        InputError: as `logit_lens`, or the model gives values that are not finite.
    """
    labels = labels_of(tokenizer, idx.tolist())
    names = labels_of(tokenizer, range(model.vocab_size))
    top, came = [], []
    for logits in logit_lens(model, idx.unsqueeze(0), edits, memory_limit)[:, 0]:
        probabilities = logits.softmax(dim=-1)  # (T, V), of one row at a time: all of them are as large as the lens
        _check_finite(probabilities)
        top.append([_named(names, tokens) for tokens in likeliest(probabilities, count)])
        came.append(probabilities[:-1].gather(1, idx[1:, None]).squeeze(1).tolist())
    return {
        "labels": labels,
        "rows": lens_rows(model.config.n_layer),
        "top": top,
        "next": [*labels[1:], None],
        "next_probability": [[*row, None] for row in came],
    }


def surprisal_view(
    model: GPT,
    tokenizer: Tokenizer,
    idx: Tensor,
    params: SamplingParams,
    count: int = 5,
    edits: Edits | None = None,
) -> View:
    """Compute the surprisal of one text (T,) as lists, with an entry for each token.

    Returns:
        `labels` (T,); `bits` (T,), null for the first; `before[i]` and `after[i]`, the `count` most likely
        tokens in place of token i with their probabilities, empty for the first; `mean_bits`; `settings`.

    Raises:
        InputError: as `surprisal`, or the model gives values that are not finite.
    """
    result = surprisal(model, idx, params, edits)
    _check_finite(result.bits)
    names = labels_of(tokenizer, range(result.before.size(-1)))
    before, after = result.alternatives(count)
    return {
        "labels": labels_of(tokenizer, idx.tolist()),
        "bits": [None, *result.bits.tolist()],
        "before": [[], *(_named(names, tokens) for tokens in before)],
        "after": [[], *(_named(names, tokens) for tokens in after)],
        "mean_bits": result.mean_bits,
        "settings": describe_sampling(params),
    }


def _named(names: list[str], alternatives: list[Alternative]) -> list[Labelled]:
    return [(names[index], probability) for index, probability in alternatives]


def _check_finite(values: Tensor) -> None:
    """Neither a table nor JSON can show infinity or NaN."""
    if not values.isfinite().all():
        raise InputError(
            "the model gives values that are not finite: an edit is too strong, or the weights are damaged"
        )


def describe_sampling(params: SamplingParams) -> str:
    """Name the settings that change the distribution, in a few words."""
    parts = [f"temperature {params.temperature:g}"]
    parts += [f"top-k {params.top_k}"] if params.top_k else []
    parts += [f"top-p {params.top_p:g}"] if params.top_p < 1 else []
    parts += [f"min-p {params.min_p:g}"] if params.min_p else []
    parts += [f"repetition penalty {params.repetition_penalty:g}"] if params.repetition_penalty != 1 else []
    return ", ".join(parts)
