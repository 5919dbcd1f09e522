"""Small faults in the C++ sources, such as programmers make and compilers take.

None of them races: one that depends on when threads meet would be found on some days only.
"""

from pathlib import Path

from mutants.edits import Edit

SOURCES = "gpt/native/src"
FAULTS = [
    # the scores of the last positions; the sum of the blocks before; scales of keys on values
    ("decoding/attention.h", "round_up(count, LANES) / LANES, D, false", "count / LANES, D, false"),
    ("decoding/attention.h", "count, block > 0, ahead", "count, block > 1, ahead"),
    (
        "decoding/attention.h",
        "simd::load(c.value_scales(j / BLOCK)",
        "simd::load(c.key_scales(j / BLOCK)",
    ),
    # scales of the block's first outputs; the sum of the first step; biases where a result is added
    ("decoding/matmul_vectors.h", "/ m.group * BLOCK + first;", "/ m.group * BLOCK;"),
    ("decoding/matmul_vectors.h", "if (p.first > 0) load_tile", "if (p.first > STEP) load_tile"),
    ("decoding/matmul_amx.h", "if (m.bias) y +=", "if (m.bias && !o.add) y +="),
    # at a tie; tokens that were filtered out; a token past the last
    ("decoding/sampling.h", "before >= p.top_p", "before > p.top_p"),
    ("decoding/sampling.h", "> uniform * total", ">= uniform * total"),
    (
        "decoding/sampling.h",
        "select(lanes() < count - i, select(",
        "select(lanes() <= count - i, select(",
    ),
    # the sign of rotary positions; heads in groups or in turns; the first position of a block
    ("decoding/layers.h", "a * cos[d] - b * sin[d]", "a * cos[d] + b * sin[d]"),
    (
        "decoding/decoder.h",
        "h = run.head * group + (n + j) % group",
        "h = run.head + (n + j) % group * m.kv_heads",
    ),
    ("decoding/cache.h", "block = position / BLOCK, i", "block = (position - 1) / BLOCK, i"),
    # epsilon outside the root; a key past the last; two digits in the wrong order
    (
        "ops/norm.h",
        "std::sqrt(reduce_add(squares) / width + norm.eps)",
        "(std::sqrt(reduce_add(squares) / width) + norm.eps)",
    ),
    ("ops/softmax.h", "lanes() < count - j, e,", "lanes() <= count - j, e,"),
    ("ops/activations.h", "0.39894228f", "0.39984228f"),
    # scores that are not scaled; the diagonal; the wrong gradients
    ("training/attention.h", "1.0f / std::sqrt((float)head_dim)}", "1.0f}"),
    ("training/attention_gradients_bf16.h", "lanes() >= j + r - query", "lanes() > j + r - query"),
    (
        "training/attention_gradients_float.h",
        "scratch.dv, scratch.weights,",
        "scratch.dv, scratch.dscores,",
    ),
    # the lower half of a tile; one row beyond the last panel; the wrong tile
    ("training/matmul_avx512_bf16.h", "row / 16 * next_a + row % 16 * 32", "row / 16 * next_a"),
    ("training/matmul_large.h", "if (j < width) memcpy", "if (j + 1 < width) memcpy"),
    ("training/matmul_amx.h", "LOAD_TILE(3, across,", "LOAD_TILE(3, below,"),
    # the last part of what threads share; the gate for what it is multiplied by; the last vector of
    # a row
    (
        "training/feed_forward.h",
        "vectors * (w.index + 1) / w.count",
        "vectors / w.count * (w.index + 1)",
    ),
    ("training/feed_forward.h", "d * load(x + at + width) * s", "d * load(x + at) * s"),
    ("training/feed_forward.h", "c < a.width", "c + simd::LANES < a.width"),
    # a gradient that is overwritten; RMSNorm as if it were centered; dropout that depends on the
    # threads
    ("training/norms.h", "fma(d, unit, load(dgain + c))", "d * unit"),
    (
        "training/norms.h",
        "a.centered ? reduce_add(total) / width : 0.0f",
        "reduce_add(total) / width",
    ),
    ("training/norms.h", "drop.stream(n)", "drop.stream(n - w.first(a.rows))"),
    # by the probability of being dropped; rows that two seeds share; elements that two vectors
    # share
    ("training/dropout.h", "scale(1.0f / (1.0f - p))", "scale(1.0f / p)"),
    ("training/dropout.h", "hash(seed ^ hash(s))", "hash(seed ^ s)"),
    ("training/dropout.h", "stream + (uint32_t)i)", "stream + (uint32_t)(i / simd::LANES))"),
    # the last position, if it is the second of a pair; the last tile of an odd number; dropout
    # twice
    (
        "training/weight_gradient.h",
        "row + 1 < rows ? even + stride",
        "row + 2 < rows ? even + stride",
    ),
    ("training/weight_gradient.h", "pairs = (A / 16 + 1) / 2", "pairs = A / 32"),
    ("training/weight_gradients.h", "weight * (dweight - delta)", "kept * (dweight - delta)"),
    # the lower half twice; NaN that is lost; halves in the wrong order
    ("simd/avx2.h", "_mm256_extractf128_ps(x, 1)", "_mm256_extractf128_ps(x, 0)"),
    ("simd/avx2.h", "_mm256_max_ps(a, b)", "_mm256_max_ps(b, a)"),
    ("simd/avx2.h", "_mm256_permute4x64_epi64(packed, 0x08)", "packed"),
    # no step of Newton's method; rounding toward zero, twice
    ("simd/avx512.h", "t * (floats)_mm512_fnmadd_ps(t, x, broadcast(2.0f))", "t"),
    ("simd/avx512.h", "_mm512_cvtps_epi32(x)", "_mm512_cvttps_epi32(x)"),
    ("simd/avx512.h", "(__m512i)to_bf16<words>(x)", "(__m512i)((words)x >> 16)"),
    # rounding toward zero; NaN that is lost; half of the lanes
    ("simd/generic.h", "(int32_t)std::nearbyint(x[i])", "(int32_t)x[i]"),
    ("simd/generic.h", "a < b ? a : b", "b < a ? b : a"),
    ("simd/generic.h", "n = LANES / 2; n > 0;", "n = LANES / 2; n > 1;"),
]


def faults(root: Path) -> list[Edit]:
    """Return the faults, each an edit of its file of a folder.

    Raises:
        ValueError: what a fault replaces is not in its file, or more than once.
    """
    return [_edit(root, f"{SOURCES}/{name}", old, new) for name, old, new in FAULTS]


def _edit(root: Path, file: str, old: str, new: str) -> Edit:
    source = (root / file).read_text("utf-8")
    if source.count(old) != 1:
        raise ValueError(f"{file} has {old!r} {source.count(old)} times: a fault needs it once")
    line = source[: source.index(old)].count("\n") + 1
    return Edit(file, f"{old} -> {new}", range(line, line + 1), source.replace(old, new), old, new)
