// Causal attention, forward and backward, one head of one sequence at a time, so that its queries, keys, values and
// scores stay in the processor's cache. It includes the norm of queries and keys and their rotation. B sequences of T
// positions have H heads of D elements each; R is T, padded to a multiple of 32, as matmuls take it (see matmul.h); S
// is the stride of transposed matrices.
//
// Scores and weights are computed transposed: a row for each key, and a column for each query. So a vector holds one
// key and several queries, whose largest scores and sums need no reduction over lanes.
//
// The forward pass keeps the logarithm of each query's softmax sum; the backward pass recomputes the weights from it
// (Dao et al. 2022, 2205.14135, appendix B.4).
#pragma once
#include "../memory.h"
#include "attention_weights.h"
#include "dropout.h"
#include "head_transform.h"
#include "matmul.h"

// qkv, dqkv: (B, T, 3 H D); y, dy: (B, T, H D); q_gain, k_gain, cosine, sine: see HeadTransform; log_sums: (B, H, T).
// dq_gain and dk_gain: (B, H, D), the gradient of each head, which are summed later.
struct AttentionArguments {
    const element* qkv;
    element* y;
    const element* dy;
    element* dqkv;
    const float *q_gain, *k_gain, *cosine, *sine;
    float *log_sums, *dq_gain, *dk_gain;
    float eps, dropout;
    uint32_t seed;
    AttentionShape shape;

    HeadTransform q() const { return {q_gain, cosine, sine, eps, 1.0f / std::sqrt((float)shape.head_dim)}; }
    HeadTransform k() const { return {k_gain, cosine, sine, eps, 1.0f}; }
};

// One head of one sequence: where it begins in qkv, in y (`result`) and in log_sums (`rows`); the first stream of its
// dropout, which has one for each query.
struct Head {
    size_t qkv, result, rows;
    uint32_t first_stream;
};

// Head number i of all sequences.
inline Head head_of(const AttentionShape& s, int i) {
    const int b = i / s.heads, h = i % s.heads;
    return {s.qkv_start(b, h), s.result_start(b, h), (size_t)i * s.length, (uint32_t)i * s.length};
}

static const int BLOCK = 32;  // queries of the forward pass, or keys of the backward pass, that are computed together
static const int PART = 64;   // keys or queries that a block meets at a time: their weights stay in the nearest cache

// *_t: transposed, with queries as columns; q_t is packed. scores and weights: (PART, BLOCK).
struct ForwardScratch {
    element *q, *k, *v, *q_t, *v_t, *weights, *packed_weights;
    float *scores, *out_t, *out, *inverse_rms;

    ForwardScratch(Arena& arena, const AttentionShape& s) {
        for (element** matrix : {&q, &k, &v}) *matrix = arena.alloc<element>(s.head_size());
        for (element** matrix : {&q_t, &v_t}) *matrix = arena.alloc<element>(s.transposed_size());
        weights = arena.alloc<element>(PART * BLOCK);
        // What is packed for float is the matrix itself.
        packed_weights = PAIR == 1 ? weights : arena.alloc<element>(PART * BLOCK);
        scores = arena.alloc<float>(PART * BLOCK);
        for (float** result : {&out_t, &out}) *result = arena.alloc<float>((size_t)s.head_dim * BLOCK);
        inverse_rms = arena.alloc<float>(s.rows());
    }
};

// Keys, or queries: `count` from `first` on.
struct Span {
    int first, count;
};

// The softmax of BLOCK queries, from `first` on, over the keys so far: the largest score of each query, and the sum of
// e^(score - peak).
struct QueryBlock {
    int first;
    float peak[BLOCK], total[BLOCK];
};

// Multiplies LANES columns of out_t.
inline void scale_columns(float* out_t, simd::floats factor, int D) {
    for (int d = 0; d < D; d++) simd::store(out_t + d * BLOCK, simd::load(out_t + d * BLOCK) * factor);
}

// Turns the scores of more keys into weights, after dropout, relative to the largest scores so far. What earlier keys
// left in out_t is scaled to these (Dao et al. 2022, algorithm 1). first_stream: of dropout, that of query 0.
inline void weigh(const ForwardScratch& scratch, QueryBlock& block, const Span& keys, int D, uint32_t first_stream,
                  const Dropout drop) {
    using namespace simd;
    const floats nothing = broadcast(-INFINITY);
    for (int c = 0; c < BLOCK; c += LANES) {
        const int query = block.first + c;
        const float* scores = scratch.scores + c;
        element* weights = scratch.weights + c;
        // A query sees itself and the keys before it. All queries see the first `seen` keys, a multiple of four.
        const int seen = std::min(keys.count, query - keys.first) / 4 * 4;
        const auto sees = [=](int r) { return lanes() >= keys.first + r - query; };

        const floats before = keys.first == 0 ? nothing : load(block.peak + c);
        floats peak = before;
        for (int r = 0; r < seen; r += 4) {  // in pairs, since a maximum waits for the one before
            const float* four = scores + r * BLOCK;
            const floats first = max(load(four), load(four + BLOCK));
            peak = max(peak, max(first, max(load(four + 2 * BLOCK), load(four + 3 * BLOCK))));
        }
        for (int r = seen; r < keys.count; r++) peak = max(peak, select(sees(r), load(scores + r * BLOCK), nothing));

        words streams = {};
        if (drop.active()) streams = drop.stream((words)lanes() + (first_stream + (uint32_t)query));
        floats total = {};
        const auto keep = [&](int r, floats weight) {
            total += weight;
            if (drop.active()) weight = drop.apply(drop.kept(streams + (uint32_t)(keys.first + r)), weight);
            store(weights + r * BLOCK, weight);
        };
        for (int r = 0; r < seen; r++) keep(r, weight_exp(load(scores + r * BLOCK) - peak));
        for (int r = seen; r < keys.count; r++)
            keep(r, select(sees(r), weight_exp(load(scores + r * BLOCK) - peak), floats{}));

        if (keys.first > 0) {
            const floats factor = exp(before - peak);
            total += load(block.total + c) * factor;
            scale_columns(scratch.out_t + c, factor, D);
        }
        store(block.peak + c, peak);
        store(block.total + c, total);
    }
}

// Stores the results of a block of queries, which its sums divide: D numbers of a query in place of one for each key.
// Also stores the logarithms of the sums.
inline void store_results(const AttentionArguments& a, const ForwardScratch& scratch, const QueryBlock& block,
                          const Head& head) {
    using namespace simd;
    const AttentionShape s = a.shape;
    const int D = s.head_dim;
    const int count = std::min(BLOCK, s.length - block.first);  // padding has no place in y
    element* y = a.y + head.result + (size_t)block.first * s.stride();
    float log_sums[BLOCK];
    for (int c = 0; c < BLOCK; c += LANES) {
        const floats total = load(block.total + c);
        store(log_sums + c, load(block.peak + c) + log(total));
        scale_columns(scratch.out_t + c, 1.0f / total, D);
    }
    memcpy(a.log_sums + head.rows + block.first, log_sums, count * sizeof(float));
    transpose_matrix(scratch.out, D, scratch.out_t, BLOCK, D, BLOCK);
    for (int r = 0; r < count; r++)
        for (int d = 0; d < D; d += LANES) store(y + (size_t)r * s.stride() + d, load(scratch.out + (size_t)r * D + d));
}

inline void attend_head(const AttentionArguments& a, const ForwardScratch& scratch, const Head& head) {
    const AttentionShape s = a.shape;
    const Dropout drop(a.seed, a.dropout);
    const int D = s.head_dim, R = s.rows(), S = s.columns();
    const element* qkv = a.qkv + head.qkv;
    transform_head(scratch.q, scratch.inverse_rms, qkv, s, a.q());
    transform_head(scratch.k, scratch.inverse_rms, qkv + s.stride(), s, a.k());
    copy_head(scratch.v, qkv + 2 * s.stride(), 3 * (size_t)s.stride(), s);
    pack_transposed(scratch.q_t, S, scratch.q, R, D);
    transpose_matrix(scratch.v_t, S, scratch.v, D, R, D);
    for (int i = 0; i < s.length; i += BLOCK) {
        QueryBlock block;
        block.first = i;
        for (int j = 0; j < i + BLOCK; j += PART) {
            const int count = std::min(PART, i + BLOCK - j);
            for (int r = 0; r < count; r += 16)
                matmul(scratch.scores + r * BLOCK, BLOCK, scratch.k + (size_t)(j + r) * D, D, scratch.q_t + PAIR * i,
                       PAIR * S, D / 32, BLOCK / 16);
            weigh(scratch, block, {j, count}, D, head.first_stream, drop);
            pack(scratch.packed_weights, scratch.weights, count, BLOCK);
            for (int d = 0; d < D; d += 16)
                matmul(scratch.out_t + d * BLOCK, BLOCK, scratch.v_t + (size_t)d * S + j, S, scratch.packed_weights,
                       PAIR * BLOCK, count / 32, BLOCK / 16, j == 0);
        }
        store_results(a, scratch, block, head);
    }
}
