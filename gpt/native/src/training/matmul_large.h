// Matmuls of float over all positions of a batch, for processors on which torch's own are slower: c = a b. Blocks of b
// are packed once for all workers, so that every tile of c reads them, and those of a, in order from the nearest caches
// (Goto and van de Geijn 2008, 10.1145/1356052.1356053). Each number is summed in the same order for any number of
// threads.
#pragma once
#include "../memory.h"
#include "../parallel.h"
#include "matmul.h"
#include <algorithm>

// a: (rows, depth), b: (depth, columns), c: (rows, columns), columns a multiple of 16. Of a and of b, each row or each
// column is contiguous; *_row, *_column: elements from one row or column to the next.
struct MatmulArguments {
    const float *a, *b;
    float* c;
    int32_t rows, columns, depth, a_row, a_column, b_row, b_column, threads;
};

#ifndef GPT_BFLOAT16

// A block of a has up to 64 x 512 floats, 128 KB: it stays in the L2 cache while all of c's columns are computed from
// it.
static const int BLOCK_DEPTH = 512, BLOCK_ROWS = 8 * simd::TILE_ROWS;

// Copies rows of x into panels of W columns, each `depth` rows high.
template <int W> inline void pack_panels(float* out, const float* x, size_t stride, int depth, Range rows, int width) {
    for (int k = rows.first; k < rows.end; k++) {
        const float* row = x + k * stride;
        for (int j = 0; j < width; j += 16) simd::prefetch(row + 8 * stride + j, 0);
        int j = 0;
        for (; j + W <= width; j += W) memcpy(out + (size_t)j * depth + k * W, row + j, W * sizeof(float));
        if (j < width) memcpy(out + (size_t)j * depth + k * W, row + j, (width - j) * sizeof(float));
    }
}

// The same of the transpose of x.
template <int W> inline void pack_columns(float* out, const float* x, size_t stride, int depth, Range rows, int width) {
    for (int j = 0; j < width; j++)
        for (int k = rows.first; k < rows.end; k++) out[(size_t)(j / W * depth + k) * W + j % W] = x[j * stride + k];
}

// Adds a block of `depth` columns of a, from `first` on, times as many rows of b to up to BLOCK_ROWS rows of c.
inline void add_block(const MatmulArguments& x, int row, int rows, int first, int depth, float* packed,
                      const float* b) {
    static const int M = simd::TILE_ROWS;  // rows of a tile
    const float* data = x.a + (size_t)row * x.a_row + (size_t)first * x.a_column;
    const bool is_packed = x.a_column != 1;
    if (is_packed) pack_panels<M>(packed, data, x.a_column, depth, {0, depth}, rows);
    for (int j = 0; j < x.columns; j += TILE_COLUMNS)
        for (int i = 0; i < rows; i += M) {
            const Strided a = is_packed ? Strided{packed + (size_t)i * depth, 1, (size_t)M}
                                        : Strided{data + (size_t)i * x.a_row, (size_t)x.a_row, 1};
            const int high = std::min(M, rows - i), wide = std::min(TILE_COLUMNS, x.columns - j);
            float* c = x.c + (size_t)(row + i) * x.columns + j;
            for (int m = 0; m < high; m++) simd::prefetch(c + (size_t)m * x.columns, 0);
            matmul_rows(high, wide, c, x.columns, a, b + (size_t)j * depth, TILE_COLUMNS, depth, first == 0);
        }
}

inline void matmul(const MatmulArguments& x) {
    static const int M = simd::TILE_ROWS;  // rows of a tile
    const Memory<Buffer<float>> right(1, (size_t)round_up(x.columns, TILE_COLUMNS) * BLOCK_DEPTH);
    const Memory<Buffer<float>> left(x.threads, (size_t)BLOCK_ROWS * BLOCK_DEPTH);
    parallel(x.threads, [&](const Worker& w) {
        const int tiles = (x.rows + M - 1) / M, end = std::min(x.rows, M * w.end(tiles));
        for (int first = 0; first < x.depth; first += BLOCK_DEPTH) {
            const int depth = std::min(x.depth - first, BLOCK_DEPTH);
            const float* b = x.b + (size_t)first * x.b_row;
            if (x.b_column == 1) pack_panels<TILE_COLUMNS>(right[0].data, b, x.b_row, depth, w.share(depth), x.columns);
            else pack_columns<TILE_COLUMNS>(right[0].data, b, x.b_column, depth, w.share(depth), x.columns);
            w.wait();  // until all of b's block is packed
            for (int row = M * w.first(tiles); row < end; row += BLOCK_ROWS)
                add_block(x, row, std::min(BLOCK_ROWS, end - row), first, depth, left[w.index].data, right[0].data);
            w.wait();  // until nobody reads it any more
        }
    });
}

#endif
