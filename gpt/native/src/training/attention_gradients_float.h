// The gradients of one head in float: one pass over its queries, each block of which adds to the gradients of all keys
// and values before it.
#pragma once
#include "attention.h"
#include "weight_gradients.h"
#include <initializer_list>

// g is the gradient of the result; *_t: transposed; d*: the gradient of *. weights, dscores, scores and dweights are of
// 16 rows.
struct BackwardScratch {
    float *q, *k, *v, *g, *k_t, *v_t, *dq, *dk, *dv, *weights, *dscores, *scores, *dweights;
    float *q_rms, *k_rms, *delta, *log_sums;
    uint32_t* streams;

    BackwardScratch(Arena& arena, const AttentionShape& s) {
        for (float** matrix : {&q, &k, &v, &g, &k_t, &v_t, &dq, &dk, &dv}) *matrix = arena.alloc<float>(s.head_size());
        for (float** rows : {&weights, &dscores, &scores, &dweights}) *rows = arena.alloc<float>(16 * (size_t)s.rows());
        for (float** column : {&q_rms, &k_rms, &delta, &log_sums}) *column = arena.alloc<float>(s.rows());
        streams = arena.alloc<uint32_t>(s.rows());
    }
};

// The weights of query t after dropout, and the gradient of its scores: row r of 16, up to `keys` keys.
inline void backward_row(const BackwardScratch& scratch, int r, int t, int keys, int R, const Dropout& drop) {
    using namespace simd;
    for (int j = 0; j < keys; j += LANES) {
        const size_t at = (size_t)r * R + j;
        WeightGradients result = {};
        if (j <= t) {  // the query sees at least the first of these keys
            floats weight = exp(load(scratch.scores + at) - scratch.log_sums[t]);
            if (j + LANES > t + 1) weight = select(up_to(j, t), weight, floats{});
            result = gradients_of(weight, load(scratch.dweights + at), broadcast(scratch.delta[t]),
                                  (words)lanes() + (scratch.streams[t] + (uint32_t)j), drop);
        }
        store(scratch.weights + at, result.kept);
        store(scratch.dscores + at, result.dscore);
    }
}

inline void backward_head(const BackwardScratch& scratch, const AttentionShape& s, const Dropout& drop) {
    const int D = s.head_dim, R = s.rows();
    const float *k_t = pack_transposed(scratch.k_t, scratch.k, R, D),
                *v_t = pack_transposed(scratch.v_t, scratch.v, R, D);
    for (float* sums : {scratch.dk, scratch.dv}) memset(sums, 0, s.head_size() * sizeof(float));
    for (int i = 0; i < s.length; i += 16) {
        const int keys = round_up(i + 16, 32);
        const float *q = scratch.q + (size_t)i * D, *g = scratch.g + (size_t)i * D;
        matmul(scratch.scores, R, q, D, k_t, R, D / 32, keys / 16);
        matmul(scratch.dweights, R, g, D, v_t, R, D / 32, keys / 16);
        for (int r = 0; r < 16; r++) backward_row(scratch, r, i + r, keys, R, drop);
        matmul(scratch.dq + (size_t)i * D, D, scratch.dscores, R, scratch.k, D, keys / 32, D / 16);
        add_transposed(scratch.dk, scratch.dscores, R, q, keys, D);
        add_transposed(scratch.dv, scratch.weights, R, g, keys, D);
    }
}
