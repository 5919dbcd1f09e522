// The gradients of one head where a matmul takes packed pairs: once over its queries and once over its keys, since
// weights cannot be read transposed. What that computes twice costs less than turning them.
#pragma once
#include "attention.h"
#include <initializer_list>

// g is the gradient of the result; packed_*: as factors on the right, *_t: as transposed ones.
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

// The factors of all matmuls of a head, each in the form in which it is on the right.
struct BackwardFactors {
    const element *q_t, *k_t, *v_t, *g_t, *q, *k, *g;
};

inline BackwardFactors load_head(const BackwardScratch& own, const element* qkv, const element* dy, const AttentionInputs& in, const AttentionShape& s) {
    const int R = s.rows(), D = s.head_dim;
    transform_head(own.q, own.q_rms, qkv, s, in.q);
    transform_head(own.k, own.k_rms, qkv + s.stride(), s, in.k);
    copy_head(own.v, qkv + 2 * s.stride(), 3 * (size_t)s.stride(), s);
    copy_head(own.g, dy, s.stride(), s);
    return {pack_transposed(own.q_t, own.q, R, D), pack_transposed(own.k_t, own.k, R, D), pack_transposed(own.v_t, own.v, R, D),
            pack_transposed(own.g_t, own.g, R, D), pack(own.packed_q, own.q, R, D), pack(own.packed_k, own.k, R, D), pack(own.packed_g, own.g, R, D)};
}

// The gradient of 16 queries from i on.
inline void backward_queries(const BackwardScratch& own, const BackwardFactors& f, int i, const AttentionShape& s, const Dropout& drop) {
    using namespace simd;
    const int D = s.head_dim, R = s.rows(), keys = round_up(i + 16, 32);
    multiply(own.scores, R, own.q + (size_t)i * D, D, f.k_t, PAIR * R, D / 32, keys / 16);
    multiply(own.dweights, R, own.g + (size_t)i * D, D, f.v_t, PAIR * R, D / 32, keys / 16);
    for (int r = 0; r < 16; r++)
        for (int j = 0; j < keys; j += LANES) {
            const size_t at = (size_t)r * R + j;
            floats result = {};
            if (j <= i + r) {
                const floats weight = exp(load(own.scores + at) - own.log_sums[i + r]);
                result = weight * (drop.apply(own.streams[i + r], j, load(own.dweights + at)) - own.delta[i + r]);
                if (j + LANES > i + r + 1) result = select(up_to(j, i + r), result, floats{});
            }
            store(own.dscores + at, result);
        }
    multiply(own.dq + (size_t)i * D, D, own.dscores, R, f.k, PAIR * D, keys / 32, D / 16);
}

// The gradients of 16 keys from j on, and of their values.
inline void backward_keys(const BackwardScratch& own, const BackwardFactors& f, int j, const AttentionShape& s, const Dropout& drop) {
    using namespace simd;
    const int D = s.head_dim, R = s.rows(), first = j / 32 * 32, queries = R - first;
    multiply(own.scores, R, own.k + (size_t)j * D, D, f.q_t + PAIR * first, PAIR * R, D / 32, queries / 16);
    multiply(own.dweights, R, own.v + (size_t)j * D, D, f.g_t + PAIR * first, PAIR * R, D / 32, queries / 16);
    for (int r = 0; r < 16; r++)
        for (int i = 0; i < queries; i += LANES) {
            const size_t at = (size_t)r * R + i;
            const int query = first + i;
            floats weight = {}, kept = {}, dscore = {};
            if (query + LANES > j + r) {
                weight = exp(load(own.scores + at) - load(own.log_sums + query));
                if (query < j + r) weight = select(lanes() >= j + r - query, weight, floats{});
                floats dweight = load(own.dweights + at);
                kept = weight;
                if (drop.active()) {
                    const ints mask = drop.kept(read<words>(own.streams + query) + (uint32_t)(j + r));
                    dweight = drop.apply(mask, dweight), kept = drop.apply(mask, weight);
                }
                dscore = weight * (dweight - load(own.delta + query));
            }
            store(own.weights + at, kept);
            store(own.dscores + at, dscore);
        }
    multiply(own.dv + (size_t)j * D, D, own.weights, R, f.g + (size_t)first * D, PAIR * D, queries / 32, D / 16);
    multiply(own.dk + (size_t)j * D, D, own.dscores, R, f.q + (size_t)first * D, PAIR * D, queries / 32, D / 16);
}

inline void backward_head(const BackwardScratch& own, const BackwardFactors& factors, const AttentionShape& s, const Dropout& drop) {
    for (int i = 0; i < s.length; i += 16) backward_queries(own, factors, i, s, drop);
    for (int j = 0; j < s.length; j += 16) backward_keys(own, factors, j, s, drop);
}
