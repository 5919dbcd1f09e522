// The gradient of a linear layer's weights in bfloat16, dw = dy^T x: a matmul over all positions, with both factors
// transposed in memory. They are packed block by block, while they are in the cache.
#pragma once
#include "../arena.h"
#include "../parallel.h"
#include "matmul.h"
#include <algorithm>

static const int DEPTH = 512, STEPS = DEPTH / 32;  // positions of a block; steps of a tile matmul over them

struct LinearShape {
    int rows, outputs, inputs;  // outputs and inputs are multiples of 16
};

// Rows first to first + 31 of 16 columns, interleaved in pairs: a tile of the factor on the right. Zeros past the last.
inline void pack_tile(uint32_t* tile, const bf16* x, int stride, int first, int rows) {
    static const bf16 zeros[16] = {};
    for (int i = 0; i < 16; i++) {
        const int row = first + 2 * i;
        const bf16* even = x + (size_t)row * stride;
        if (row + 33 < rows) simd::prefetch(even + 32 * (size_t)stride, 0), simd::prefetch(even + 33 * (size_t)stride, 0);
        interleave(tile + 16 * i, row < rows ? even : zeros, row + 1 < rows ? even + stride : zeros);
    }
}

struct PackedLeft {
    bf16* tiles;  // (2, STEPS) tiles
    explicit PackedLeft(Arena& arena) : tiles(arena.alloc<bf16>((size_t)2 * STEPS * TILE)) {}
};
struct PackedRight {
    bf16* tiles;  // (STEPS, columns / 16) tiles
    PackedRight(Arena& arena, int columns) : tiles(arena.alloc<bf16>((size_t)STEPS * columns / 16 * TILE)) {}
};

// Up to two tiles of rows of c, from all columns of b.
inline void matmul_rows(float* c, int wide, const bf16* left, const bf16* right, int columns, int depth, bool is_first) {
    for (int n = 0; n < columns; n += 32) {
        const bool is_wide = n + 16 < columns;
        auto add = wide == 2 ? (is_wide ? matmul_tiles<2, 2> : matmul_tiles<2, 1>) : (is_wide ? matmul_tiles<1, 2> : matmul_tiles<1, 1>);
        add(c + n, columns, left, (size_t)STEPS * TILE, right + (size_t)n / 16 * TILE, (size_t)columns / 16 * TILE, depth, is_first);
    }
}

// c = a^T b: a (rows, A), b (rows, B), c (A, B) float. Workers share the columns of a; b is packed once for all.
inline void matmul_transposed(float* c, const bf16* a, const bf16* b, int rows, int A, int B, int threads) {
    const Scratch<PackedRight> shared(1, B);
    const Scratch<PackedLeft> scratch(threads);
    const PackedRight right = shared.of(0, B);
    const int columns = B / 16, pairs = (A / 16 + 1) / 2;
    parallel(threads, [&](const Worker& w) {
        [[maybe_unused]] const MatmulScope scope;
        const PackedLeft left = scratch.of(w.index);
        alignas(64) uint32_t tile[16 * 16];
        for (int first = 0; first < rows; first += DEPTH) {
            const int depth = (std::min(rows - first, DEPTH) + 31) / 32;
            for (int i = w.first(depth * columns); i < w.end(depth * columns); i++)
                pack_tile((uint32_t*)(right.tiles + (size_t)i * TILE), b + i % columns * 16, B, first + i / columns * 32, rows);
            w.wait();
            for (int pair = w.first(pairs); pair < w.end(pairs); pair++) {
                const int wide = std::min(2, A / 16 - 2 * pair);
                for (int m = 0; m < wide; m++)
                    for (int k = 0; k < depth; k++) {
                        pack_tile(tile, a + 16 * (2 * pair + m), A, first + 32 * k, rows);
                        transpose((uint32_t*)(left.tiles + (size_t)(m * STEPS + k) * TILE), 16, tile, 16);
                    }
                matmul_rows(c + (size_t)32 * pair * B, wide, left.tiles, right.tiles, B, depth, first == 0);
            }
            w.wait();
        }
    });
}

struct Transposed {
    float* matrix;
    Transposed(Arena& arena, const LinearShape& s) : matrix(arena.alloc<float>((size_t)s.inputs * s.outputs)) {}
};

// dw: (outputs, inputs) float, dy: (rows, outputs), x: (rows, inputs). Workers share the columns of the wider factor, so
// that the one packed for all is small.
inline void weight_gradient(float* dw, const bf16* dy, const bf16* x, const LinearShape& s, int threads) {
    if (s.outputs >= s.inputs) return matmul_transposed(dw, dy, x, s.rows, s.outputs, s.inputs, threads);
    const Scratch<Transposed> scratch(1, s);
    float* other = scratch.of(0, s).matrix;
    matmul_transposed(other, x, dy, s.rows, s.inputs, s.outputs, threads);
    parallel(threads, [&](const Worker& w) {
        for (int i = w.first(s.outputs / 16) * 16; i < w.end(s.outputs / 16) * 16; i += 16)
            for (int j = 0; j < s.inputs; j += 16)
                transpose((uint32_t*)(dw + (size_t)i * s.inputs + j), s.inputs, (const uint32_t*)(other + (size_t)j * s.outputs + i), s.outputs);
    });
}
