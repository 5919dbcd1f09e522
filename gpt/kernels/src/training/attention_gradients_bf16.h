// The gradients of one head in bfloat16, whose matmuls take packed pairs: one pass over its queries and one over its keys,
// since weights cannot be read transposed. Computing scores twice costs less than transposing the weights.
#pragma once
#include "attention.h"
#include <initializer_list>

// g is the gradient of the result; packed_*: packed as right factors; *_t: packed as transposed right factors.
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

// The factors of all matmuls of a head, each packed as a right factor.
struct BackwardFactors {
    const element *q_t, *k_t, *v_t, *g_t, *q, *k, *g;
};

inline BackwardFactors load_head(const BackwardScratch& scratch, const element* qkv, const element* dy, const AttentionInputs& in, const AttentionShape& s) {
    const int R = s.rows(), D = s.head_dim;
    transform_head(scratch.q, scratch.q_rms, qkv, s, in.q);
    transform_head(scratch.k, scratch.k_rms, qkv + s.stride(), s, in.k);
    copy_head(scratch.v, qkv + 2 * s.stride(), 3 * (size_t)s.stride(), s);
    copy_head(scratch.g, dy, s.stride(), s);
    return {pack_transposed(scratch.q_t, scratch.q, R, D), pack_transposed(scratch.k_t, scratch.k, R, D), pack_transposed(scratch.v_t, scratch.v, R, D),
            pack_transposed(scratch.g_t, scratch.g, R, D), pack(scratch.packed_q, scratch.q, R, D), pack(scratch.packed_k, scratch.k, R, D), pack(scratch.packed_g, scratch.g, R, D)};
}

// The gradient of 16 queries from i on.
inline void backward_queries(const BackwardScratch& scratch, const BackwardFactors& f, int i, const AttentionShape& s, const Dropout& drop) {
    using namespace simd;
    const int D = s.head_dim, R = s.rows(), keys = round_up(i + 16, 32);
    matmul(scratch.scores, R, scratch.q + (size_t)i * D, D, f.k_t, PAIR * R, D / 32, keys / 16);
    matmul(scratch.dweights, R, scratch.g + (size_t)i * D, D, f.v_t, PAIR * R, D / 32, keys / 16);
    for (int r = 0; r < 16; r++)
        for (int j = 0; j < keys; j += LANES) {
            const size_t at = (size_t)r * R + j;
            floats result = {};
            if (j <= i + r) {
                const floats weight = exp(load(scratch.scores + at) - scratch.log_sums[i + r]);
                result = weight * (drop.apply(scratch.streams[i + r], j, load(scratch.dweights + at)) - scratch.delta[i + r]);
                if (j + LANES > i + r + 1) result = select(up_to(j, i + r), result, floats{});
            }
            store(scratch.dscores + at, result);
        }
    matmul(scratch.dq + (size_t)i * D, D, scratch.dscores, R, f.k, PAIR * D, keys / 32, D / 16);
}

// The gradients of 16 keys from j on, and of their values.
inline void backward_keys(const BackwardScratch& scratch, const BackwardFactors& f, int j, const AttentionShape& s, const Dropout& drop) {
    using namespace simd;
    const int D = s.head_dim, R = s.rows(), first = j / 32 * 32, queries = R - first;
    matmul(scratch.scores, R, scratch.k + (size_t)j * D, D, f.q_t + PAIR * first, PAIR * R, D / 32, queries / 16);
    matmul(scratch.dweights, R, scratch.v + (size_t)j * D, D, f.g_t + PAIR * first, PAIR * R, D / 32, queries / 16);
    for (int r = 0; r < 16; r++)
        for (int i = 0; i < queries; i += LANES) {
            const size_t at = (size_t)r * R + i;
            const int query = first + i;
            floats weight = {}, kept = {}, dscore = {};
            if (query + LANES > j + r) {
                weight = exp(load(scratch.scores + at) - load(scratch.log_sums + query));
                if (query < j + r) weight = select(lanes() >= j + r - query, weight, floats{});
                floats dweight = load(scratch.dweights + at);
                kept = weight;
                if (drop.active()) {
                    const ints mask = drop.kept(read<words>(scratch.streams + query) + (uint32_t)(j + r));
                    dweight = drop.apply(mask, dweight), kept = drop.apply(mask, weight);
                }
                dscore = weight * (dweight - load(scratch.delta + query));
            }
            store(scratch.weights + at, kept);
            store(scratch.dscores + at, dscore);
        }
    matmul(scratch.dv + (size_t)j * D, D, scratch.weights, R, f.g + (size_t)first * D, PAIR * D, queries / 32, D / 16);
    matmul(scratch.dk + (size_t)j * D, D, scratch.dscores, R, f.q + (size_t)first * D, PAIR * D, queries / 32, D / 16);
}

inline void backward_head(const BackwardScratch& scratch, const BackwardFactors& factors, const AttentionShape& s, const Dropout& drop) {
    for (int i = 0; i < s.length; i += 16) backward_queries(scratch, factors, i, s, drop);
    for (int j = 0; j < s.length; j += 16) backward_keys(scratch, factors, j, s, drop);
}
