// Causal depthwise convolutions, added to their input: y[t] = h[t] + sum_j w[j] h[t - j] in every channel, j < K, with
// zeros before a sequence. The gradient of h is the same convolution of dy, backward in time. Widths are multiples of 16.
#pragma once
#include "../arena.h"
#include "../parallel.h"
#include "matmul_element.h"
#include <algorithm>

static const int BLOCK = 8, PIECE = 64;  // positions that go through registers together, and that share partial sums

struct Sequences {
    int count, length, width;
    int pieces() const { return (length + PIECE - 1) / PIECE; }  // of one sequence
};

// The weights by tap, (K, C); a row of zeros, and one for results that nobody reads; partial sums of the weights'
// gradient, (pieces of all sequences, K, C).
struct ConvScratch {
    float* weight;
    element *zeros, *unused;
    float* sums;
    ConvScratch(Arena& arena, const Sequences& s, int taps, bool backward)
        : weight(arena.alloc<float>((size_t)taps * s.width)), zeros(arena.alloc<element>(s.width)), unused(arena.alloc<element>(s.width)),
          sums(arena.alloc<float>(backward ? (size_t)s.count * s.pieces() * taps * s.width : 0)) {}

    void prepare(const float* w, int taps, int width) const {
        for (int c = 0; c < width; c++)
            for (int j = 0; j < taps; j++) weight[(size_t)j * width + c] = w[(size_t)c * taps + j];
        memset((void*)zeros, 0, width * sizeof(element));
    }
};

// Rows of one sequence (T, C) by position; those outside of it are `outside`.
template <class T> struct SequenceRows {
    T *start, *outside;
    int length, width;
    T* at(int t) const { return t >= 0 && t < length ? start + (size_t)t * width : outside; }
};

// K - 1 + BLOCK rows of x -> BLOCK rows of y. Where h is not null, adds the gradient of the weights: sums (K, C), of h and
// the gradients x, from which y are those of h.
template <int K>
inline void convolve_block(element* const* y, const element* const* x, const element* const* h, float* sums, const float* weight, int width) {
    using namespace simd;
    for (int c = 0; c < width; c += LANES) {
        floats in[K - 1 + BLOCK], w[K];
        for (int i = 0; i < K - 1 + BLOCK; i++) in[i] = load(x[i] + c);
        for (int j = 0; j < K; j++) w[j] = load(weight + (size_t)j * width + c);
        for (int i = 0; i < BLOCK; i++) {
            floats sum = in[K - 1 + i];
            for (int j = 0; j < K; j++) sum = fma(w[j], in[K - 1 + i - j], sum);
            store(y[i] + c, sum);
        }
        if (!h) continue;
        floats dw[K];
        for (int j = 0; j < K; j++) dw[j] = load(sums + (size_t)j * width + c);
        for (int i = 0; i < BLOCK; i++) {
            const floats value = load(h[i] + c);
            for (int j = 0; j < K; j++) dw[j] = fma(value, in[K - 1 + i - j], dw[j]);
        }
        for (int j = 0; j < K; j++) store(sums + (size_t)j * width + c, dw[j]);
    }
}

// The positions of a piece from `first` on, in blocks, from whichever end is the earlier in the direction `step`, 1 or -1.
template <int K>
inline void convolve_piece(const SequenceRows<element>& y, const SequenceRows<const element>& x, const SequenceRows<const element>* h, float* sums,
                           const float* weight, int first, int step) {
    element* out[BLOCK];
    const element *in[K - 1 + BLOCK], *values[BLOCK];
    for (int block = first; block < std::min(first + PIECE, x.length); block += BLOCK) {
        const int start = step > 0 ? block : block + BLOCK - 1;
        for (int i = 0; i < K - 1 + BLOCK; i++) in[i] = x.at(start + step * (i - (K - 1)));
        for (int i = 0; i < BLOCK; i++) out[i] = y.at(start + step * i);
        for (int i = 0; i < BLOCK && h; i++) values[i] = h->at(start + step * i);
        convolve_block<K>(out, in, h ? values : nullptr, sums, weight, x.width);
    }
}

// dw (C, K): the partial sums, added in their order.
inline void add_pieces(float* dw, const float* sums, int pieces, int taps, int width, const Worker& w) {
    using namespace simd;
    for (int c = w.first(width / 16) * 16; c < w.end(width / 16) * 16; c += LANES)
        for (int j = 0; j < taps; j++) {
            floats total = {};
            for (int p = 0; p < pieces; p++) total += load(sums + ((size_t)p * taps + j) * width + c);
            float lane[LANES];
            store(lane, total);
            for (int i = 0; i < LANES; i++) dw[(size_t)(c + i) * taps + j] = lane[i];
        }
}

template <int K> inline void convolve(element* y, const element* h, const float* weight, const Sequences& s, int threads) {
    const Scratch<ConvScratch> memory(1, s, K, false);
    const ConvScratch scratch = memory.of(0, s, K, false);
    scratch.prepare(weight, K, s.width);
    parallel(threads, [&](const Worker& w) {
        const int pieces = s.count * s.pieces();
        for (int p = w.first(pieces); p < w.end(pieces); p++) {
            const size_t at = (size_t)(p / s.pieces()) * s.length * s.width;
            convolve_piece<K>({y + at, scratch.unused, s.length, s.width}, {h + at, scratch.zeros, s.length, s.width}, nullptr, nullptr,
                              scratch.weight, p % s.pieces() * PIECE, 1);
        }
    });
}

template <int K>
inline void convolve_backward(element* dh, float* dw, const element* dy, const element* h, const float* weight, const Sequences& s, int threads) {
    const Scratch<ConvScratch> memory(1, s, K, true);
    const ConvScratch scratch = memory.of(0, s, K, true);
    scratch.prepare(weight, K, s.width);
    parallel(threads, [&](const Worker& w) {
        const int pieces = s.count * s.pieces(), size = K * s.width;
        for (int p = w.first(pieces); p < w.end(pieces); p++) {
            const size_t at = (size_t)(p / s.pieces()) * s.length * s.width;
            const SequenceRows<const element> values = {h + at, scratch.zeros, s.length, s.width};
            float* sums = scratch.sums + (size_t)p * size;
            memset(sums, 0, size * sizeof(float));
            convolve_piece<K>({dh + at, scratch.unused, s.length, s.width}, {dy + at, scratch.zeros, s.length, s.width}, &values, sums,
                              scratch.weight, p % s.pieces() * PIECE, -1);
        }
        w.wait();
        add_pieces(dw, scratch.sums, pieces, K, s.width, w);
    });
}

// Calls work with the number of taps, 2 to 8, as a constant.
template <int K = 8, class Work> inline void with_taps(int taps, Work work) {
    if (taps == K) return work(std::integral_constant<int, K>());
    if constexpr (K > 2) with_taps<K - 1>(taps, work);
}
