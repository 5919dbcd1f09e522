// The softmax of attention, which turns a row of scores into weights. The caller divides the weights by their sum.
#pragma once
#include "../simd.h"

struct SoftmaxSum {
    float peak, sum;  // the largest score, and the sum of e^(score - peak)
};

// Calls use(j, weights) with each vector of weights, from weight j on, that begins before `end`. The row has `count`
// scores, and the weights after the last score are 0. score(j) returns the vector of scores from score j on; it may
// return any numbers after the last score.
template <class Score, class Use> inline SoftmaxSum softmax_row(int count, int end, Score score, Use use) {
    using namespace simd;
    floats top = broadcast(-INFINITY), total = {};
    for (int j = 0; j < count; j += LANES) {
        const floats x = score(j);
        top = max(top, j + LANES <= count ? x : select(lanes() < count - j, x, broadcast(-INFINITY)));
    }
    const float peak = reduce_max(top);
    for (int j = 0; j < end; j += LANES) {
        floats e = {};
        if (j < count) e = exp(score(j) - peak);
        if (j + LANES > count) e = select(lanes() < count - j, e, floats{});
        total += e;
        use(j, e);
    }
    return {peak, reduce_add(total)};
}
