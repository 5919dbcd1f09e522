// The inner loop of matmuls and of attention: a tile of sums that stays in registers.
#pragma once
#include "../simd.h"

using simd::floats;
using simd::LANES;

// The right factor b: rows of elements in memory, `stride` apart, read as vectors of floats. at(k, v) is vector v of
// row k.
template <class T> struct Rows {
    typedef T Element;
    static const int IN_ROW = 1;  // rows of b stored in one
    const T* data;
    size_t stride;
    floats at(int k, int v) const { return simd::load(data + k * stride + v * LANES); }
};

// 4-bit integers: of two adjacent rows, the first is in the lower halves of the bytes.
struct Int4Rows {
    typedef int8_t Element;
    static const int IN_ROW = 2;
    const int8_t* data;
    size_t stride;
    floats at(int k, int v) const { return simd::load_int4(data + k / 2 * stride + v * LANES, k % 2); }
};

// The left factor a, read by elements: at(m, k) is element k of row m.
struct ByRows {
    const float* data;
    size_t stride;
    float at(int m, int k) const { return data[m * stride + k]; }
};

// Memory that a loop prefetches while it works, `step` bytes further in each iteration, which calls some().
struct Prefetch {
    const char* next;
    size_t step;
    void some() { simd::prefetch_outer(next), next += step; }
};
struct NoPrefetch {
    void some() {}
};

// sum[m][v] += a[m][k] b[k][v] for k in [first, end), in order, so that every sum is computed in the same steps for any
// M and N.
template <int M, int N, class A, class B, class Ahead>
inline void accumulate(floats (&sum)[M][N], const A& a, const B& b, int first, int end, Ahead& prefetch) {
    floats total[M][N];  // a copy, since compilers keep an array in memory if it is passed on
    memcpy(total, sum, sizeof sum);
    Ahead ahead = prefetch;
    for (int k = first; k < end; k++) {
        floats row[N];
        ahead.some();
        for (int v = 0; v < N; v++) row[v] = b.at(k, v);
        for (int m = 0; m < M; m++)
            for (int v = 0; v < N; v++) total[m][v] = simd::multiply_add(a.at(m, k), row[v], total[m][v]);
    }
    prefetch = ahead;
    memcpy(sum, total, sizeof sum);
}

template <int M, int N> inline void load_tile(floats (&tile)[M][N], const float* x, size_t stride) {
    for (int m = 0; m < M; m++)
        for (int v = 0; v < N; v++) tile[m][v] = simd::load(x + m * stride + v * LANES);
}
template <int M, int N> inline void store_tile(float* y, size_t stride, const floats (&tile)[M][N]) {
    for (int m = 0; m < M; m++)
        for (int v = 0; v < N; v++) simd::store(y + m * stride + v * LANES, tile[m][v]);
}

// Number of vectors whose sums for that many rows fit into the registers: a power of two, and at most 64 floats, a
// block of outputs.
constexpr int widest(int rows) {
    int n = 1;
    while (2 * n * LANES <= 64 && 2 * n * rows <= simd::SUMS) n *= 2;
    return n;
}
