// Causal attention, forward and backward, one head of one sequence at a time, so that its queries, keys, values and
// scores stay in the processor's cache. It includes the norm of queries and keys and their rotation. Matmuls take 16
// rows of the left factor and multiples of 32 of the right one (see matmul.h), hence 16 queries at a time, and keys up
// to a multiple of 32. B sequences of T positions have H heads of D elements each; R is T, padded.
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
    AttentionShape sizes;

    AttentionShape shape() const { return sizes; }
    HeadTransform q() const { return {q_gain, cosine, sine, eps, 1.0f / std::sqrt((float)sizes.head_dim)}; }
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
static const int PART =
    64;  // keys or queries that they meet at a time, so that their weights stay in the nearest cache

struct ForwardScratch {
    element *q, *k, *v, *q_t, *v_columns, *weights, *packed_weights;
    float *scores, *out_t, *out, *inverse_rms;

    ForwardScratch(Arena& arena, const AttentionShape& s) {
        for (element** matrix : {&q, &k, &v}) *matrix = arena.alloc<element>(s.head_size());
        for (element** matrix : {&q_t, &v_columns}) *matrix = arena.alloc<element>(s.transposed_size());
        for (element** part : {&weights, &packed_weights}) *part = arena.alloc<element>(PART * BLOCK);
        scores = arena.alloc<float>(PART * BLOCK);
        for (float** result : {&out_t, &out}) *result = arena.alloc<float>((size_t)s.head_dim * BLOCK);
        inverse_rms = arena.alloc<float>(s.rows());
    }
};

// The softmax of BLOCK queries over the keys so far: the largest score of each, and its sum of e^(score - peak).
struct SoftmaxSums {
    float peak[BLOCK], total[BLOCK];
};

// Goes on with n more scores of queries from i on, those of keys from j on: leaves their weights after dropout, and
// scales the results so far to the new peaks.
inline void weigh(const ForwardScratch& scratch, SoftmaxSums& sums, int i, int j, int n, int D, uint32_t first_stream,
                  const Dropout drop) {
    using namespace simd;
    for (int c = 0; c < BLOCK; c += LANES) {
        const int query = i + c;
        const float* scores = scratch.scores + c;
        element* weights = scratch.weights + c;
        // A query sees itself and the keys before it. All of these queries see the first keys, of which four at a time
        // are looked at, since a maximum has to wait for the one before.
        const int seen = std::min(n, query - j) / 4 * 4;
        const auto sees = [=](int r) { return lanes() >= j + r - query; };
        const floats none = broadcast(-INFINITY), before = j == 0 ? none : load(sums.peak + c);
        floats peak = before, total = {};
        for (int r = 0; r < seen; r += 4) {
            const float* four = scores + r * BLOCK;
            const floats first = max(load(four), load(four + BLOCK));
            peak = max(peak, max(first, max(load(four + 2 * BLOCK), load(four + 3 * BLOCK))));
        }
        for (int r = seen; r < n; r++) peak = max(peak, select(sees(r), load(scores + r * BLOCK), none));
        words streams = {};
        if (drop.active()) streams = drop.stream((words)lanes() + (first_stream + (uint32_t)query));
        const auto keep = [&](int r, floats weight) {
            total += weight;
            if (drop.active()) weight = drop.apply(drop.kept(streams + (uint32_t)(j + r)), weight);
            store(weights + r * BLOCK, weight);
        };
        for (int r = 0; r < seen; r++) keep(r, weight_exp(load(scores + r * BLOCK) - peak));
        for (int r = seen; r < n; r++) keep(r, select(sees(r), weight_exp(load(scores + r * BLOCK) - peak), floats{}));
        if (j > 0) {
            const floats factor = exp(before - peak);
            total += load(sums.total + c) * factor;
            for (int d = 0; d < D; d++) {
                float* out = scratch.out_t + d * BLOCK + c;
                store(out, load(out) * factor);
            }
        }
        store(sums.peak + c, peak), store(sums.total + c, total);
    }
}

// Stores the results of queries from i on, divided by the softmax sums, and these sums' logarithms.
inline void store_results(const AttentionArguments& a, const ForwardScratch& scratch, const SoftmaxSums& sums, int i,
                          const Head& head) {
    using namespace simd;
    const AttentionShape s = a.shape();
    const int D = s.head_dim, count = std::min(BLOCK, s.length - i);  // padding has no place in y
    float log_sums[BLOCK];
    for (int c = 0; c < BLOCK; c += LANES) {
        const floats total = load(sums.total + c), inverse = 1.0f / total;
        store(log_sums + c, load(sums.peak + c) + log(total));
        for (int d = 0; d < D; d++) {
            float* out = scratch.out_t + d * BLOCK + c;
            store(out, load(out) * inverse);
        }
    }
    memcpy(a.log_sums + head.rows + i, log_sums, count * sizeof(float));
    transpose_matrix(scratch.out, D, scratch.out_t, BLOCK, D, BLOCK);
    for (int r = 0; r < count; r++)
        for (int d = 0; d < D; d += LANES)
            store(a.y + head.result + (size_t)(i + r) * s.stride() + d, load(scratch.out + (size_t)r * D + d));
}

inline void attend_head(const AttentionArguments& a, const ForwardScratch& scratch, const Head& head) {
    const AttentionShape s = a.shape();
    const Dropout drop(a.seed, a.dropout);
    const int D = s.head_dim, R = s.rows(), S = s.columns();
    const element* qkv = a.qkv + head.qkv;
    transform_head(scratch.q, scratch.inverse_rms, qkv, s, a.q());
    transform_head(scratch.k, scratch.inverse_rms, qkv + s.stride(), s, a.k());
    copy_head(scratch.v, qkv + 2 * s.stride(), 3 * (size_t)s.stride(), s);
    const element* q = pack_transposed(scratch.q_t, S, scratch.q, R, D);
    transpose_matrix(scratch.v_columns, S, scratch.v, D, R, D);
    for (int i = 0; i < s.length; i += BLOCK) {
        SoftmaxSums sums;
        for (int j = 0; j < i + BLOCK; j += PART) {
            const int n = std::min(PART, i + BLOCK - j);
            for (int r = 0; r < n; r += 16)
                matmul(scratch.scores + r * BLOCK, BLOCK, scratch.k + (size_t)(j + r) * D, D, q + PAIR * i, PAIR * S,
                       D / 32, BLOCK / 16);
            weigh(scratch, sums, i, j, n, D, head.first_stream, drop);
            const element* weights = pack(scratch.packed_weights, scratch.weights, n, BLOCK);
            for (int d = 0; d < D; d += 16)
                matmul(scratch.out_t + d * BLOCK, BLOCK, scratch.v_columns + (size_t)d * S + j, S, weights,
                       PAIR * BLOCK, n / 32, BLOCK / 16, j == 0);
        }
        store_results(a, scratch, sums, i, head);
    }
}
