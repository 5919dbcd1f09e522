// The gradient of a linear layer's weights, dw = dy^T x: a product over all positions, of which both factors lie
// the wrong way round. They are turned block by block, while they are in the cache.
#pragma once
#include "packing.h"
#include "products.h"
#include "scratch.h"
#include <omp.h>

static const int DEPTH = 512;  // positions of a block

struct GradientShape {
    int rows, outputs, inputs, threads;  // outputs and inputs are multiples of 16
};

// Rows first to first + 31 of 16 columns, interleaved in pairs: how the second factor of a product lies. What is past
// the last row is 0.
static inline void pack_rows(__m512i pairs[16], const bf16* x, int stride, int first, int rows) {
    static const bf16 zeros[16] = {};
    for (int i = 0; i < 16; i++) {
        const int row = first + 2 * i;
        const bf16* even = x + (size_t)row * stride;
        _mm_prefetch((const char*)(even + 32 * stride), _MM_HINT_T0);  // what comes next
        _mm_prefetch((const char*)(even + 33 * stride), _MM_HINT_T0);
        pairs[i] = interleave(row < rows ? even : zeros, row + 1 < rows ? even + stride : zeros);
    }
}

// c = a^T b: a (rows, A), b (rows, B), c (A, B) float. Workers share the columns of a; b is packed once for all.
static void multiply_turned(float* c, const bf16* a, const bf16* b, int rows, int A, int B, int threads) {
    const int b_stride = B / 16 * TILE, tiles = A / 16;
    Scratch shared((size_t)DEPTH / 32 * b_stride * sizeof(bf16) + 4096);
    bf16* packed_b = shared.take<bf16>((size_t)DEPTH / 32 * b_stride);
#pragma omp parallel num_threads(threads)
    {
        ProductScope scope;
        Scratch own((size_t)2 * DEPTH / 32 * TILE * sizeof(bf16) + 4096);
        bf16* packed_a = own.take<bf16>((size_t)2 * DEPTH / 32 * TILE);
        __m512i words[16];
        for (int first = 0; first < rows; first += DEPTH) {
            const int depth = ((rows - first < DEPTH ? rows - first : DEPTH) + 31) / 32;
#pragma omp for schedule(static)
            for (int k = 0; k < depth; k++)
                for (int n = 0; n < B; n += 16) {
                    pack_rows(words, b + n, B, first + 32 * k, rows);
                    memcpy(packed_b + (size_t)k * b_stride + n / 16 * TILE, words, sizeof words);
                }
#pragma omp for schedule(static)
            for (int tile = 0; tile < tiles; tile += 2) {
                const int wide = tile + 1 < tiles ? 2 : 1;
                for (int m = 0; m < wide; m++)
                    for (int k = 0; k < depth; k++) {
                        pack_rows(words, a + 16 * (tile + m), A, first + 32 * k, rows);
                        transpose(words);
                        memcpy(packed_a + (size_t)(m * DEPTH / 32 + k) * TILE, words, sizeof words);
                    }
                for (int n = 0; n < B; n += 32) {
                    const bool is_wide = n + 16 < B;
                    auto add = wide == 2 ? (is_wide ? add_tiles<2, 2> : add_tiles<2, 1>) : (is_wide ? add_tiles<1, 2> : add_tiles<1, 1>);
                    add(c + (size_t)16 * tile * B + n, B, packed_a, (size_t)DEPTH / 32 * TILE, packed_b + (size_t)n / 16 * TILE, b_stride, depth,
                        first == 0);
                }
            }
        }
    }
}

// dw: (outputs, inputs) float, dy: (rows, outputs), x: (rows, inputs). The wider factor is the one whose columns are
// shared out, so that what is packed for all is small.
static void weight_gradient(float* dw, const bf16* dy, const bf16* x, const GradientShape& s) {
    if (s.outputs >= s.inputs) return multiply_turned(dw, dy, x, s.rows, s.outputs, s.inputs, s.threads);
    Scratch scratch((size_t)s.inputs * s.outputs * sizeof(float) + 4096);
    float* turned = scratch.take<float>((size_t)s.inputs * s.outputs);
    multiply_turned(turned, x, dy, s.rows, s.inputs, s.outputs, s.threads);
#pragma omp parallel for num_threads(s.threads) schedule(static)
    for (int i = 0; i < s.outputs; i += 16)
        for (int j = 0; j < s.inputs; j += 16) {
            __m512i words[16];
            for (int r = 0; r < 16; r++) words[r] = _mm512_loadu_si512(turned + (size_t)(j + r) * s.outputs + i);
            transpose(words);
            for (int r = 0; r < 16; r++) _mm512_storeu_si512(dw + (size_t)(i + r) * s.inputs + j, words[r]);
        }
}
