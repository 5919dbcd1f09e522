// The inner loop of matmuls and of attention: a tile of sums that stays in registers.
#pragma once
#include "../simd.h"
#include "model.h"

using simd::floats;
using simd::LANES;

static const int VECTORS = BLOCK / LANES;

// Rows of elements in memory, `stride` apart, read as vectors of floats.
template <class T> struct Rows {
    const T* data;
    size_t stride;
    floats at(int k, int v) const { return simd::load(data + k * stride + v * LANES); }
    void prefetch(int k) const { simd::prefetch(data + k * stride, 0), simd::prefetch(data + k * stride, 64); }
};

// Integers of four bits: of two neighboring rows the first lies in the lower halves of the bytes.
struct Int4Rows {
    const int8_t* data;
    size_t stride;
    floats at(int k, int v) const { return simd::load_int4(data + k / 2 * stride + v * LANES, k % 2); }
    void prefetch(int k) const { simd::prefetch(data + k / 2 * stride, 0); }
};

// How many rows of b are prefetched where so much is computed with each that the hardware prefetcher falls behind: 64
// sequences of 10.65M float32 parameters go from 4,000 to 4,500 tokens a second.
static const int PREFETCH_ROWS = 16;

// sum[m][v] += a[m][k] b[k][v] for k from first to before end, one after the other: whatever M and N are, each sum
// takes the same steps.
template <int M, int N, class B>
inline void accumulate(floats (&sum)[M][N], const float* a, size_t lda, const B& b, int first, int end) {
    floats total[M][N];  // a copy, since compilers leave an array in memory that is handed on
    memcpy(total, sum, sizeof sum);
    for (int k = first; k < end; k++) {
        floats row[N];
        if (M > 4 && k + PREFETCH_ROWS < end) b.prefetch(k + PREFETCH_ROWS);
        for (int v = 0; v < N; v++) row[v] = b.at(k, v);
        for (int m = 0; m < M; m++)
            for (int v = 0; v < N; v++) total[m][v] = simd::multiply_add(a[m * lda + k], row[v], total[m][v]);
    }
    memcpy(sum, total, sizeof sum);
}

// Vectors whose sums for so many rows fit into the registers: a power of two.
constexpr int widest(int rows, int most = VECTORS) {
    int n = 1;
    while (2 * n <= most && 2 * n * rows <= simd::SUMS) n *= 2;
    return n;
}
