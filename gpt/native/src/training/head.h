// The objective: the losses of a position, and the gradient of its logits (Objective of gpt/training/objective.py).
#pragma once
#include "plan.h"

// What the loss of a position is computed from.
struct Position {
    const int64_t* targets;  // that of the next token, and after it those of later ones; negative: does not count
    int later;               // later targets that are in this sequence and have a weight
    const float* teacher;    // (V) probabilities, or null
    float text_weight;       // of the losses with targets, beside that with the teacher

    Position(const MicroBatch& batch, int vocab, int n) {
        const int left = batch.length - n % batch.length;  // positions of the sequence from n on
        targets = batch.targets + n;
        later = std::min(batch.later, left - 1);
        teacher = batch.teacher ? batch.teacher + (size_t)n * vocab : nullptr;
        text_weight = teacher ? 1.0f - batch.teacher_weight : 1.0f;
    }
    bool counts() const { return targets[0] >= 0; }
};

// softmax(z)[v] is e^(z[v] - peak) / sum.
struct LogitSoftmax {
    float peak, sum;

    float log_z() const { return peak + std::log(sum); }
};

// z = logits / temperature, in place, as Objective.__call__ divides them; returns the peak and the sum of their
// softmax. Memory holds logits up to a multiple of 32, whose padding has no part in the softmax.
inline LogitSoftmax divide_by_temperature(float* logits, int vocab, float temperature) {
    using namespace simd;
    float peak = -INFINITY;
    for (int v = 0; v < vocab; v++) {
        logits[v] /= temperature;
        peak = logits[v] > peak ? logits[v] : peak;
    }
    floats total = {};
    for (int v = 0; v < round_up(vocab, 32); v += LANES) {
        floats e = exp(load(logits + v) - peak);
        if (v + LANES > vocab) e = select(lanes() < vocab - v, e, floats{});
        total += e;
    }
    return {peak, reduce_add(total)};
}

// The factor of softmax(z) in the gradient by z: the sum of all weights of cross-entropies, and 2 zw log Z of the
// z-loss.
inline float softmax_factor(const Position& position, const MicroBatch& batch, int vocab, float log_z) {
    float factor = position.counts() ? position.text_weight + 2.0f * batch.z_weight * log_z : 0.0f;
    for (int d = 1; d <= position.later; d++)
        if (position.targets[d] >= 0) factor += position.text_weight * batch.later_weights[d - 1];
    if (position.teacher)
        for (int v = 0; v < vocab; v++) factor += batch.teacher_weight * position.teacher[v];
    return factor;
}

// Subtracts from the gradient what each cross-entropy subtracts: its weight at its target, and the teacher's
// probabilities.
inline void subtract_targets(float* gradient, const Position& position, const MicroBatch& batch, int vocab,
                             float scale) {
    // The weight of the next token's target is 1.
    if (position.counts()) gradient[position.targets[0]] -= position.text_weight * scale;
    for (int d = 1; d <= position.later; d++) {
        const int64_t target = position.targets[d];
        if (target >= 0) gradient[target] -= position.text_weight * batch.later_weights[d - 1] * scale;
    }
    if (position.teacher)
        for (int v = 0; v < vocab; v++) gradient[v] -= batch.teacher_weight * scale * position.teacher[v];
}

// Computes the losses of position n, as Objective.__call__ does, and the gradient of its logits as elements, dlogits;
// the memory of the logits is used up. Let z be the logits divided by the temperature, and log Z the logarithm of the
// sum of e^z. The losses are
//     cross-entropy with a target:     log Z - z[target]           summed_cross_entropy, and _add_mtp for later targets
//     that with a teacher's p:         sum of p (log Z - z)                                        _blend_with_teacher
//     z-loss:                          (log Z)^2                                                                z_loss
// and log Z has the gradient softmax(z). So the gradient by z, with the weight w of each target (1 for that of the next
// token), the weight t of the teacher and the weight zw of the z-loss, is
//     (1 - t) (sum of w softmax(z) - w at each target) + t (sum of p softmax(z) - p) + 2 zw log Z softmax(z).
inline LossSums compute_losses(element* dlogits, float* logits, int n, const TrainedModel& model,
                               const MicroBatch& batch) {
    using namespace simd;
    const int vocab = model.vocab, padded_vocab = round_up(vocab, 32);
    const Position position(batch, vocab, n);
    const LogitSoftmax softmax = divide_by_temperature(logits, vocab, batch.temperature);
    const float log_z = softmax.log_z();
    LossSums losses = {};
    if (position.counts()) {
        losses.cross_entropy = (double)log_z - logits[position.targets[0]];
        losses.z_loss = (double)log_z * log_z;
    }
    const float scale = batch.scale / batch.temperature;  // from the gradient by z to that by the logits
    const float factor = softmax_factor(position, batch, vocab, log_z) * scale / softmax.sum;
    float* gradient = logits;  // takes their place, number by number
    for (int v = 0; v < padded_vocab; v += LANES) store(gradient + v, exp(load(logits + v) - softmax.peak) * factor);
    subtract_targets(gradient, position, batch, vocab, scale);
    for (int v = vocab; v < padded_vocab; v++) gradient[v] = 0.0f;
    for (int v = 0; v < padded_vocab; v += LANES) store(dlogits + v, load(gradient + v));
    return losses;
}
