// The objective: cross-entropies of the logits, and their gradient (gpt/training/objective.py).
#pragma once
#include "plan.h"

// Computes the losses of a position n, and replaces its logits by the gradient as elements. For logits z, already
// divided by the temperature, and log Z the logarithm of the softmax's denominator, a target's cross-entropy is
// log Z - z[target]. Of some of them, weighted by w, with a teacher's probabilities p and the z-loss, the gradient is
//     (1 - t) (sum of w softmax(z) - w at each target) + t (sum of p softmax(z) - p) + 2 zw log Z softmax(z).
inline LossSums lose(element* dlogits, float* logits, int n, const TrainedModel& m, const MicroBatch& b) {
    using namespace simd;
    const int V = m.vocab, whole = round_up(V, 32);  // the head's outputs are padded, with zeros
    const int64_t* targets = b.targets + n;
    const int left = b.length - n % b.length;  // positions of the sequence from n on
    const float* teacher = b.teacher ? b.teacher + (size_t)n * V : nullptr;
    // summed_cross_entropy(logits / temperature, targets)
    float peak = -INFINITY, sum = 0.0f;
    for (int v = 0; v < V; v++) {
        logits[v] /= b.temperature;
        peak = logits[v] > peak ? logits[v] : peak;
    }
    floats total = {};
    for (int v = 0; v < whole; v += LANES) {
        floats e = exp(load(logits + v) - peak);
        if (v + LANES > V) e = select(lanes() < V - v, e, floats{});
        total += e;
    }
    sum = reduce_add(total);
    const float log_z = peak + std::log(sum);
    const bool counts = targets[0] >= 0;
    LossSums losses = {};
    if (counts) losses = {(double)log_z - logits[targets[0]], (double)log_z * log_z};
    // The weight of the next token's target is 1, and after it come those of `later` ones.
    const float of_text = teacher ? 1.0f - b.teacher_weight : 1.0f;
    float of_softmax = counts ? of_text + 2.0f * b.z_weight * log_z : 0.0f;
    for (int d = 1; d <= b.later && d < left; d++)
        if (targets[d] >= 0) of_softmax += of_text * b.later_weights[d - 1];
    if (teacher)
        for (int v = 0; v < V; v++) of_softmax += b.teacher_weight * teacher[v];
    const float scale = b.scale / b.temperature;
    const auto subtract = [&](int64_t target, float weight) { logits[target] -= of_text * weight * scale; };
    for (int v = 0; v < whole; v += LANES) store(logits + v, exp(load(logits + v) - peak) * (of_softmax * scale / sum));
    if (counts) subtract(targets[0], 1.0f);
    for (int d = 1; d <= b.later && d < left; d++)
        if (targets[d] >= 0) subtract(targets[d], b.later_weights[d - 1]);
    if (teacher)
        for (int v = 0; v < V; v++) logits[v] -= b.teacher_weight * scale * teacher[v];
    for (int v = V; v < whole; v++) logits[v] = 0.0f;
    for (int v = 0; v < whole; v += LANES) store(dlogits + v, load(logits + v));
    return losses;
}
