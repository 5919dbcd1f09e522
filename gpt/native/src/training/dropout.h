// Dropout by counting: element i of stream s is kept if a hash of both reaches a threshold, so that the backward pass
// needs no stored mask and threads need no common generator. What is kept is divided by 1 - p, as by torch.nn.Dropout.
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

// Dropout with probability p. A stream has one number for each element of a row: the stream's own number, which is a
// hash of the seed and of the row, plus the element's index. An element is dropped if the hash of its number is below
// the threshold. Of all 2^32 hashes, p * 2^32 are.
struct Dropout {
    uint32_t seed, threshold;
    float scale;

    Dropout(uint32_t seed, float p) : seed(seed), scale(1.0f / (1.0f - p)) {
        const double hashes = 4294967296.0;  // 2^32
        threshold = (uint32_t)std::fmin(p * hashes, hashes - 1.0);
    }
    bool active() const { return threshold != 0; }
    // The stream of one row, or those of a vector of rows. No template: a signed number would be hashed by other
    // shifts.
    uint32_t stream(uint32_t s) const { return hash(seed ^ hash(s)); }
    simd::words stream(simd::words s) const { return hash(seed ^ hash(s)); }
    // Whether elements are kept, by their numbers; and what elements become by that.
    simd::ints kept(simd::words stream_plus_index) const { return (simd::ints)(hash(stream_plus_index) >= threshold); }
    simd::floats apply(simd::ints kept, simd::floats x) const { return simd::select(kept, x * scale, simd::floats{}); }
    // What a vector of elements x becomes, which is in a stream from element i on.
    simd::floats apply(uint32_t stream, int i, simd::floats x) const {
        if (!active()) return x;
        const simd::words numbers = (simd::words)simd::lanes() + (stream + (uint32_t)i);
        return apply(kept(numbers), x);
    }
};
