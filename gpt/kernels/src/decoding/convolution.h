// The causal convolution before a feed-forward network, whose earlier inputs are in the cache.
#pragma once
#include "cache.h"
#include <algorithm>

static const int MAX_TAPS = 8;  // as gpt/config/sections.py allows

// What the convolution of one layer has read of one sequence, whose block table lists its physical blocks. Each block
// has rows (64, padded dim) and, for integers only, their scales (64).
template <class T> struct InputCache {
    static constexpr bool SCALED = HeadCache<T>::SCALED;
    char* start;  // of this layer in physical block 0
    size_t block_bytes;
    const int32_t* table;
    int dim;

    T* rows(int block) const { return (T*)(start + table[block] * block_bytes); }
    T* row(int position) const { return rows(position / BLOCK) + (size_t)(position % BLOCK) * dim; }
    float* scale(int position) const {
        return (float*)(rows(position / BLOCK) + (size_t)BLOCK * dim) + position % BLOCK;
    }

    static size_t bytes(int dim) { return BLOCK * (dim * sizeof(T) + (SCALED ? sizeof(float) : 0)); }
};

template <class T> void store(const InputCache<T>& c, int position, const float* x) {
    const float scale = store_vector(c.row(position), 1, x, c.dim);
    if constexpr (InputCache<T>::SCALED) *c.scale(position) = scale;
}

// x += sum_j weight[j] x[t - j], for x at position t; weight: (taps, padded dim).
template <class T> void convolve(float* x, const InputCache<T>& c, const float* weight, int taps, int position) {
    using namespace simd;
    const T* row[MAX_TAPS];
    float scale[MAX_TAPS];
    const int count = std::min(taps, position + 1);
    for (int j = 1; j < count; j++) {
        row[j] = c.row(position - j);
        scale[j] = 1.0f;
        if constexpr (InputCache<T>::SCALED) scale[j] = *c.scale(position - j);
    }
    for (int i = 0; i < c.dim; i += LANES) {
        const floats own = load(x + i);
        floats sum = fma(own, load(weight + i), own);
        for (int j = 1; j < count; j++) sum = fma(load(row[j] + i) * scale[j], load(weight + j * c.dim + i), sum);
        simd::store(x + i, sum);
    }
}
