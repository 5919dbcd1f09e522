// The backward pass of attention.h.
#pragma once
#ifdef GPT_BFLOAT16
#include "attention_gradients_bf16.h"
#else
#include "attention_gradients_float.h"
#endif

struct AttentionGradients {
    element* qkv;
    float *q_gain, *k_gain;  // (threads, D), one row per thread, initially zero
};

// Computes for each query: delta, the mean gradient of its weights, weighted by them; its log softmax sum; its dropout stream.
inline void load_queries(const BackwardScratch& scratch, const element* y, const float* log_sums, const AttentionShape& s, const Dropout& drop, uint32_t first_stream) {
    using namespace simd;
    for (int t = 0; t < s.rows(); t++) {
        const element *row = y + (size_t)t * s.stride(), *g = scratch.g + (size_t)t * s.head_dim;
        floats dot = {};
        if (t < s.length) {
            prefetch_row(row, s.stride(), t, s);
            for (int d = 0; d < s.head_dim; d += LANES) dot = fma(load(g + d), load(row + d), dot);
        }
        scratch.delta[t] = reduce_add(dot);
        scratch.log_sums[t] = t < s.length ? log_sums[t] : INFINITY;
        scratch.streams[t] = drop.stream(first_stream + t);
    }
}

inline void store_values(element* dv, const float* result, const AttentionShape& s) {
    for (int t = 0; t < s.length; t++)
        for (int d = 0; d < s.head_dim; d += simd::LANES)
            simd::store(dv + (size_t)t * 3 * s.stride() + d, simd::load(result + (size_t)t * s.head_dim + d));
}

inline void attention_backward(const AttentionGradients& grad, const element* dy, const element* y, const float* log_sums, const AttentionInputs& in,
                               const AttentionShape& s, const Dropout& drop, int threads) {
    const Scratch<BackwardScratch> memory(threads, s);
    parallel(threads, [&](const Worker& w) {
        [[maybe_unused]] const MatmulScope scope;
        const BackwardScratch scratch = memory.of(w.index, s);
        float *q_gain = grad.q_gain + (size_t)w.index * s.head_dim, *k_gain = grad.k_gain + (size_t)w.index * s.head_dim;
        for_each_head(w, s, [&](int b, int h) {
            const size_t head = (size_t)b * s.heads + h, start = s.result_start(b, h);
            const element* qkv = in.qkv + s.qkv_start(b, h);
            element* dqkv = grad.qkv + s.qkv_start(b, h);
            const BackwardFactors factors = load_head(scratch, qkv, dy + start, in, s);
            load_queries(scratch, y + start, log_sums + head * s.length, s, drop, (uint32_t)(head * s.length));
            backward_head(scratch, factors, s, drop);
            transform_head_backward(dqkv, q_gain, scratch.dq, scratch.q_rms, qkv, s, in.q);
            transform_head_backward(dqkv + s.stride(), k_gain, scratch.dk, scratch.k_rms, qkv + s.stride(), s, in.k);
            store_values(dqkv + 2 * s.stride(), scratch.dv, s);
        });
    });
}
