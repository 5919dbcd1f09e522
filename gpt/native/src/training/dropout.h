// Dropout by counting: element i of stream s is kept if a hash of both reaches the threshold, so that the backward
// pass needs no stored mask and threads need no common generator.
#pragma once
#include "../simd.h"

// A hash in which every output bit depends on every input bit (Wellons 2018, lowbias32), for scalars and vectors.
template <class Words> inline Words hash(Words x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ (x >> 16);
}

// A stream has one number for each element of a row. Of the 2^32 hashes, p * 2^32 are below the threshold.
struct Dropout {
    uint32_t seed, threshold;
    float scale;
    Dropout(uint32_t seed, float p)
        : seed(seed), threshold((uint32_t)std::fmin(p * 4294967296.0, 4294967295.0)), scale(1.0f / (1.0f - p)) {}
    bool active() const { return threshold != 0; }
    // Of one row, or of a vector of rows. No template: a signed number would be hashed by other shifts.
    uint32_t stream(uint32_t s) const { return hash(seed ^ hash(s)); }
    simd::words stream(simd::words s) const { return hash(seed ^ hash(s)); }
    simd::ints kept(simd::words stream_plus_index) const { return (simd::ints)(hash(stream_plus_index) >= threshold); }
    simd::floats apply(simd::ints kept, simd::floats x) const { return simd::select(kept, x * scale, simd::floats{}); }
    // Elements from i on of a stream.
    simd::floats apply(uint32_t stream, int i, simd::floats x) const {
        return active() ? apply(kept((simd::words)simd::lanes() + (stream + (uint32_t)i)), x) : x;
    }
};
