// The gradients of one head in bfloat16, whose matmuls take packed pairs: one pass over its queries and one over its
// keys, since weights cannot be read transposed. Computing scores twice costs less than transposing the weights.
#pragma once
#include "attention.h"
#include "weight_gradients.h"
#include <initializer_list>

// g is the gradient of the result; packed_*: packed as right factors; *_t: packed as transposed right factors; d*: the
// gradient of *. weights, dscores, scores and dweights are of 16 rows.
struct BackwardScratch {
    element *q, *k, *v, *g, *q_t, *k_t, *v_t, *g_t, *packed_q, *packed_k, *packed_g, *weights, *dscores;
    float *dq, *dk, *dv, *scores, *dweights, *q_rms, *k_rms, *delta, *log_sums;
    uint32_t* streams;

    BackwardScratch(Arena& arena, const AttentionShape& s) {
        for (element** matrix : {&q, &k, &v, &g, &q_t, &k_t, &v_t, &g_t, &packed_q, &packed_k, &packed_g})
            *matrix = arena.alloc<element>(s.head_size());
        for (element** rows : {&weights, &dscores}) *rows = arena.alloc<element>(16 * (size_t)s.rows());
        for (float** matrix : {&dq, &dk, &dv}) *matrix = arena.alloc<float>(s.head_size());
        for (float** rows : {&scores, &dweights}) *rows = arena.alloc<float>(16 * (size_t)s.rows());
        for (float** column : {&q_rms, &k_rms, &delta, &log_sums}) *column = arena.alloc<float>(s.rows());
        streams = arena.alloc<uint32_t>(s.rows());
    }
};

// The gradient of 16 queries from i on.
inline void backward_queries(const BackwardScratch& scratch, int i, const AttentionShape& s, const Dropout& drop) {
    using namespace simd;
    const int D = s.head_dim, R = s.rows(), keys = round_up(i + 16, 32);
    matmul(scratch.scores, R, scratch.q + (size_t)i * D, D, scratch.k_t, PAIR * R, D / 32, keys / 16);
    matmul(scratch.dweights, R, scratch.g + (size_t)i * D, D, scratch.v_t, PAIR * R, D / 32, keys / 16);
    for (int r = 0; r < 16; r++)
        for (int j = 0; j < keys; j += LANES) {
            const size_t at = (size_t)r * R + j;
            const int query = i + r;
            floats result = {};
            if (j <= query) {  // the query sees at least the first of these keys
                const floats weight = exp(load(scratch.scores + at) - scratch.log_sums[query]);
                result = gradients_of(weight, load(scratch.dweights + at), broadcast(scratch.delta[query]),
                                      (words)lanes() + (scratch.streams[query] + (uint32_t)j), drop)
                             .dscore;
                if (j + LANES > query + 1) result = select(up_to(j, query), result, floats{});
            }
            store(scratch.dscores + at, result);
        }
    matmul(scratch.dq + (size_t)i * D, D, scratch.dscores, R, scratch.packed_k, PAIR * D, keys / 32, D / 16);
}

// The gradients of 16 keys from j on, and of their values.
inline void backward_keys(const BackwardScratch& scratch, int j, const AttentionShape& s, const Dropout& drop) {
    using namespace simd;
    const int D = s.head_dim, R = s.rows();
    const int first = j / 32 * 32, queries = R - first;  // no query before sees these keys
    const size_t start = (size_t)j * D, pairs = (size_t)first * D;
    matmul(scratch.scores, R, scratch.k + start, D, scratch.q_t + PAIR * first, PAIR * R, D / 32, queries / 16);
    matmul(scratch.dweights, R, scratch.v + start, D, scratch.g_t + PAIR * first, PAIR * R, D / 32, queries / 16);
    for (int r = 0; r < 16; r++)
        for (int i = 0; i < queries; i += LANES) {
            const size_t at = (size_t)r * R + i;
            const int query = first + i;
            WeightGradients result = {};
            if (query + LANES > j + r) {  // at least the last of these queries sees the key
                floats weight = exp(load(scratch.scores + at) - load(scratch.log_sums + query));
                if (query < j + r) weight = select(lanes() >= j + r - query, weight, floats{});
                result = gradients_of(weight, load(scratch.dweights + at), load(scratch.delta + query),
                                      read<words>(scratch.streams + query) + (uint32_t)(j + r), drop);
            }
            store(scratch.weights + at, result.kept);
            store(scratch.dscores + at, result.dscore);
        }
    matmul(scratch.dv + start, D, scratch.weights, R, scratch.packed_g + pairs, PAIR * D, queries / 32, D / 16);
    matmul(scratch.dk + start, D, scratch.dscores, R, scratch.packed_q + pairs, PAIR * D, queries / 32, D / 16);
}

inline void backward_head(const BackwardScratch& scratch, const AttentionShape& s, const Dropout& drop) {
    const int R = s.rows(), D = s.head_dim;
    pack_transposed(scratch.q_t, scratch.q, R, D), pack_transposed(scratch.k_t, scratch.k, R, D);
    pack_transposed(scratch.v_t, scratch.v, R, D), pack_transposed(scratch.g_t, scratch.g, R, D);
    pack(scratch.packed_q, scratch.q, R, D), pack(scratch.packed_k, scratch.k, R, D);
    pack(scratch.packed_g, scratch.g, R, D);
    for (int i = 0; i < s.length; i += 16) backward_queries(scratch, i, s, drop);
    for (int j = 0; j < s.length; j += 16) backward_keys(scratch, j, s, drop);
}
