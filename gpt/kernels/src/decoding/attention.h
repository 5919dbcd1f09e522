// Attention of some query vectors over the cached keys and values of one head of their sequence.
// With PLAIN defined, the loops are written in the simplest way: the reference.
#pragma once
#include "cache.h"
#include "dot.h"
#include <algorithm>

static const int MAX_QUERIES = 4;  // in one pass over the keys

// Query vectors (., D) of one head, the ascending numbers of positions that they attend to, and the targets of their results.
// Scratch: weights (., capacity), sums (., padded D).
struct Queries {
    float *vectors, *weights, *sums;
    int capacity;
    int positions[MAX_QUERIES];
    float* result[MAX_QUERIES];
};

#ifdef PLAIN

inline float as_float(float x) { return x; }
inline float as_float(int8_t x) { return x; }
inline float as_float(bf16 x) {
    const uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}

template <class T> void attend_one(const HeadCache<T>& c, const float* q, int positions, float* weights, float* y) {
    float top = -INFINITY, total = 0.0f;
    for (int j = 0; j < positions; j++) {
        const int block = j / BLOCK, i = j % BLOCK;
        weights[j] = 0.0f;
        for (int d = 0; d < c.D; d++) weights[j] += q[d] * as_float(c.keys(block)[d * BLOCK + i]);
        if (HeadCache<T>::SCALED) weights[j] *= c.key_scales(block)[i];
        top = std::max(top, weights[j]);
    }
    for (int j = 0; j < positions; j++) total += weights[j] = std::exp(weights[j] - top);
    for (int d = 0; d < c.D; d++) {
        float value = 0.0f;
        for (int j = 0; j < positions; j++) {
            const int block = j / BLOCK, i = j % BLOCK;
            value += weights[j] * (HeadCache<T>::SCALED ? c.value_scales(block)[i] : 1.0f) * as_float(c.values(block)[i * padded_head_dim(c.D) + d]);
        }
        y[d] = value / total;
    }
}

template <class T, int M> void attend(const HeadCache<T>& c, const Queries& q, const HeadCache<T>&, int) {
    for (int i = 0; i < M; i++) attend_one(c, q.vectors + i * c.D, q.positions[i], q.weights, q.result[i]);
}

#else

// What a pass over keys or values prefetches meanwhile: the rows that are read after it, some in each of its rounds.
struct PrefetchRows {
    const char* next;
    size_t stride;  // in bytes
    int lines, rows, left;

    template <class T> PrefetchRows(const T* p, size_t stride, int width, int count, int rounds)
        : next((const char*)p), stride(stride * sizeof(T)), lines((width * (int)sizeof(T) + 63) / 64), rows((count + rounds - 1) / rounds),
          left(count) {}
    void some() {
        for (int r = 0; r < rows && left > 0; r++, left--, next += stride)
            for (int i = 0; i < lines; i++) simd::prefetch_outer(next + 64 * i);
    }
};

// y = a b, or y += a b, for M rows of a and as many vectors of b as there are; N of them at a time.
template <class T, int M, int N = widest(M)>
inline void matmul_rows(float* y, size_t ldy, const float* a, size_t lda, const T* b, size_t stride, int vectors, int count, bool add,
                        PrefetchRows& ahead) {
    for (; vectors >= N; vectors -= N, y += N * LANES, b += N * LANES) {
        floats sum[M][N] = {};
        accumulate(sum, a, lda, Rows<T>{b, stride}, 0, count, ahead);
        for (int m = 0; m < M; m++)
            for (int v = 0; v < N; v++) {
                float* out = y + m * ldy + v * LANES;
                simd::store(out, add ? simd::load(out) + sum[m][v] : sum[m][v]);
            }
    }
    if constexpr (N > 1)
        if (vectors) matmul_rows<T, M, N / 2>(y, ldy, a, lda, b, stride, vectors, count, add, ahead);
}

// Turns scores into weights, up to a factor that is returned; beyond the last position they become 0.
template <class T> float softmax_row(const HeadCache<T>& c, float* weights, int positions) {
    floats top = simd::broadcast(-INFINITY), total = {};
    for (int j = 0; j < positions; j += LANES) {
        floats score = simd::load(weights + j);
        if constexpr (HeadCache<T>::SCALED) score *= simd::load(c.key_scales(j / BLOCK) + j % BLOCK);
        score = simd::select(simd::lanes() < positions - j, score, simd::broadcast(-INFINITY));
        top = simd::max(top, score);
        simd::store(weights + j, score);
    }
    const float peak = simd::reduce_max(top);
    for (int j = 0; j < positions; j += LANES) {
        floats e = simd::exp(simd::load(weights + j) - peak);
        e = simd::select(simd::lanes() < positions - j, e, floats{});
        total += e;
        if constexpr (HeadCache<T>::SCALED) e *= simd::load(c.value_scales(j / BLOCK) + j % BLOCK);
        simd::store(weights + j, e);
    }
    return 1.0f / simd::reduce_add(total);
}

// Adds a block of positions to the weighted sums of values; M queries attend to `count` of them.
template <class T, int M> void add_values(const HeadCache<T>& c, const Queries& q, int first_query, int block, int count,
                                                PrefetchRows& ahead) {
    const int padded = padded_head_dim(c.D);
    matmul_rows<T, M>(q.sums + first_query * padded, padded, q.weights + first_query * q.capacity + block * BLOCK, q.capacity, c.values(block),
                  padded, padded / LANES, count, block > 0, ahead);
}

// `next`: what is attended to after this, `next_positions` of it; it is prefetched.
template <class T, int M> void attend(const HeadCache<T>& c, const Queries& q, const HeadCache<T>& next, int next_positions) {
    const int D = c.D, padded = padded_head_dim(D), most = q.positions[M - 1];
    for (int block = 0; block * BLOCK < most; block++) {
        const int count = std::min(BLOCK, most - block * BLOCK);
        PrefetchRows values(c.values(block), padded, padded, count, D);
        matmul_rows<T, M>(q.weights + block * BLOCK, q.capacity, q.vectors, D, c.keys(block), BLOCK, round_up(count, LANES) / LANES, D, false, values);
    }
    float factor[M];
    for (int i = 0; i < M; i++) factor[i] = softmax_row(c, q.weights + i * q.capacity, q.positions[i]);
    for (int block = 0; block * BLOCK < most; block++) {
        const int next_count = std::max(0, std::min(BLOCK, next_positions - block * BLOCK));
        int count[M];
        for (int i = 0; i < M; i++) count[i] = std::min(BLOCK, q.positions[i] - block * BLOCK);
        PrefetchRows keys(next.keys(next_count ? block : 0), BLOCK, next_count, D, std::max(1, count[M - 1]));
        if (count[0] == count[M - 1]) add_values<T, M>(c, q, 0, block, count[0], keys);
        else  // some queries do not attend to all of it
            for (int i = 0; i < M; i++)
                if (count[i] > 0) add_values<T, 1>(c, q, i, block, count[i], keys);
    }
    for (int i = 0; i < M; i++)
        for (int d = 0; d < D; d++) q.result[i][d] = q.sums[i * padded + d] * factor[i];
}

#endif
