"""Describe the operations of a forward pass in words.

A tensor has a subject, such as "queries", which an operation passes on to its result unless it
begins another one. A phrase says what the operation does. Names, shapes and order come from the
pass itself.
"""

from collections.abc import Sequence

from gpt.extras.inspection.tracing.recorder import Operation

WORDS: dict[tuple[str, str], tuple[str | None, str | None]] = {
    ("wte", "embedding"): ("token embeddings", ": one row of the table per id"),
    ("wpe", "embedding"): ("position vectors", ": one row of the table per position"),
    ("wpe", "getitem"): ("position vectors", ": one row of the table per position"),
    ("wpe", "add"): ("residual stream", ": embeddings plus positions"),
    ("wpe", "to"): (None, ", in the stream's type"),
    ("c_q", "linear"): ("queries", ", projected"),
    ("c_k", "linear"): ("keys", ", projected"),
    ("c_v", "linear"): ("values", ", projected"),
    ("attn.c_proj", "linear"): ("attention's output", ", projected back to the stream's width"),
    ("mlp.c_proj", "linear"): ("feed-forward output", ", projected back to the stream's width"),
    ("c_gate", "linear"): ("gate", ", projected"),
    ("c_fc", "linear"): ("hidden units", ", projected to the hidden width"),
    ("lm_head", "linear"): ("logits", ": a score for every id"),
    ("_split_heads", "view"): (None, ", cut into heads"),
    ("_split_heads", "transpose"): (None, ", heads before positions"),
    ("Attention.forward", "transpose"): (None, ", heads after positions"),
    ("Attention.forward", "flatten"): (None, ", heads side by side"),
    ("masked_scores", "transpose"): (None, ", transposed"),
    ("masked_scores", "matmul"): ("scores", ": every query times every key"),
    ("masked_scores", "div"): (None, ", over the root of head_dim"),
    ("masked_scores", "invert"): (None, ", inverted: where a query may not attend"),
    ("masked_scores", "masked_fill"): (None, ", -inf where a query may not attend"),
    ("masked_scores", "repeat_interleave"): (None, ", one set per query head"),
    ("weighted_sum", "repeat_interleave"): (None, ", one set per query head"),
    ("weighted_sum", "matmul"): ("weighted sums of values", ", by head"),
    ("ReferenceCore.forward", "softmax"): (
        "attention weights",
        ": softmax over the keys, rows sum to 1",
    ),
    ("rotate_half", "chunk"): (None, ", two halves of each head"),
    ("rotate_half", "neg"): (None, ", second halves negated"),
    ("rotate_half", "cat"): (None, ", rotated by a quarter"),
    ("rotate", "mul"): (None, ", times cosine or sine"),
    ("rotate", "add"): (None, ", rotated by their position"),
    ("rotation", "getitem"): ("rotation", ": cosine, then sine, of each position's angles"),
    ("rotation", "unsqueeze"): (None, ", for all heads alike"),
    ("causal_mask", "ones"): ("causal mask", ", all true"),
    ("causal_mask", "tril"): (None, ", true up to the diagonal"),
    ("causal_mask", "view"): (None, ", for all rows and heads alike"),
    ("Block.forward", "add"): (None, " added to the residual stream"),
    ("SwiGLU.forward", "mul"): ("hidden units", ": gate times values"),
    ("GPT.forward", "idx"): ("token ids", ""),
    ("_positions_and_mask", "arange"): ("positions", ", counted from 0"),
    ("ln_1", "rms_norm"): ("residual stream", None),
    ("ln_1", "layer_norm"): ("residual stream", None),
}
"""The subject that an operation begins and the phrase that says what it does, or None.

The keys are the name of a module or of the function that calls the operation, and the operation. A
caller may be a private function: where one is renamed, the test fails that every tensor of every
variant has a description.
"""

FUNCTIONS = {
    "layer_norm": ", normalized",
    "rms_norm": ", normalized",
    "float": ", as float32",
    "to": ", in another type",
    "gelu": ", through GELU",
    "relu": ", through ReLU",
    "silu": ", through SiLU",
    "square": ", squared",
}
"""Phrases of operations that mean the same everywhere."""


def describe(operations: Sequence[Operation]) -> list[str]:
    """Return a description of each operation, which ends with its name if there is no phrase."""
    subjects: list[str] = []
    descriptions = []
    for operation in operations:
        begun, phrase = _subject_and_phrase(operation)
        if phrase is None:
            phrase = FUNCTIONS.get(operation.function, f": {operation.function}")
        subject = "tensor"
        if begun is not None:
            subject = begun
        elif operation.inputs:
            subject = subjects[operation.inputs[0]]

        described = subject
        if operation.caller == "Block.forward":
            # Here `x + output` is computed: the output is added to the residual stream.
            subject = "residual stream"
            described = subjects[operation.inputs[-1]]
        subjects.append(subject)
        descriptions.append(described + phrase)
    return descriptions


def _subject_and_phrase(operation: Operation) -> tuple[str | None, str | None]:
    """Return what `WORDS` says of an operation: None where it says nothing.

    The module with its parent comes first, then the module alone, then the calling function.
    """
    path = operation.module.split(".")
    subject = None
    phrase = None
    for place in (".".join(path[-2:]), path[-1], operation.caller):
        subject_here, phrase_here = WORDS.get((place, operation.function), (None, None))
        if subject is None:
            subject = subject_here
        if phrase is None:
            phrase = phrase_here
    return subject, phrase
