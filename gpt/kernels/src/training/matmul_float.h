// Matmuls of float: tiles of sums that stay in registers.
#pragma once
#include "../ops/tile.h"
#include "matmul_element.h"

static const int PAIR = 1;

inline int request_matmul() { return 0; }

struct MatmulScope {};

inline const float* pack(float*, const float* x, int, int) { return x; }

// x: (rows, cols) -> (cols, rows), in blocks of a few cache lines.
inline const float* pack_transposed(float* out, const float* x, int rows, int cols) {
    for (int r = 0; r < rows; r += 16)
        for (int c = 0; c < cols; c++)
            for (int i = 0; i < 16; i++) out[(size_t)c * rows + r + i] = x[(size_t)(r + i) * cols + c];
    return out;
}

static const int TILE_COLUMNS = simd::TILE_VECTORS * simd::LANES;

// R rows and N vectors of columns.
template <int R, int N>
inline void matmul_tile(float* c, int ldc, const float* a, int lda, const float* b, int ldb, int depth) {
    floats sums[R][N] = {};
    NoPrefetch none;
    accumulate(sums, ByRows{a, (size_t)lda}, Rows<float>{b, (size_t)ldb}, 0, depth, none);
    store_tile(c, ldc, sums);
}

// 16 rows and N vectors of columns, so that these columns of b stay in the nearest cache.
template <int N>
inline void matmul_strip(float* c, int ldc, const float* a, int lda, const float* b, int ldb, int depth) {
    static const int R = simd::TILE_ROWS, REST = 16 % R;
    for (int row = 0; row + R <= 16; row += R)
        matmul_tile<R, N>(c + (size_t)row * ldc, ldc, a + (size_t)row * lda, lda, b, ldb, depth);
    if constexpr (REST > 0)
        matmul_tile<REST, N>(c + (size_t)(16 - REST) * ldc, ldc, a + (size_t)(16 - REST) * lda, lda, b, ldb, depth);
}

inline void matmul(float* c, int ldc, const float* a, int lda, const float* b, int ldb, int k, int n) {
    int j = 0;
    for (; j + TILE_COLUMNS <= 16 * n; j += TILE_COLUMNS)
        matmul_strip<simd::TILE_VECTORS>(c + j, ldc, a, lda, b + j, ldb, 32 * k);
    for (; j < 16 * n; j += simd::LANES) matmul_strip<1>(c + j, ldc, a, lda, b + j, ldb, 32 * k);
}

// c += a^T b: a is 16 x rows, b 16 x columns, c rows x columns; rows and columns are multiples of 32. b and c are
// contiguous.
inline void add_transposed(float* c, const float* a, int lda, const float* b, int rows, int columns) {
    using namespace simd;
    static const int ROWS = 4;
    for (int i = 0; i < rows; i += ROWS)
        for (int j = 0; j < columns; j += TILE_COLUMNS) {
            float* out = c + (size_t)i * columns + j;
            floats sums[ROWS][TILE_VECTORS];
            load_tile(sums, out, columns);
            for (int k = 0; k < 16; k++)
                for (int r = 0; r < ROWS; r++)
                    for (int n = 0; n < TILE_VECTORS; n++) {
                        const floats right = load(b + (size_t)k * columns + j + n * LANES);
                        sums[r][n] = multiply_add(a[(size_t)k * lda + i + r], right, sums[r][n]);
                    }
            store_tile(out, columns, sums);
        }
}
