// Matmuls of float: tiles of sums that stay in registers.
#pragma once
#include "element.h"

static const int PAIR = 1;

inline int request_matmul() { return 0; }

struct MatmulScope {};

inline const float* pack(float*, const float* x, int, int) { return x; }

// x: (rows, cols) -> (cols, rows), in blocks that fit into a few lines of the cache.
inline const float* pack_transposed(float* out, const float* x, int rows, int cols) {
    for (int r = 0; r < rows; r += 16)
        for (int c = 0; c < cols; c++)
            for (int i = 0; i < 16; i++) out[(size_t)c * rows + r + i] = x[(size_t)(r + i) * cols + c];
    return out;
}

static const int TILE_COLUMNS = simd::TILE_VECTORS * simd::LANES;

// R rows and N vectors of columns.
template <int R, int N>
inline void multiply_tile(float* c, int ldc, const float* a, int lda, const float* b, int ldb, int depth) {
    using namespace simd;
    floats sums[R][N] = {};
    for (int k = 0; k < depth; k++) {
        floats right[N];
        for (int j = 0; j < N; j++) right[j] = load(b + (size_t)k * ldb + j * LANES);
        for (int r = 0; r < R; r++)
            for (int j = 0; j < N; j++) sums[r][j] = multiply_add(a[(size_t)r * lda + k], right[j], sums[r][j]);
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < N; j++) store(c + (size_t)r * ldc + j * LANES, sums[r][j]);
}

// R rows and all columns.
template <int R> inline void multiply_rows(float* c, int ldc, const float* a, int lda, const float* b, int ldb, int depth, int columns) {
    int j = 0;
    for (; j + TILE_COLUMNS <= columns; j += TILE_COLUMNS) multiply_tile<R, simd::TILE_VECTORS>(c + j, ldc, a, lda, b + j, ldb, depth);
    for (; j < columns; j += simd::LANES) multiply_tile<R, 1>(c + j, ldc, a, lda, b + j, ldb, depth);
}

inline void multiply(float* c, int ldc, const float* a, int lda, const float* b, int ldb, int k, int n) {
    static const int R = simd::TILE_ROWS;
    int row = 0;
    for (; row + R <= 16; row += R) multiply_rows<R>(c + (size_t)row * ldc, ldc, a + (size_t)row * lda, lda, b, ldb, 32 * k, 16 * n);
    if (16 % R) multiply_rows<16 % R ? 16 % R : 1>(c + (size_t)row * ldc, ldc, a + (size_t)row * lda, lda, b, ldb, 32 * k, 16 * n);
}
