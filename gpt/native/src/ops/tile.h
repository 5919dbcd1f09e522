// The inner loop of matmuls and of attention: it adds products to a tile of sums, which stay in registers.
#pragma once
#include "../simd.h"

using simd::floats;
using simd::LANES;

// The right factor b: rows of elements in memory, `stride` apart, read as vectors of floats. at(k, v) is vector v of
// row k.
template <class T> struct Rows {
    typedef T Element;
    static const int IN_ROW = 1;  // rows of b in a row of memory
    const T* data;
    size_t stride;
    floats at(int k, int v) const { return simd::load(data + k * stride + v * LANES); }
};

// A right factor of 4-bit integers: each byte has an element of row k in its lower half and one of row k + 1 in its
// upper half, for even k.
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

// Memory that a loop prefetches for a later one. Each iteration calls some(), which goes `step` bytes further.
struct Prefetch {
    const char* next;
    size_t step;
    void some() { simd::prefetch_outer(next), next += step; }
};
struct NoPrefetch {
    void some() {}
};

// sum[m][v] += a[m][k] b[k][v] for each k in [first, end), in this order. Each sum is therefore computed in the same
// steps for any M and N.
template <int M, int N, class A, class B, class Ahead>
inline void accumulate(floats (&sum)[M][N], const A& a, const B& b, int first, int end, Ahead& prefetch) {
    floats total[M][N];  // compilers keep this copy in registers, but an array that the caller passes in memory
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

// How many vectors wide a tile with that many rows can be, so that its sums fit into registers: a power of two, and at
// most 64 floats, which are a block of outputs.
constexpr int widest(int rows) {
    int n = 1;
    while (2 * n * LANES <= 64 && 2 * n * rows <= simd::SUMS) n *= 2;
    return n;
}
