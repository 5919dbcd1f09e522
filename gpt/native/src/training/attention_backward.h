// The backward pass of attention.h.
#pragma once
#include "attention_gradients.h"

// Transforms the queries and keys of a head again, and copies its values and the gradient of its result.
inline void load_head(const AttentionArguments& a, const BackwardScratch& scratch, const Head& head) {
    const AttentionShape s = a.shape;
    const element* qkv = a.qkv + head.qkv;
    transform_head(scratch.q, scratch.q_rms, qkv, s, a.q());
    transform_head(scratch.k, scratch.k_rms, qkv + s.stride(), s, a.k());
    copy_head(scratch.v, qkv + 2 * s.stride(), 3 * (size_t)s.stride(), s);
    copy_head(scratch.g, a.dy + head.result, s.stride(), s);
}

// Computes delta of each query: the mean of the gradients of its weights, weighted by the weights. This is also the dot
// product of the query's result y and of the gradient g of that, which is quicker (Dao et al. 2022, appendix B.2).
template <class Size>
inline void load_deltas(const element* y, const BackwardScratch& scratch, Size D, const AttentionShape& s) {
    using namespace simd;
    for (int t = 0; t < s.length; t++) {
        const element *row = y + (size_t)t * s.stride(), *g = scratch.g + (size_t)t * D;
        prefetch_row(row, s.stride(), t, D, s);
        floats dot = {};
        for (int d = 0; d < D; d += LANES) dot = fma(load(g + d), load(row + d), dot);
        scratch.delta[t] = reduce_add(dot);
    }
}

// Loads what gradients of weights need of each query: delta, the logarithm of its softmax sum, and its dropout stream.
// The logarithm is infinite in the padding, whose weights then are the smallest numbers that `weight_exp` returns. They
// have no effect, since they are multiplied by the padding of g and of delta, which is 0.
inline void load_queries(const AttentionArguments& a, const BackwardScratch& scratch, const Head& head,
                         const Dropout& drop) {
    using namespace simd;
    const AttentionShape s = a.shape;
    with_head_dim(s.head_dim, [&](auto D) { load_deltas(a.y + head.result, scratch, D, s); });
    memcpy(scratch.log_sums, a.log_sums + head.rows, s.length * sizeof(float));
    for (int t = s.length; t < s.rows(); t++) {
        scratch.delta[t] = 0.0f;
        scratch.log_sums[t] = INFINITY;
    }
    for (int t = 0; t < s.rows(); t += LANES)
        write(scratch.streams + t, drop.stream((words)lanes() + (head.first_stream + (uint32_t)t)));
}

// Stores the gradients of values among those of qkv, without padding.
inline void store_values(element* dv, const float* result, const AttentionShape& s) {
    with_head_dim(s.head_dim, [&](auto D) {
        for (int t = 0; t < s.length; t++)
            for (int d = 0; d < D; d += simd::LANES)
                simd::store(dv + (size_t)t * 3 * s.stride() + d, simd::load(result + (size_t)t * D + d));
    });
}

// Computes the gradients of head number i of all sequences: of its queries, keys and values in dqkv, and of its gains.
inline void attend_head_backward(const AttentionArguments& a, const BackwardScratch& scratch, int i) {
    const AttentionShape s = a.shape;
    const Head head = head_of(s, i);
    const Dropout drop(a.seed, a.dropout);
    const element* qkv = a.qkv + head.qkv;
    element* dqkv = a.dqkv + head.qkv;
    float *q_gain = a.dq_gain + (size_t)i * s.head_dim, *k_gain = a.dk_gain + (size_t)i * s.head_dim;
    load_head(a, scratch, head);
    load_queries(a, scratch, head, drop);
    backward_head(scratch, s, drop);
    transform_head_backward(dqkv, q_gain, scratch.dq, scratch.q_rms, qkv, s, a.q());
    transform_head_backward(dqkv + s.stride(), k_gain, scratch.dk, scratch.k_rms, qkv + s.stride(), s, a.k());
    store_values(dqkv + 2 * s.stride(), scratch.dv, s);
}
