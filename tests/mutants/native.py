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
    ("training/attention.h", "1.0f / std::sqrt((float)shape.head_dim)}", "1.0f}"),
    ("training/attention_gradients.h", "lanes() >= key - query", "lanes() > key - query"),
    (
        "training/attention_gradients.h",
        "matmul(scratch.dv + row, D, weights,",
        "matmul(scratch.dv + row, D, dscores,",
    ),
    ("training/weight_gradients.h", "weight * (dweight - delta)", "kept * (dweight - delta)"),
    # the lower half of a tile, twice; the wrong tile
    ("training/matmul_avx512_bf16.h", "row / 16 * next_a + row % 16 * 32", "row / 16 * next_a"),
    ("training/matmul_float.h", "(size_t)k * TILE + m % 16, 1", "(size_t)k * TILE, 1"),
    ("training/matmul_amx.h", "LOAD_TILE(3, across,", "LOAD_TILE(3, below,"),
    # the gate for what it is multiplied by; padding that is left as it was; the seed of another
    # dropout; the end of a gain
    ("training/mlp.h", "* load(factor + c));", "* load(gate + c));"),
    (
        "training/step.h",
        "memset((void*)(memory.y + (size_t)n * model.width), 0,",
        "(void)sizeof(0,",
    ),
    (
        "training/step.h",
        "drop_strip(factors, strip, scratch, attention_dropout(block))",
        "drop_strip(factors, strip, scratch, mlp_dropout(block))",
    ),
    ("training/step.h", "first < D; first += 16", "first + 16 < D; first += 16"),
    # gradients that are overwritten; that of a tied head, which is lost; positions of a batch for
    # those of a sequence; dropout of the embeddings, on the way back
    (
        "training/step.h",
        "batch.adds ? simd::load(gradient + c) : simd::floats{}",
        "simd::floats{}",
    ),
    ("training/step.h", "if (!batch.adds && !is_tied)", "if (!batch.adds)"),
    ("training/step.h", "wpe + (size_t)(n % batch.length) * C", "wpe + (size_t)(n % 32) * C"),
    ("training/step.h", "drop_row(dx, dx, n, model.width, drop);", "(void)dx;"),
    # a gradient that is overwritten; RMSNorm as if it were centered; columns of another dropout
    ("training/rows.h", "fma(d, unit, load(dgain + c))", "d * unit"),
    (
        "training/rows.h",
        "is_centered ? reduce_add(total) / width : 0.0f",
        "reduce_add(total) / width",
    ),
    ("training/rows.h", "drop.apply(stream, first + c, load(y", "drop.apply(stream, c, load(y"),
    # a row of padding; sums of many strips, which begin anew; a gradient that is overwritten
    ("training/linear.h", "return i < part_outputs ?", "return i <= part_outputs ?"),
    ("training/linear.h", "first == 0);", "true);"),
    ("training/linear.h", "adds ? simd::load(row + c) + sum : sum", "sum"),
    # targets of the next sequence; ignored targets; the logits of padding; the slope of the
    # temperature; a logit that is not the largest
    ("training/head.h", "left = batch.length - n % batch.length;", "left = batch.length;"),
    (
        "training/head.h",
        "position.counts() ? position.text_weight + 2.0f * batch.z_weight * log_z : 0.0f",
        "position.text_weight + 2.0f * batch.z_weight * log_z",
    ),
    ("training/head.h", "select(lanes() < vocab - v, e", "select(lanes() <= vocab - v, e"),
    ("training/head.h", "scale = batch.scale / batch.temperature", "scale = batch.scale"),
    ("training/head.h", "logits[v] > peak ? logits[v] : peak", "logits[v]"),
    # epsilon that is corrected too; the last number of a norm; momentum without Nesterov's step
    (
        "training/optimizer.h",
        "(sqrt(v) / t.correction_2 + t.eps);",
        "((sqrt(v) + t.eps) / t.correction_2);",
    ),
    ("training/optimizer.h", "for (; i < end; i++) sum +=", "for (; i + 1 < end; i++) sum +="),
    ("training/optimizer.h", "to_element(g + (m - g) * t.beta_1)", "to_element(m)"),
    # wide matrices for tall ones; the stride of a transpose; a direction of zeros
    ("training/optimizer.h", "(float)t.rows / t.columns", "(float)t.columns / t.rows"),
    ("training/optimizer.h", "column_step = is_tall ? K : 1", "column_step = is_tall ? K / 2 : 1"),
    (
        "training/optimizer.h",
        "std::max((float)std::sqrt(squares), 1e-7f)",
        "(float)std::sqrt(squares)",
    ),
    # by the probability of being dropped; rows that two seeds share; elements that two vectors
    # share
    ("training/dropout.h", "scale(1.0f / (1.0f - p))", "scale(1.0f / p)"),
    (
        "training/dropout.h",
        "words s) const { return hash(seed ^ hash(s))",
        "words s) const { return hash(seed ^ s)",
    ),
    ("training/dropout.h", "stream + (uint32_t)i)", "stream + (uint32_t)(i / simd::LANES))"),
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
