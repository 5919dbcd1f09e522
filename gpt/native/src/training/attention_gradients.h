// The gradients of one head, in one pass over its keys, a block at a time. Scores are computed transposed, with a row
// for each key, since the gradients of keys and values take rows of them as left factors. Those of queries take them as
// a right factor, and are summed transposed too.
#pragma once
#include "attention.h"
#include "weight_gradients.h"
#include <initializer_list>

// g is the gradient of the result; packed_*: packed as right factors; *_t: packed as transposed right factors;
// k_columns: the keys, transposed as a left factor; d*: the gradient of *. weights and dscores: (BLOCK, PART); scores
// and dweights: 16 keys of them.
struct BackwardScratch {
    element *q, *k, *v, *g, *q_t, *g_t, *k_columns, *packed_q, *packed_g, *weights, *dscores, *packed_dscores;
    float *dq, *dq_t, *dk, *dv, *scores, *dweights, *q_rms, *k_rms, *delta, *log_sums;
    uint32_t* streams;

    BackwardScratch(Arena& arena, const AttentionShape& s) {
        for (element** matrix : {&q, &k, &v, &g, &packed_q, &packed_g}) *matrix = arena.alloc<element>(s.head_size());
        for (element** matrix : {&q_t, &g_t, &k_columns}) *matrix = arena.alloc<element>(s.transposed_size());
        for (element** part : {&weights, &dscores, &packed_dscores}) *part = arena.alloc<element>(BLOCK * PART);
        for (float** matrix : {&dq, &dk, &dv}) *matrix = arena.alloc<float>(s.head_size());
        dq_t = arena.alloc<float>(s.transposed_size());
        for (float** part : {&scores, &dweights}) *part = arena.alloc<float>(16 * PART);
        for (float** column : {&q_rms, &k_rms, &delta, &log_sums}) *column = arena.alloc<float>(s.rows());
        streams = arena.alloc<uint32_t>(s.rows());
    }
};

// The weights after dropout, and the gradients of scores, of 16 keys from j on and n queries from i on.
inline void backward_weights(const BackwardScratch& scratch, element* weights, element* dscores, int j, int i, int n,
                             const Dropout drop) {
    using namespace simd;
    for (int c = 0; c < n; c += LANES) {
        const int query = i + c;
        const floats log_sum = load(scratch.log_sums + query), delta = load(scratch.delta + query);
        const words streams = read<words>(scratch.streams + query);
        for (int r = 0; r < 16; r++) {
            const int key = j + r, at = r * PART + c;
            floats weight = weight_exp(load(scratch.scores + at) - log_sum);
            // Queries before a key do not see it.
            if (query < key) weight = select(lanes() >= key - query, weight, floats{});
            const WeightGradients result =
                gradients_of(weight, load(scratch.dweights + at), delta, streams + (uint32_t)key, drop);
            store(weights + at, result.kept);
            store(dscores + at, result.dscore);
        }
    }
}

// What BLOCK keys from j on and n queries from i on add to the gradients of keys, values and queries.
inline void backward_part(const BackwardScratch& scratch, int j, int i, int n, const AttentionShape& s,
                          const element* q, const element* g, const Dropout& drop) {
    const int D = s.head_dim, S = s.columns();
    for (int r = 0; r < BLOCK; r += 16) {
        const size_t start = (size_t)(j + r) * D, at = (size_t)r * PART;
        matmul(scratch.scores, PART, scratch.k + start, D, scratch.q_t + PAIR * i, PAIR * S, D / 32, n / 16);
        matmul(scratch.dweights, PART, scratch.v + start, D, scratch.g_t + PAIR * i, PAIR * S, D / 32, n / 16);
        backward_weights(scratch, scratch.weights + at, scratch.dscores + at, j + r, i, n, drop);
        matmul(scratch.dv + start, D, scratch.weights + at, PART, g + (size_t)i * D, PAIR * D, n / 32, D / 16, i == j);
        matmul(scratch.dk + start, D, scratch.dscores + at, PART, q + (size_t)i * D, PAIR * D, n / 32, D / 16, i == j);
    }
    const element* dscores = pack(scratch.packed_dscores, scratch.dscores, BLOCK, PART);
    for (int d = 0; d < D; d += 16)
        matmul(scratch.dq_t + (size_t)d * S + i, S, scratch.k_columns + (size_t)d * S + j, S, dscores, PAIR * PART, 1,
               n / 16, j == 0);
}

inline void backward_head(const BackwardScratch& scratch, const AttentionShape& s, const Dropout& drop) {
    const int R = s.rows(), S = s.columns(), D = s.head_dim;
    pack_transposed(scratch.q_t, S, scratch.q, R, D), pack_transposed(scratch.g_t, S, scratch.g, R, D);
    transpose_matrix(scratch.k_columns, S, scratch.k, D, R, D);
    const element *q = pack(scratch.packed_q, scratch.q, R, D), *g = pack(scratch.packed_g, scratch.g, R, D);
    for (int j = 0; j < s.length; j += BLOCK)
        for (int i = j; i < R; i += PART) backward_part(scratch, j, i, std::min(PART, R - i), s, q, g, drop);
    transpose_matrix(scratch.dq, D, scratch.dq_t, S, D, R);
}
