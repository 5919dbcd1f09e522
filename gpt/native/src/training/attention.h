// Causal attention, forward and backward: Attention.forward of gpt/model/attention.py from the results of c_q, c_k and
// c_v to the input of c_proj, of one head of one sequence at a time, so that its queries, keys, values and scores stay
// in the processor's cache:
//     q, k = rotate(q_norm(q)), rotate(k_norm(k))
//     y = dropout(softmax(masked_scores(q, k))) v     with the scores q k^T / sqrt(D), of ReferenceCore.forward
// B sequences of T positions have H heads of D elements each; R is T, padded to a multiple of 32, as matmuls take it
// (see matmul.h); S is the stride of transposed matrices.
//
// Scores and weights are computed transposed: a row for each key, and a column for each query. So a vector holds one
// key and several queries, whose largest scores and sums need no reduction over lanes.
//
// The forward pass keeps the logarithm of each query's softmax sum; the backward pass recomputes the weights from it
// (Dao et al. 2022, 2205.14135, appendix B.4).
#pragma once
#include "../memory.h"
#include "attention_weights.h"
#include "dropout.h"
#include "head_transform.h"
#include "matmul.h"

// What attention reads and writes; the gradients only on the way back.
struct AttentionArguments {
    const element* qkv;                            // (B, T, 3 H D)
    element* y;                                    // (B, T, H D)
    const element* dy;                             // (B, T, H D)
    element* dqkv;                                 // (B, T, 3 H D)
    const float *q_gain, *k_gain, *cosine, *sine;  // see HeadTransform
    float* log_sums;                               // (B, H, T)
    float *dq_gain, *dk_gain;                      // (B, H, D): the gradient of each head, which are summed later
    float eps, dropout;                            // of the norms; of the attention weights
    uint32_t seed;                                 // of the dropout
    AttentionShape shape;

    // Queries are divided by sqrt(D) here, which divides the scores.
    HeadTransform q() const { return {q_gain, cosine, sine, eps, 1.0f / std::sqrt((float)shape.head_dim)}; }
    HeadTransform k() const { return {k_gain, cosine, sine, eps, 1.0f}; }
};

// One head of one sequence: where it begins in the arrays of AttentionArguments.
struct Head {
    size_t qkv;             // in qkv and dqkv: its queries
    size_t result;          // in y and dy
    size_t rows;            // in log_sums
    uint32_t first_stream;  // of its dropout, which has a stream for each query
};

// Head number i of all sequences.
inline Head head_of(const AttentionShape& s, int i) {
    const int b = i / s.heads, h = i % s.heads;
    return {s.qkv_start(b, h), s.result_start(b, h), (size_t)i * s.length, (uint32_t)i * s.length};
}

static const int BLOCK = 32;  // queries of the forward pass, or keys of the backward pass, that are computed together
static const int PART = 64;   // keys or queries that a block meets at a time: their weights stay in the nearest cache

// What one head needs forward. *_t: transposed; q_t is packed, too.
struct ForwardScratch {
    element *q, *k, *v;                 // (R, D)
    element *q_t, *v_t;                 // (D, S)
    element *weights, *packed_weights;  // (PART, BLOCK): a row for each key
    float* scores;                      // (PART, BLOCK)
    float *out_t, *out;                 // (D, BLOCK), (BLOCK, D): results of a block of queries
    float* inverse_rms;                 // (R)

    ForwardScratch(Arena& arena, const AttentionShape& s) {
        for (element** matrix : {&q, &k, &v}) *matrix = arena.alloc<element>(s.head_size());
        for (element** matrix : {&q_t, &v_t}) *matrix = arena.alloc<element>(s.transposed_size());
        weights = arena.alloc<element>(PART * BLOCK);
        // What is packed for float is the matrix itself.
        packed_weights = PAIR == 1 ? weights : arena.alloc<element>(PART * BLOCK);
        scores = arena.alloc<float>(PART * BLOCK);
        for (float** result : {&out_t, &out}) *result = arena.alloc<float>((size_t)s.head_dim * BLOCK);
        inverse_rms = arena.alloc<float>(s.rows());
    }
};

// Keys, or queries: `count` from `first` on.
struct Span {
    int first, count;
};

// The softmax of BLOCK queries, from `first` on, over the keys so far.
struct QueryBlock {
    int first;
    float peak[BLOCK];   // the largest score of each query
    float total[BLOCK];  // the sum of its e^(score - peak)
};

// Multiplies LANES columns of out_t, (D, BLOCK).
inline void scale_columns(float* out_t, simd::floats factor, int D) {
    for (int d = 0; d < D; d++) simd::store(out_t + d * BLOCK, simd::load(out_t + d * BLOCK) * factor);
}

// One vector of a block's queries, and the keys that it meets now: scores and weights, (PART, BLOCK), at these queries.
struct QueryVector {
    const float* scores;
    element* weights;
    Span keys;
    int first_query;

    QueryVector(const ForwardScratch& scratch, const Span& keys, int block_start, int column)
        : scores(scratch.scores + column), weights(scratch.weights + column), keys(keys),
          first_query(block_start + column) {}

    // How many keys all queries of the vector see, down to a multiple of four: a query sees the keys before it.
    int seen_by_all() const { return std::min(keys.count, first_query - keys.first) / 4 * 4; }
    // Which queries see key r of `keys`: a query also sees itself.
    simd::ints sees(int r) const { return simd::lanes() >= keys.first + r - first_query; }
    simd::floats score(int r) const { return simd::load(scores + r * BLOCK); }

    // The largest scores that the queries see, or the earlier ones where those are larger.
    simd::floats peak(simd::floats earlier) const {
        using namespace simd;
        const int seen = seen_by_all();  // a multiple of four
        floats result = earlier;
        // By fours, of which two pairs are compared at a time, since a maximum waits for the one before it.
        for (int r = 0; r < seen; r += 4)
            result = max(result, max(max(score(r), score(r + 1)), max(score(r + 2), score(r + 3))));
        for (int r = seen; r < keys.count; r++) result = max(result, select(sees(r), score(r), broadcast(-INFINITY)));
        return result;
    }

    // Stores the weight of key r after dropout. streams: of dropout, those of the queries.
    void store_weight(int r, simd::floats weight, simd::words streams, const Dropout& drop) const {
        if (drop.active()) weight = drop.apply(drop.kept(streams + (uint32_t)(keys.first + r)), weight);
        simd::store(weights + r * BLOCK, weight);
    }

    // Stores e^(score - peak), after dropout; returns their sums before it, as a softmax's denominator is computed.
    simd::floats store_weights(simd::floats peak, simd::words streams, const Dropout& drop) const {
        using namespace simd;
        const int seen = seen_by_all();
        floats total = {};
        for (int r = 0; r < seen; r++) {
            const floats weight = weight_exp(score(r) - peak);
            total += weight;
            store_weight(r, weight, streams, drop);
        }
        for (int r = seen; r < keys.count; r++) {
            const floats weight = select(sees(r), weight_exp(score(r) - peak), floats{});
            total += weight;
            store_weight(r, weight, streams, drop);
        }
        return total;
    }
};

// Turns the scores of more keys into weights, after dropout, relative to the largest scores so far. What earlier keys
// left in out_t is scaled to these (Dao et al. 2022, algorithm 1). first_stream: of dropout, that of query 0. Dropout
// is passed by value, so that compilers see that no store of a weight changes it.
inline void weigh(const ForwardScratch& scratch, QueryBlock& block, const Span& keys, int D, uint32_t first_stream,
                  const Dropout drop) {
    using namespace simd;
    for (int c = 0; c < BLOCK; c += LANES) {
        const QueryVector queries(scratch, keys, block.first, c);
        const floats before = keys.first == 0 ? broadcast(-INFINITY) : load(block.peak + c);
        const floats peak = queries.peak(before);
        words streams = {};
        if (drop.active()) streams = drop.stream((words)lanes() + (first_stream + (uint32_t)queries.first_query));
        floats total = queries.store_weights(peak, streams, drop);
        if (keys.first > 0) {
            const floats factor = exp(before - peak);
            total += load(block.total + c) * factor;
            scale_columns(scratch.out_t + c, factor, D);
        }
        store(block.peak + c, peak);
        store(block.total + c, total);
    }
}

// Stores the results of a block of queries, and the logarithms of their softmax sums. The division by these sums, which
// makes weights of e^(score - peak), was left for here: it divides D numbers of a query, and not one for each key.
inline void store_results(const AttentionArguments& a, const ForwardScratch& scratch, const QueryBlock& block,
                          const Head& head) {
    using namespace simd;
    const AttentionShape s = a.shape;
    const int D = s.head_dim;
    const int count = std::min(BLOCK, s.length - block.first);  // padding has no place in y
    element* y = a.y + head.result + (size_t)block.first * s.stride();
    float log_sums[BLOCK];
    for (int c = 0; c < BLOCK; c += LANES) {
        const floats total = load(block.total + c);
        store(log_sums + c, load(block.peak + c) + log(total));
        scale_columns(scratch.out_t + c, 1.0f / total, D);
    }
    memcpy(a.log_sums + head.rows + block.first, log_sums, count * sizeof(float));
    transpose_matrix(scratch.out, D, scratch.out_t, BLOCK, D, BLOCK);
    for (int r = 0; r < count; r++)
        for (int d = 0; d < D; d += LANES) store(y + (size_t)r * s.stride() + d, load(scratch.out + (size_t)r * D + d));
}

// Computes the results of one head, and the logarithms of its softmax sums.
inline void attend_head(const AttentionArguments& a, const ForwardScratch& scratch, const Head& head) {
    const AttentionShape s = a.shape;
    const Dropout drop(a.seed, a.dropout);
    const int D = s.head_dim, R = s.rows(), S = s.columns();
    const element* qkv = a.qkv + head.qkv;
    transform_head(scratch.q, scratch.inverse_rms, qkv, s, a.q());
    transform_head(scratch.k, scratch.inverse_rms, qkv + s.stride(), s, a.k());
    copy_head(scratch.v, qkv + 2 * s.stride(), 3 * (size_t)s.stride(), s);
    pack_transposed(scratch.q_t, S, scratch.q, R, D);
    transpose_matrix(scratch.v_t, S, scratch.v, D, R, D);
    for (int i = 0; i < s.length; i += BLOCK) {
        QueryBlock block;
        block.first = i;
        // Later keys than those of this block are seen by none of its queries.
        const int end = i + BLOCK;
        for (int j = 0; j < end; j += PART) {
            const int count = std::min(PART, end - j);
            // scores (count, BLOCK) = k q^T
            for (int r = 0; r < count; r += 16)
                matmul(scratch.scores + r * BLOCK, BLOCK, scratch.k + (size_t)(j + r) * D, D, scratch.q_t + PAIR * i,
                       PAIR * S, D / 32, BLOCK / 16);
            weigh(scratch, block, {j, count}, D, head.first_stream, drop);
            pack(scratch.packed_weights, scratch.weights, count, BLOCK);
            // out_t (D, BLOCK) += v^T weights
            for (int d = 0; d < D; d += 16)
                matmul(scratch.out_t + d * BLOCK, BLOCK, scratch.v_t + (size_t)d * S + j, S, scratch.packed_weights,
                       PAIR * BLOCK, count / 32, BLOCK / 16, j == 0);
        }
        store_results(a, scratch, block, head);
    }
}
