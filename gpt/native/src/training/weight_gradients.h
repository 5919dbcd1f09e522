// What softmax and dropout of attention are backward, for a vector of weights.
#pragma once
#include "dropout.h"

struct WeightGradients {
    simd::floats kept;    // the weights after dropout
    simd::floats dscore;  // the gradient of their scores
};

// For weights W = softmax(scores): kept = dropout(W), dscore = W (dropout(dweight) - delta), since the gradient of
// dropout is dropout of the gradient. dweight: that of the weights after dropout; delta: see load_deltas; streams: of
// dropout, each plus the index of its weight.
inline WeightGradients gradients_of(simd::floats weight, simd::floats dweight, simd::floats delta, simd::words streams,
                                    const Dropout& drop) {
    simd::floats kept = weight;
    if (drop.active()) {
        const simd::ints mask = drop.kept(streams);
        dweight = drop.apply(mask, dweight);
        kept = drop.apply(mask, weight);
    }
    return {kept, weight * (dweight - delta)};
}
