// Matmuls of bfloat16 in the simplest way, on any processor: the reference for the two fast versions.
#pragma once
#include "packing.h"

static const int PAIR = 2;

inline int request_matmul() { return 0; }

struct MatmulScope {};

inline float widen(bf16 x) {
    const uint32_t bits = (uint32_t)x << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

// Element (k, j) of packed rows.
inline float packed_at(const bf16* b, int ldb, int k, int j) { return widen(b[(size_t)(k / 2) * ldb + 2 * j + k % 2]); }

inline void matmul(float* c, int ldc, const bf16* a, int lda, const bf16* b, int ldb, int k, int n) {
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16 * n; j++) {
            float sum = 0.0f;
            for (int s = 0; s < 32 * k; s++) sum += widen(a[(size_t)i * lda + s]) * packed_at(b, ldb, s, j);
            c[(size_t)i * ldc + j] = sum;
        }
}

// See matmul_amx.h.
template <int M, int N>
inline void matmul_tiles(float* c, int stride, const bf16* a, size_t next_a, const bf16* b, size_t next_b, int depth,
                         bool is_first) {
    for (int i = 0; i < 16 * M; i++)
        for (int j = 0; j < 16 * N; j++) {
            float sum = is_first ? 0.0f : c[(size_t)i * stride + j];
            for (int k = 0; k < 32 * depth; k++) {
                const bf16 left = a[i / 16 * next_a + (size_t)(k / 32) * TILE + i % 16 * 32 + k % 32];
                sum += widen(left) * packed_at(b + (size_t)(k / 32) * next_b + j / 16 * TILE, 32, k % 32, j % 16);
            }
            c[(size_t)i * stride + j] = sum;
        }
}
