// Causal depthwise convolutions, added to their input: y[t] = h[t] + sum_j w[j] h[t - j] in every channel, j < K, with
// zeros before a sequence. The gradient of h is the same convolution of dy, backward in time. Widths are multiples
// of 16.
#pragma once
#include "../memory.h"
#include "../parallel.h"
#include "matmul_element.h"
#include <algorithm>

static const int BLOCK = 8, PIECE = 64;  // positions that go through registers together, and that share partial sums

struct ShortConvArguments {
    const element* h;
    element* y;
    const element* dy;
    element* dh;
    const float* weight;
    float* dw;
    int32_t batch, length, width, taps, threads;

    int pieces() const { return batch * ((length + PIECE - 1) / PIECE); }
};

// The weights by tap, (K, C); a row of zeros, and one for results that nobody reads; partial sums of the weights'
// gradient, (pieces of all sequences, K, C).
struct ConvScratch {
    float *weight, *sums;
    element *zeros, *unused;
    ConvScratch(Arena& arena, const ShortConvArguments& a, bool backward)
        : weight(arena.alloc<float>((size_t)a.taps * a.width)),
          sums(arena.alloc<float>(backward ? (size_t)a.pieces() * a.taps * a.width : 0)),
          zeros(arena.alloc<element>(a.width)), unused(arena.alloc<element>(a.width)) {}

    void prepare(const ShortConvArguments& a) const {
        for (int c = 0; c < a.width; c++)
            for (int j = 0; j < a.taps; j++) weight[(size_t)j * a.width + c] = a.weight[(size_t)c * a.taps + j];
        memset((void*)zeros, 0, a.width * sizeof(element));
    }
};

// K - 1 + BLOCK rows of x -> BLOCK rows of y. Where h is not null, adds the gradient of the weights: sums (K, C), of h
// and the gradients x, from which y are those of h.
template <int K>
inline void convolve_block(element* const* y, const element* const* x, const element* const* h, float* sums,
                           const float* weight, int width) {
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

// Convolves all pieces of x in blocks, from whichever end of a block is the earlier in the direction of the pass; h is
// read by the backward one.
template <int K, bool BACKWARD>
inline void convolve_pieces(const ShortConvArguments& a, const ConvScratch& scratch, element* y, const element* x,
                            const element* h, const Worker& w) {
    constexpr int step = BACKWARD ? -1 : 1;
    const int pieces = a.pieces(), each = pieces / a.batch, length = a.length, width = a.width, size = K * width;
    element *zeros = scratch.zeros, *unused = scratch.unused;
    for (int p = w.first(pieces); p < w.end(pieces); p++) {
        const size_t sequence = (size_t)(p / each) * length * width;
        const auto row = [=](auto* rows, auto* outside, int t) {
            return t >= 0 && t < length ? rows + sequence + (size_t)t * width : outside;
        };
        float* sums = scratch.sums + (BACKWARD ? (size_t)p * size : 0);
        if (BACKWARD) memset(sums, 0, size * sizeof(float));
        const int first = p % each * PIECE;
        for (int block = first; block < std::min(first + PIECE, length); block += BLOCK) {
            element* out[BLOCK];
            const element *in[K - 1 + BLOCK], *values[BLOCK];
            const int start = step > 0 ? block : block + BLOCK - 1;
            for (int i = 0; i < K - 1 + BLOCK; i++) in[i] = row(x, zeros, start + step * (i - (K - 1)));
            for (int i = 0; i < BLOCK; i++) out[i] = row(y, unused, start + step * i);
            for (int i = 0; i < BLOCK && BACKWARD; i++) values[i] = row(h, zeros, start + step * i);
            convolve_block<K>(out, in, BACKWARD ? values : nullptr, sums, scratch.weight, width);
        }
    }
}

// dw (C, K): the partial sums, added in their order.
inline void add_pieces(const ShortConvArguments& a, const float* sums, const Worker& w) {
    using namespace simd;
    const int pieces = a.pieces(), taps = a.taps, width = a.width;
    for (int c = w.first(width / 16) * 16; c < w.end(width / 16) * 16; c += LANES)
        for (int j = 0; j < taps; j++) {
            floats total = {};
            for (int p = 0; p < pieces; p++) total += load(sums + ((size_t)p * taps + j) * width + c);
            float lane[LANES];
            store(lane, total);
            for (int i = 0; i < LANES; i++) a.dw[(size_t)(c + i) * taps + j] = lane[i];
        }
}

template <bool BACKWARD> inline void short_conv(const ShortConvArguments& a) {
    const Memory<ConvScratch> memory(1, a, BACKWARD);
    const ConvScratch scratch = memory[0];
    scratch.prepare(a);
    with_constant<2, 8>(a.taps, [&](auto taps) {
        parallel(a.threads, [&](const Worker& w) {
            convolve_pieces<taps, BACKWARD>(a, scratch, BACKWARD ? a.dh : a.y, BACKWARD ? a.dy : a.h, a.h, w);
            if (BACKWARD) w.wait(), add_pieces(a, scratch.sums, w);
        });
    });
}

inline void short_conv_forward(const ShortConvArguments& a) { short_conv<false>(a); }
inline void short_conv_backward(const ShortConvArguments& a) { short_conv<true>(a); }
