// Causal attention, forward and backward, one head of one sequence at a time, so that its queries, keys, values and
// scores stay in the processor's cache. It includes the norm of queries and keys and their rotation. Matmuls take 16
// rows of the left factor and multiples of 32 of the right one (see matmul.h), hence 16 queries at a time, and keys up
// to a multiple of 32. B sequences of T positions have H heads of D elements each; R is T, padded.
//
// The forward pass keeps the logarithm of each query's softmax sum; the backward pass recomputes the weights from it
// (Dao et al. 2022, 2205.14135, appendix B.4).
#pragma once
#include "../memory.h"
#include "../ops/softmax.h"
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

// A mask of the lanes that are at most `last`, counted from `first`.
inline simd::ints up_to(int first, int last) { return simd::lanes() <= last - first; }

struct ForwardScratch {
    element *q, *k, *v, *packed_k, *packed_v, *weights;
    float *scores, *out, *inverse_rms;

    ForwardScratch(Arena& arena, const AttentionShape& s) {
        for (element** matrix : {&q, &k, &v, &packed_k, &packed_v}) *matrix = arena.alloc<element>(s.head_size());
        weights = arena.alloc<element>(16 * (size_t)s.rows());
        scores = arena.alloc<float>(16 * (size_t)s.rows());
        out = arena.alloc<float>(16 * (size_t)s.head_dim);
        inverse_rms = arena.alloc<float>(s.rows());
    }
};

inline void attend_head(const AttentionArguments& a, const ForwardScratch& scratch, const Head& head) {
    using namespace simd;
    const AttentionShape s = a.shape();
    const Dropout drop(a.seed, a.dropout);
    const int D = s.head_dim, R = s.rows(), T = s.length;
    const element* qkv = a.qkv + head.qkv;
    element* y = a.y + head.result;
    transform_head(scratch.q, scratch.inverse_rms, qkv, s, a.q());
    transform_head(scratch.k, scratch.inverse_rms, qkv + s.stride(), s, a.k());
    copy_head(scratch.v, qkv + 2 * s.stride(), 3 * (size_t)s.stride(), s);
    const element* k = pack_transposed(scratch.packed_k, scratch.k, R, D);
    const element* v = pack(scratch.packed_v, scratch.v, R, D);
    for (int i = 0; i < T; i += 16) {
        const int keys = round_up(i + 16, 32);  // all that the last of these queries sees
        float total[16];
        matmul(scratch.scores, R, scratch.q + (size_t)i * D, D, k, PAIR * R, D / 32, keys / 16);
        for (int r = 0; r < 16; r++) {
            const float* scores = scratch.scores + (size_t)r * R;
            element* weights = scratch.weights + (size_t)r * R;
            const uint32_t stream = drop.stream(head.first_stream + i + r);
            const auto score = [=](int j) { return load(scores + j); };
            const auto keep = [=](int j, floats e) { store(weights + j, drop.apply(stream, j, e)); };
            // Query i + r sees itself and the keys before it.
            const SoftmaxSum sum = softmax_row(i + r + 1, keys, score, keep);
            if (i + r < T) a.log_sums[head.rows + i + r] = sum.peak + std::log(sum.sum);
            total[r] = sum.sum;
        }
        matmul(scratch.out, D, scratch.weights, R, v, PAIR * D, keys / 32, D / 16);
        // The sums divide here, D numbers of a query in place of one for each key. Padding has no place in y.
        for (int r = 0; r < 16 && i + r < T; r++)
            for (int d = 0; d < D; d += LANES)
                store(y + (size_t)(i + r) * s.stride() + d, load(scratch.out + (size_t)r * D + d) * (1.0f / total[r]));
    }
}
