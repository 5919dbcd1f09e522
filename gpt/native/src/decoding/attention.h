// Attention of some query vectors over the cached keys and values of one head of their sequence.
#pragma once
#include "../ops/softmax.h"
#include "../ops/tile.h"
#include "cache.h"
#include <algorithm>

static const int MAX_QUERIES = 4;  // how many queries read the keys and values together

// Query vectors (M, D) that attend to one head of keys and values, where D is the size of a head. positions: how many
// positions each query attends to, in ascending order. result: where the result of each query is written. Temporary
// memory: weights (M, capacity) and sums (M, padded D), where `capacity` is the padded number of positions of a window.
struct Queries {
    float *vectors, *weights, *sums;
    int capacity;
    int positions[MAX_QUERIES];
    float* result[MAX_QUERIES];
};

// Prefetches `count` rows of memory, which are read later, during `rounds` calls of some(). A row has `lines` cache
// lines; each call prefetches `rows` rows.
struct PrefetchRows {
    const char* next;
    size_t stride;          // in bytes
    int lines, rows, left;  // left: rows that are not prefetched yet

    template <class T>
    PrefetchRows(const T* p, size_t stride, int width, int count, int rounds)
        : next((const char*)p), stride(stride * sizeof(T)), lines((width * (int)sizeof(T) + 63) / 64),
          rows((count + rounds - 1) / rounds), left(count) {}
    void some() {
        for (int r = 0; r < rows && left > 0; r++, left--, next += stride)
            for (int i = 0; i < lines; i++) simd::prefetch_outer(next + 64 * i);
    }
};

// y = a b, or y += a b if `add` is set, for M rows of a and `vectors` vectors in a row of b, N of which are computed at
// a time. `count` is the number of rows of b.
template <class T, int M, int N = widest(M)>
inline void matmul_rows(float* y, size_t ldy, ByRows a, Rows<T> b, int vectors, int count, bool add,
                        PrefetchRows& ahead) {
    for (; vectors >= N; vectors -= N, y += N * LANES, b.data += N * LANES) {
        floats sum[M][N] = {};
        accumulate(sum, a, b, 0, count, ahead);
        for (int m = 0; m < M && add; m++)
            for (int v = 0; v < N; v++) sum[m][v] = simd::load(y + m * ldy + v * LANES) + sum[m][v];
        store_tile(y, ldy, sum);
    }
    if constexpr (N > 1)
        if (vectors) matmul_rows<T, M, N / 2>(y, ldy, a, b, vectors, count, add, ahead);
}

// Turns the scores of a query into weights, in place. Returns a factor by which all weights have yet to be multiplied.
// The weights from the last position to the end of its vector become 0.
template <class T> float attention_weights(const HeadCache<T>& c, float* weights, int positions) {
    const auto score = [=](int j) {
        floats x = simd::load(weights + j);
        if constexpr (HeadCache<T>::SCALED) x *= simd::load(c.key_scales(j / BLOCK) + j % BLOCK);
        return x;
    };
    const auto keep = [=](int j, floats e) {
        if constexpr (HeadCache<T>::SCALED) e *= simd::load(c.value_scales(j / BLOCK) + j % BLOCK);
        simd::store(weights + j, e);
    };
    return 1.0f / softmax_row(positions, positions, score, keep).sum;
}

// Adds the values of a block to the weighted sums of M queries, which attend to `count` positions of the block.
template <class T, int M>
void add_values(const HeadCache<T>& c, const Queries& q, int first_query, int block, int count, PrefetchRows& ahead) {
    const int padded = padded_head_dim(c.D);
    const ByRows weights = {q.weights + first_query * q.capacity + block * BLOCK, (size_t)q.capacity};
    matmul_rows<T, M>(q.sums + first_query * padded, padded, weights, {c.values(block), (size_t)padded}, padded / LANES,
                      count, block > 0, ahead);
}

// Computes the attention of M queries: scores, block after block, then weights, then the weighted sums of values, block
// after block. During the scores of a block its values are prefetched. During its values, keys of `next` are
// prefetched, of which `next_positions` positions are attended to after this call.
template <class T, int M>
void attend(const HeadCache<T>& c, const Queries& q, const HeadCache<T>& next, int next_positions) {
    const int D = c.D, padded = padded_head_dim(D), max_positions = q.positions[M - 1];
    for (int block = 0; block * BLOCK < max_positions; block++) {
        const int count = std::min(BLOCK, max_positions - block * BLOCK);
        PrefetchRows values(c.values(block), padded, padded, count, D);
        matmul_rows<T, M>(q.weights + block * BLOCK, q.capacity, {q.vectors, (size_t)D}, {c.keys(block), BLOCK},
                          round_up(count, LANES) / LANES, D, false, values);
    }
    float factor[M];
    for (int i = 0; i < M; i++) factor[i] = attention_weights(c, q.weights + i * q.capacity, q.positions[i]);
    for (int block = 0; block * BLOCK < max_positions; block++) {
        const int next_count = std::max(0, std::min(BLOCK, next_positions - block * BLOCK));
        int count[M];
        for (int i = 0; i < M; i++) count[i] = std::min(BLOCK, q.positions[i] - block * BLOCK);
        // The block table of `next` may have no such block; without keys to prefetch any address will do.
        PrefetchRows keys(next.keys(next_count ? block : 0), BLOCK, next_count, D, std::max(1, count[M - 1]));
        if (count[0] == count[M - 1]) add_values<T, M>(c, q, 0, block, count[0], keys);
        else  // the queries attend to different numbers of positions of the block
            for (int i = 0; i < M; i++)
                if (count[i] > 0) add_values<T, 1>(c, q, i, block, count[i], keys);
    }
    for (int i = 0; i < M; i++)
        for (int d = 0; d < D; d++) q.result[i][d] = q.sums[i * padded + d] * factor[i];
}
