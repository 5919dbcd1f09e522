// The gradient of a linear layer's weights in bfloat16, dw = dy^T x: a matmul over all positions, with both factors
// transposed in memory. They are packed block by block, while they are in the cache.
#pragma once
#include "../memory.h"
#include "../parallel.h"
#include "matmul.h"
#include <algorithm>

// dw: (outputs, inputs) float, dy: (rows, outputs), x: (rows, inputs); outputs and inputs are multiples of 16.
struct WeightGradientArguments {
    const element *x, *dy;
    float* dw;
    int32_t rows, outputs, inputs, threads;
};

#ifdef GPT_BFLOAT16

static const int DEPTH = 512, STEPS = DEPTH / 32;  // positions of a block; steps of a tile matmul over them

// Rows first to first + 31 of 16 columns, interleaved in pairs: a tile of the factor on the right. Zeros past the last.
inline void pack_tile(word* tile, const bf16* x, int stride, int first, int rows) {
    static const bf16 zeros[16] = {};
    for (int i = 0; i < 16; i++) {
        const int row = first + 2 * i;
        const bf16* even = x + (size_t)row * stride;
        // The next tile of these columns is 32 rows below.
        if (row + 33 < rows)
            simd::prefetch(even + 32 * (size_t)stride, 0), simd::prefetch(even + 33 * (size_t)stride, 0);
        interleave(tile + 16 * i, row < rows ? even : zeros, row + 1 < rows ? even + stride : zeros);
    }
}

// Up to two tiles of rows of c (`wide` of them), from all columns of b.
inline void matmul_rows(float* c, int wide, const bf16* left, const bf16* right, int columns, int depth,
                        bool is_first) {
    const size_t next_left = (size_t)STEPS * TILE, next_right = (size_t)columns / 16 * TILE;
    for (int n = 0; n < columns; n += 32) {
        const bool is_wide = n + 16 < columns;
        auto add = wide == 2 ? (is_wide ? matmul_tiles<2, 2> : matmul_tiles<2, 1>)
                             : (is_wide ? matmul_tiles<1, 2> : matmul_tiles<1, 1>);
        add(c + n, columns, left, next_left, right + (size_t)n / 16 * TILE, next_right, depth, is_first);
    }
}

// c = a^T b: a (rows, A), b (rows, B), c (A, B) float. Workers share the columns of a; b is packed once for all.
inline void matmul_transposed(float* c, const bf16* a, const bf16* b, int rows, int A, int B, int threads) {
    const int columns = B / 16, pairs = (A / 16 + 1) / 2;
    const Memory<Buffer<bf16>> shared(1, (size_t)STEPS * columns * TILE);  // (STEPS, columns) tiles
    const Memory<Buffer<bf16>> own(threads, (size_t)2 * STEPS * TILE);     // (2, STEPS) tiles
    parallel(threads, [&](const Worker& w) {
        [[maybe_unused]] const MatmulScope scope;
        bf16 *right = shared[0].data, *left = own[w.index].data;
        alignas(64) word tile[16 * 16];
        for (int first = 0; first < rows; first += DEPTH) {
            const int depth = (std::min(rows - first, DEPTH) + 31) / 32;
            for (int i = w.first(depth * columns); i < w.end(depth * columns); i++) {
                word* packed = (word*)(right + (size_t)i * TILE);
                pack_tile(packed, b + i % columns * 16, B, first + i / columns * 32, rows);
            }
            w.wait();  // until all of b's block is packed
            for (int pair = w.first(pairs); pair < w.end(pairs); pair++) {
                const int wide = std::min(2, A / 16 - 2 * pair);
                for (int m = 0; m < wide; m++)
                    for (int k = 0; k < depth; k++) {
                        pack_tile(tile, a + 16 * (2 * pair + m), A, first + 32 * k, rows);
                        transpose((word*)(left + (size_t)(m * STEPS + k) * TILE), 16, tile, 16);
                    }
                matmul_rows(c + (size_t)32 * pair * B, wide, left, right, B, depth, first == 0);
            }
            w.wait();  // until nobody reads it any more
        }
    });
}

// Workers share the columns of the wider factor, so that the one packed for all is small.
inline void weight_gradient(const WeightGradientArguments& a) {
    const size_t outputs = a.outputs, inputs = a.inputs;
    if (outputs >= inputs) return matmul_transposed(a.dw, a.dy, a.x, a.rows, a.outputs, a.inputs, a.threads);
    // The transpose is computed, x^T dy, and then turned.
    const Memory<Buffer<float>> scratch(1, inputs * outputs);
    const float* other = scratch[0].data;
    matmul_transposed(scratch[0].data, a.x, a.dy, a.rows, a.inputs, a.outputs, a.threads);
    parallel(a.threads, [&](const Worker& w) {
        for (size_t i = w.first(a.outputs / 16) * 16; i < (size_t)w.end(a.outputs / 16) * 16; i += 16)
            for (size_t j = 0; j < inputs; j += 16)
                transpose((word*)(a.dw + i * inputs + j), inputs, (const word*)(other + j * outputs + i), outputs);
    });
}

#endif
