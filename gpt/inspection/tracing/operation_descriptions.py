"""Describe the operations of a forward pass in words.

A tensor has a subject, such as "queries", which operations pass on to their results; a phrase says what
an operation does to it. Names, shapes and order come from the pass itself.
"""

from collections.abc import Sequence

from gpt.inspection.tracing.recorder import Operation

SUBJECTS = {
    ("wte", "embedding"): "token embeddings",
    ("wpe", "embedding"): "position vectors",
    ("wpe", "getitem"): "position vectors",
    ("wpe", "add"): "residual stream",
    ("ln_1", "rms_norm"): "residual stream",
    ("ln_1", "layer_norm"): "residual stream",
    ("c_q", "linear"): "queries",
    ("c_k", "linear"): "keys",
    ("c_v", "linear"): "values",
    ("masked_scores", "matmul"): "scores",
    ("ReferenceCore.forward", "softmax"): "attention weights",
    ("weighted_sum", "matmul"): "weighted sums of values",
    ("attn.c_proj", "linear"): "attention's output",
    ("mlp_conv", "permute"): "convolution's weights",
    ("c_gate", "linear"): "gate",
    ("c_fc", "linear"): "hidden units",
    ("SwiGLU.forward", "mul"): "hidden units",
    ("mlp.c_proj", "linear"): "feed-forward output",
    ("lm_head", "linear"): "logits",
    ("rotation", "getitem"): "rotation",
    ("causal_mask", "ones"): "causal mask",
    ("GPT.forward", "idx"): "token ids",
    ("_positions_and_mask", "arange"): "positions",
    ("KVCache.positions", "arange"): "positions",
    ("mask_after", "arange"): "causal mask",
}
"""Operations that begin a new subject, by the name of the module or caller, and the function.

Callers may be private functions: renaming one breaks the test that every tensor of every variant has a description.
"""

PHRASES = {
    ("wte", "embedding"): ": one row of the table per id",
    ("wpe", "embedding"): ": one row of the table per position",
    ("wpe", "getitem"): ": one row of the table per position",
    ("wpe", "add"): ": embeddings plus positions",
    ("wpe", "to"): ", in the stream's type",
    ("c_q", "linear"): ", projected",
    ("c_k", "linear"): ", projected",
    ("c_v", "linear"): ", projected",
    ("c_proj", "linear"): ", projected back to the stream's width",
    ("mlp_conv", "pad"): ", after zeros",
    ("mlp_conv", "permute"): ", distances first",
    ("mlp_conv", "chunk"): ", one for each distance",
    ("mlp_conv", "getitem"): ", some positions earlier",
    ("mlp_conv", "mul"): ", times weights of its distance",
    ("mlp_conv", "add"): ", summed over a few positions",
    ("KVCache.extend", "unsqueeze"): ", as one head",
    ("KVCache.extend", "squeeze"): ", without heads",
    ("KVCache.extend", "getitem"): ", from a few positions earlier",
    ("KVCache.extend", "pad"): ", after zeros where nothing is earlier",
    ("c_gate", "linear"): ", projected",
    ("c_fc", "linear"): ", projected to the hidden width",
    ("lm_head", "linear"): ": a score for every id",
    ("_split_heads", "view"): ", cut into heads",
    ("_split_heads", "transpose"): ", heads before positions",
    ("Attention.forward", "transpose"): ", heads after positions",
    ("Attention.forward", "flatten"): ", heads side by side",
    ("masked_scores", "transpose"): ", transposed",
    ("masked_scores", "matmul"): ": every query times every key",
    ("masked_scores", "div"): ", over the root of head_dim",
    ("masked_scores", "invert"): ", inverted: where a query may not attend",
    ("masked_scores", "masked_fill"): ", -inf where a query may not attend",
    ("masked_scores", "repeat_interleave"): ", one set per query head",
    ("weighted_sum", "repeat_interleave"): ", one set per query head",
    ("weighted_sum", "matmul"): ", by head",
    ("ReferenceCore.forward", "softmax"): ": softmax over the keys, rows sum to 1",
    ("rotate_half", "chunk"): ", two halves of each head",
    ("rotate_half", "neg"): ", second halves negated",
    ("rotate_half", "cat"): ", rotated by a quarter",
    ("rotate", "mul"): ", times cosine or sine",
    ("rotate", "add"): ", rotated by their position",
    ("rotation", "getitem"): ": cosine, then sine, of each position's angles",
    ("rotation", "unsqueeze"): ", for all heads alike",
    ("causal_mask", "ones"): ", all true",
    ("causal_mask", "tril"): ", true up to the diagonal",
    ("causal_mask", "view"): ", for all rows and heads alike",
    ("Block.forward", "add"): " added to the residual stream",
    ("softcap", "div"): ", over the cap",
    ("softcap", "mul"): ", times the cap",
    ("SwiGLU.forward", "mul"): ": gate times values",
    ("GPT.forward", "idx"): "",
    ("_positions_and_mask", "arange"): ", counted from 0",
    ("KVCache.positions", "arange"): ", of the new tokens",
    ("KVCache.positions", "add"): ", after those in the cache",
    ("FloatStore.write", "setitem"): ", written into the cache",
    ("FloatStore.read", "getitem"): " so far, read from the cache",
    ("_quantize", "abs"): ", magnitudes",
    ("_quantize", "amax"): ", largest magnitude of each head",
    ("_quantize", "div"): ", as steps of 127",
    ("_quantize", "clamp"): ", kept in range",
    ("_quantize", "half"): ", scales as float16",
    ("_quantize", "round"): ", rounded to integers",
    ("Int8Store.read", "mul"): " so far, integers times scales",
}
FUNCTIONS = {
    "layer_norm": ", normalized",
    "rms_norm": ", normalized",
    "dropout": ", some set to zero",
    "float": ", as float32",
    "to": ", in another type",
    "tanh": ", squashed by tanh",
    "gelu": ", through GELU",
    "relu": ", through ReLU",
    "silu": ", through SiLU",
    "square": ", squared",
}
"""Phrases of functions that mean the same everywhere."""


def describe(operations: Sequence[Operation]) -> list[str]:
    """Return a description of each operation, or else its bare name."""
    subjects: list[str] = []
    words = []
    for operation in operations:
        path = operation.module.split(".")
        places = (".".join(path[-2:]), path[-1], operation.caller)
        keys = [(place, operation.function) for place in places]
        subject = next((SUBJECTS[key] for key in keys if key in SUBJECTS), _inherited(operation, subjects))
        phrase = next((PHRASES[key] for key in keys if key in PHRASES), FUNCTIONS.get(operation.function))
        adds = operation.caller == "Block.forward"
        subjects.append("residual stream" if adds else subject)
        described = subjects[operation.inputs[-1]] if adds else subject
        words.append(described + (f": {operation.function}" if phrase is None else phrase))
    return words


def _inherited(operation: Operation, subjects: Sequence[str]) -> str:
    """Return the subject of an operation's operand: of the written value for a write, else of the first input."""
    if not operation.inputs:
        return "tensor"
    return subjects[operation.inputs[-1 if operation.function == "setitem" else 0]]
