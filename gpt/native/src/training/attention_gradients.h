// The gradients of one head, in one pass over its keys, a block at a time. With the weights W = softmax(q k^T) before
// dropout and the gradient g of the result:
//     dv = dropout(W)^T g
//     dW = dropout(g v^T)
//     dscores = W (dW - delta), element by element, with delta of each query from load_deltas
//     dq = dscores k, dk = dscores^T q
// Scores, weights and their gradients are computed transposed, with a row for each key, since dk and dv take rows of
// them as left factors. dq takes them as a right factor, and is summed transposed too.
#pragma once
#include "attention.h"
#include "weight_gradients.h"
#include <initializer_list>

// What one head needs backward. g is the gradient of the result; d*: that of *; packed_*: packed as right factors;
// *_t: transposed.
struct BackwardScratch {
    element *q, *k, *v, *g;                       // (R, D)
    element *q_t, *g_t;                           // (D, S), packed
    element* k_t;                                 // (D, S)
    element *packed_q, *packed_g;                 // (R, D)
    element *weights, *dscores, *packed_dscores;  // (BLOCK, PART)
    float *dq, *dk, *dv;                          // (R, D)
    float* dq_t;                                  // (D, S)
    float *scores, *dweights;                     // (16, PART)
    float *q_rms, *k_rms;                         // (R): inverse root mean squares
    float *delta, *log_sums;                      // (R)
    uint32_t* streams;                            // (R): of dropout

    BackwardScratch(Arena& arena, const AttentionShape& s) {
        for (element** matrix : {&q, &k, &v, &g}) *matrix = arena.alloc<element>(s.head_size());
        for (element** matrix : {&q_t, &g_t, &k_t}) *matrix = arena.alloc<element>(s.transposed_size());
        for (element** part : {&weights, &dscores}) *part = arena.alloc<element>(BLOCK * PART);
        // What is packed for float is the matrix itself.
        packed_q = PAIR == 1 ? q : arena.alloc<element>(s.head_size());
        packed_g = PAIR == 1 ? g : arena.alloc<element>(s.head_size());
        packed_dscores = PAIR == 1 ? dscores : arena.alloc<element>(BLOCK * PART);
        for (float** matrix : {&dq, &dk, &dv}) *matrix = arena.alloc<float>(s.head_size());
        dq_t = arena.alloc<float>(s.transposed_size());
        for (float** part : {&scores, &dweights}) *part = arena.alloc<float>(16 * PART);
        for (float** column : {&q_rms, &k_rms, &delta, &log_sums}) *column = arena.alloc<float>(s.rows());
        streams = arena.alloc<uint32_t>(s.rows());
    }
};

// The weights after dropout, and the gradients of scores, of 16 keys from first_key on: rows of (BLOCK, PART).
inline void backward_weights(const BackwardScratch& scratch, element* weights, element* dscores, int first_key,
                             const Span& queries, const Dropout drop) {
    using namespace simd;
    for (int c = 0; c < queries.count; c += LANES) {
        const int query = queries.first + c;
        const floats log_sum = load(scratch.log_sums + query), delta = load(scratch.delta + query);
        const words streams = read<words>(scratch.streams + query);
        for (int r = 0; r < 16; r++) {
            const int key = first_key + r, at = r * PART + c;
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

// Adds what BLOCK keys from j on and a part of the queries, from i on, contribute to the gradients of keys, values and
// queries. The first contribution is written and not added: to keys, that of the queries from i == j on, since earlier
// ones do not see them; to queries, that of the keys from j == 0 on.
inline void backward_part(const BackwardScratch& scratch, int j, const Span& queries, const AttentionShape& s,
                          const Dropout& drop) {
    const int D = s.head_dim, S = s.columns(), i = queries.first;
    const int columns = queries.count / 16,
              depth = queries.count / 32;  // matmuls count columns in 16s and depth in 32s
    const element *q = scratch.packed_q + (size_t)i * D, *g = scratch.packed_g + (size_t)i * D;
    for (int r = 0; r < BLOCK; r += 16) {
        const size_t row = (size_t)(j + r) * D;
        // Column i of a packed matrix is PAIR * i elements from its start.
        element *weights = scratch.weights + r * PART, *dscores = scratch.dscores + r * PART;
        matmul(scratch.scores, PART, scratch.k + row, D, scratch.q_t + PAIR * i, PAIR * S, D / 32, columns);
        matmul(scratch.dweights, PART, scratch.v + row, D, scratch.g_t + PAIR * i, PAIR * S, D / 32, columns);
        backward_weights(scratch, weights, dscores, j + r, queries, drop);
        matmul(scratch.dv + row, D, weights, PART, g, PAIR * D, depth, D / 16, i == j);
        matmul(scratch.dk + row, D, dscores, PART, q, PAIR * D, depth, D / 16, i == j);
    }
    // Where a part has fewer than PART queries, the columns behind them are packed, too, but not multiplied.
    pack(scratch.packed_dscores, scratch.dscores, BLOCK, PART);
    for (int d = 0; d < D; d += 16) {
        const size_t row = (size_t)d * S;
        matmul(scratch.dq_t + row + i, S, scratch.k_t + row + j, S, scratch.packed_dscores, PAIR * PART, BLOCK / 32,
               columns, j == 0);
    }
}

// Computes dq, dk and dv of one head, whose factors have been loaded.
inline void backward_head(const BackwardScratch& scratch, const AttentionShape& s, const Dropout& drop) {
    const int R = s.rows(), S = s.columns(), D = s.head_dim;
    pack_transposed(scratch.q_t, S, scratch.q, R, D);
    pack_transposed(scratch.g_t, S, scratch.g, R, D);
    transpose_matrix(scratch.k_t, S, scratch.k, D, R, D);
    pack(scratch.packed_q, scratch.q, R, D);
    pack(scratch.packed_g, scratch.g, R, D);
    for (int j = 0; j < s.length; j += BLOCK)
        for (int i = j; i < R; i += PART) backward_part(scratch, j, {i, std::min(PART, R - i)}, s, drop);
    transpose_matrix(scratch.dq, D, scratch.dq_t, S, D, R);
}
