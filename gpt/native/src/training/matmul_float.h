// Matmuls of float: tiles of sums that stay in registers.
#pragma once
#include "../ops/tile.h"
#include "matmul_element.h"
#include "packing.h"

static const int PAIR = 1;

inline int request_matmul() { return 0; }

struct MatmulScope {};

// See packing.h: without pairs, packing copies or transposes.
inline const float* pack(float* out, int stride, const float* x, int rows, int cols) {
    for (int r = 0; r < rows; r++) memcpy(out + (size_t)r * stride, x + (size_t)r * cols, cols * sizeof(float));
    return out;
}

inline const float* pack_transposed(float* out, int stride, const float* x, int rows, int cols) {
    transpose_matrix(out, stride, x, cols, rows, cols);
    return out;
}

static const int TILE_COLUMNS = simd::TILE_VECTORS * simd::LANES;

// The elements of a left factor, in place or in a tile, where columns take the place of rows.
struct Strided {
    const float* data;
    size_t row, column;  // elements from one row to the next, and from one column to the next
    float at(int m, int k) const { return data[m * row + k * column]; }
};

// M rows and N vectors of c = a b, or of c += a b unless `is_first`.
template <int M, int N>
inline void matmul_tile(float* c, size_t ldc, const Strided& a, const float* b, size_t ldb, int depth, bool is_first) {
    floats sums[M][N] = {};
    if (!is_first) load_tile(sums, c, ldc);
    NoPrefetch none;
    accumulate(sums, a, Rows<float>{b, ldb}, 0, depth, none);
    store_tile(c, ldc, sums);
}

// Computes as many of `rows` rows and `columns` columns as a tile has: at most TILE_ROWS rows, and TILE_COLUMNS
// columns, or 16 where fewer are left.
inline void matmul_rows(int rows, int columns, float* c, size_t ldc, const Strided& a, const float* b, size_t ldb,
                        int depth, bool is_first) {
    with_constant<1, simd::TILE_ROWS>(rows, [&](auto M) {
        if (columns >= TILE_COLUMNS) matmul_tile<M, simd::TILE_VECTORS>(c, ldc, a, b, ldb, depth, is_first);
        else matmul_tile<M, 16 / LANES>(c, ldc, a, b, ldb, depth, is_first);
    });
}

// See matmul.h.
[[gnu::noinline]] inline void matmul(float* c, int ldc, const float* a, int lda, const float* b, int ldb, int k, int n,
                                     bool is_first = true) {
    static const int M = simd::TILE_ROWS;
    // Columns are the outer loop, so that those of b stay in the nearest cache for all rows of a.
    for (int j = 0; j < 16 * n; j += TILE_COLUMNS)
        for (int i = 0; i < 16; i += M)
            matmul_rows(16 - i, 16 * n - j, c + (size_t)i * ldc + j, ldc, {a + (size_t)i * lda, (size_t)lda, 1}, b + j,
                        ldb, 32 * k, is_first);
}

// See packing.h: here both kinds of tiles are copies, of 32 rows of 16 columns.
inline void store_right_tile(float* tile, const float* x, int stride) {
    for (int i = 0; i < 32; i++) memcpy(tile + 16 * i, x + (size_t)i * stride, 16 * sizeof(float));
}
inline void store_left_tile(float* tile, const float* dy, int stride) { store_right_tile(tile, dy, stride); }

// The rows of tiles of 16 columns that follow each other, as one right factor: vector v of row k.
struct TileRows {
    const float* data;
    floats at(int k, int v) const {
        const int column = v * LANES;
        return simd::load(data + column / 16 * TILE + k * 16 + column % 16);
    }
};

// See matmul.h.
inline void matmul_tiles(float* c, int stride, const float* a, size_t next_a, const float* b, size_t next_b, int depth,
                         bool is_first) {
    // As many sums as fit into the registers, in numbers of rows that divide the 16 of a's tiles: 8 where it can be.
    static const int COLUMNS = LANES == 16 ? 32 : 16;
    static const int VECTORS = COLUMNS / LANES;
    static const int ROWS = 8 * VECTORS <= simd::SUMS ? 8 : 4;
    for (int m = 0; m < 32; m += ROWS)
        for (int n = 0; n < 32; n += COLUMNS) {
            float* out = c + (size_t)m * stride + n;
            floats sums[ROWS][VECTORS] = {};
            if (!is_first) load_tile(sums, out, stride);
            NoPrefetch none;
            for (int k = 0; k < depth; k++) {
                const Strided left = {a + m / 16 * next_a + (size_t)k * TILE + m % 16, 1, 16};
                accumulate(sums, left, TileRows{b + (size_t)k * next_b + n / 16 * TILE}, 0, 32, none);
            }
            store_tile(out, stride, sums);
        }
}
