// The gradients of a vector of attention weights and of their scores.
#pragma once
#include "dropout.h"

struct WeightGradients {
    simd::floats kept, dscore;  // the weights after dropout; the gradient of their scores
};

// dweight: gradient of the weights after dropout; delta: see load_queries; streams: of dropout, plus the index of each.
inline WeightGradients gradients_of(simd::floats weight, simd::floats dweight, simd::floats delta, simd::words streams,
                                    const Dropout& drop) {
    simd::floats kept = weight;
    if (drop.active()) {
        const simd::ints mask = drop.kept(streams);
        dweight = drop.apply(mask, dweight), kept = drop.apply(mask, weight);
    }
    return {kept, weight * (dweight - delta)};
}
