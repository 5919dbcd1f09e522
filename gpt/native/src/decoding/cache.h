// How keys and values lie in memory: in blocks of 64 positions, as floats, bfloat16, or 8-bit integers with a scale for
// each vector.
#pragma once
#include "../simd.h"
#include "model.h"
#include <cmath>
#include <type_traits>

// The size of a head, rounded up to a whole vector of the widest processors.
inline int padded_head_dim(int D) { return round_up(D, 16); }

// The keys and values of one head of one sequence. The block table of the sequence lists its physical blocks. A block
// has keys (D, 64), so that attention computes 64 scores side by side and reads memory in order; values (64, padded D);
// and, for integers only, the scales of the keys (64) and of the values (64).
template <class T> struct HeadCache {
    static constexpr bool SCALED = std::is_same<T, int8_t>::value;
    char* start;  // of this head in physical block 0
    size_t block_bytes;
    const int32_t* table;
    int D;

    T* keys(int block) const { return (T*)(start + table[block] * block_bytes); }
    T* values(int block) const { return keys(block) + BLOCK * D; }
    float* key_scales(int block) const { return (float*)(values(block) + BLOCK * padded_head_dim(D)); }
    float* value_scales(int block) const { return key_scales(block) + BLOCK; }

    static size_t bytes(int D) {
        return BLOCK * ((D + padded_head_dim(D)) * sizeof(T) + (SCALED ? 2 * sizeof(float) : 0));
    }
};

// Stores the D elements of a vector at intervals of `step` elements; returns the scale of the stored vector.
inline float store_vector(float* p, size_t step, const float* x, int D) {
    for (int d = 0; d < D; d++) p[d * step] = x[d];
    return 1.0f;
}

inline float store_vector(bf16* p, size_t step, const float* x, int D) {
    for (int d = 0; d < D; d++) p[d * step] = (bf16)simd::to_bf16<uint32_t>(x[d]);
    return 1.0f;
}

// Stores integers from -127 to 127, rounded to nearest. If an element is not finite, the scale is NaN, so that the
// logits show it, and NaN itself is stored as 0.
inline float store_vector(int8_t* p, size_t step, const float* x, int D) {
    float largest = 0.0f, invalid = 0.0f;
    for (int d = 0; d < D; d++) {
        largest = std::fmax(largest, std::fabs(x[d]));
        invalid += x[d] * 0.0f;  // 0, or NaN if the element is not finite
    }
    const float scale = largest / 127 + invalid, inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    for (int d = 0; d < D; d++) {
        const float r = std::nearbyint(x[d] * inverse);
        // Clipped to [-127, 127]; NaN, which is not equal to itself, becomes 0.
        p[d * step] = (int8_t)(r < -127.0f ? -127.0f : r > 127.0f ? 127.0f : r == r ? r : 0.0f);
    }
    return scale;
}

// Stores the key and the value of a position.
template <class T> void store(const HeadCache<T>& c, int position, const float* key, const float* value) {
    const int block = position / BLOCK, i = position % BLOCK;
    const float key_scale = store_vector(c.keys(block) + i, BLOCK, key, c.D);
    const float value_scale = store_vector(c.values(block) + i * padded_head_dim(c.D), 1, value, c.D);
    if constexpr (HeadCache<T>::SCALED) c.key_scales(block)[i] = key_scale, c.value_scales(block)[i] = value_scale;
}
