// How keys and values lie in memory: floats, bfloat16, or integers of 8 bits with a scale for each vector.
#pragma once
#include "../simd.h"
#include "model.h"
#include <cmath>

// Those of one head of one sequence. Keys lie in blocks of 64 positions, (capacity / 64, D, 64), so that scores need no
// sum across lanes and a pass reads memory in order; values (capacity, padded D). Scales are of integers only.
template <class T> struct Cache {
    T *keys, *values;
    float *key_scales, *value_scales;  // (capacity)
};

inline int padded_head_dim(int D) { return round_up(D, 16); }

// Where the first number of a key lies; the others follow at a distance of BLOCK.
inline size_t key_at(int position, int D) { return (size_t)(position / BLOCK) * BLOCK * D + position % BLOCK; }

inline void store_vector(float* p, size_t step, float*, const float* x, int D) {
    for (int d = 0; d < D; d++) p[d * step] = x[d];
}

// Rounds to the nearest, ties to even; NaN stays NaN.
inline void store_vector(bf16* p, size_t step, float*, const float* x, int D) {
    for (int d = 0; d < D; d++) {
        uint32_t bits;
        memcpy(&bits, x + d, 4);
        p[d * step] = x[d] == x[d] ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : bits >> 16 | 0x40;
    }
}

// Symmetric, rounded to the nearest; where a number is not finite, the scale is not.
inline void store_vector(int8_t* p, size_t step, float* scale, const float* x, int D) {
    float largest = 0.0f, invalid = 0.0f;
    for (int d = 0; d < D; d++) {
        largest = std::fmax(largest, std::fabs(x[d]));
        invalid += x[d] * 0.0f;
    }
    *scale = largest / 127 + invalid;
    const float inverse = *scale > 0.0f ? 1.0f / *scale : 0.0f;
    for (int d = 0; d < D; d++) {
        const float r = std::nearbyint(x[d] * inverse);
        p[d * step] = (int8_t)(r < -127.0f ? -127.0f : r > 127.0f ? 127.0f : r == r ? r : 0.0f);
    }
}

template <class T> void store_key(const Cache<T>& c, int position, const float* x, int D) {
    store_vector(c.keys + key_at(position, D), BLOCK, c.key_scales + position, x, D);
}
template <class T> void store_value(const Cache<T>& c, int position, const float* x, int D) {
    store_vector(c.values + (size_t)position * padded_head_dim(D), 1, c.value_scales + position, x, D);
}
