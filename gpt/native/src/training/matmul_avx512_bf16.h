// Matmuls by AVX-512's dot products of bfloat16 pairs (VDPBF16PS), sixteen columns at a time.
#pragma once
#include "../ops/tile.h"
#include "packing.h"

static const int PAIR = 2;

inline int request_matmul() { return 0; }

struct MatmulScope {};

static const int DOT_ROWS = 8;  // rows of sums, two vectors wide, that fit into registers

// (DOT_ROWS, 16 N) sums.
template <int N> struct Sums {
    floats at[DOT_ROWS][N] = {};

    // Adds 32 columns of a times 32 rows of b, which are 16 rows of pairs. lda, ldb: elements from one row to the next;
    // next: elements from 16 columns of b, which are a vector of pairs, to the next 16.
    void add(const bf16* a, size_t lda, const bf16* b, size_t ldb, size_t next) {
#pragma GCC unroll 4
        for (int pair = 0; pair < 16; pair++) {
            __m512bh right[N];
            for (int j = 0; j < N; j++) right[j] = (__m512bh)_mm512_loadu_si512(b + pair * ldb + j * next);
            for (int r = 0; r < DOT_ROWS; r++) {
                int both;  // the pair of a that multiplies every pair of b
                memcpy(&both, a + r * lda + 2 * pair, sizeof both);
                for (int j = 0; j < N; j++)
                    at[r][j] = _mm512_dpbf16_ps(at[r][j], (__m512bh)_mm512_set1_epi32(both), right[j]);
            }
        }
    }
};

// 16 N columns of c, of a matmul.
template <int N>
inline void matmul_columns(float* c, int ldc, const bf16* a, int lda, const bf16* b, int ldb, int k, bool is_first) {
    for (int row = 0; row < 16; row += DOT_ROWS) {
        Sums<N> sums;
        if (!is_first) load_tile(sums.at, c + (size_t)row * ldc, ldc);
        for (int s = 0; s < k; s++) sums.add(a + (size_t)row * lda + 32 * s, lda, b + (size_t)16 * s * ldb, ldb, 32);
        store_tile(c + (size_t)row * ldc, ldc, sums.at);
    }
}

// See matmul.h. Two vectors of columns at a time, and then the last one where their number is odd.
[[gnu::noinline]] inline void matmul(float* c, int ldc, const bf16* a, int lda, const bf16* b, int ldb, int k, int n,
                                     bool is_first = true) {
    int j = 0;
    for (; j + 2 <= n; j += 2) matmul_columns<2>(c + 16 * j, ldc, a, lda, b + 32 * j, ldb, k, is_first);
    if (j < n) matmul_columns<1>(c + 16 * j, ldc, a, lda, b + 32 * j, ldb, k, is_first);
}

// See matmul.h. Sums have DOT_ROWS rows, of the 16 in a row of a's tiles.
inline void matmul_tiles(float* c, int stride, const bf16* a, size_t next_a, const bf16* b, size_t next_b, int depth,
                         bool is_first) {
    for (int row = 0; row < 32; row += DOT_ROWS) {
        float* out = c + (size_t)row * stride;
        const bf16* left = a + row / 16 * next_a + row % 16 * 32;
        Sums<2> sums;
        if (!is_first) load_tile(sums.at, out, stride);
        for (int k = 0; k < depth; k++) sums.add(left + (size_t)k * TILE, 32, b + (size_t)k * next_b, 32, TILE);
        store_tile(out, stride, sums.at);
    }
}
