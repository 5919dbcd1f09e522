// Transforms the queries or keys of one head for attention, and their gradient back: Attention.forward of
// gpt/model/attention.py between c_q or c_k and the scores. They are normed, rotated and scaled, in this order; rows
// past the sequence's length are 0.
#pragma once
#include "matmul_element.h"

static const int MAX_HEAD_DIM = 256;  // gpt/native/training/native_model.py leaves larger heads to torch

// Queries, keys and values are side by side in one tensor (B, T, 3 H D), results in one of (B, T, H D).
struct AttentionShape {
    int batch, length, heads, head_dim;                // B, T, H, D
    int rows() const { return round_up(length, 32); }  // R: as matmuls take them
    // S: from one row of a transposed matrix to the next. R is a multiple of 32, and 16 more words are an odd number of
    // cache lines, which hold 16 words. So the lines of a column are spread over all sets of the nearest cache; with a
    // power of two between them, they would replace each other.
    int columns() const { return rows() + 16; }
    int stride() const { return heads * head_dim; }  // from one position of a result to the next
    size_t transposed_size() const { return (size_t)columns() * head_dim; }
    size_t head_size() const { return (size_t)rows() * head_dim; }
    size_t result_start(int b, int h) const { return (size_t)b * length * stride() + (size_t)h * head_dim; }
    size_t qkv_start(int b, int h) const { return (size_t)b * length * 3 * stride() + (size_t)h * head_dim; }
};

// How a head is transformed: normed, where there is a gain (q_norm and k_norm of Attention); rotated, where there are a
// cosine and a sine (`rotate` of gpt/model/positions.py); then scaled.
struct HeadTransform {
    const float *gain, *cosine, *sine;  // (D), (T, D), (T, D)
    float eps, scale;
};

// Calls work(D). Common sizes are constants that the compiler knows, so that it keeps a row in registers.
template <class Work> inline void with_head_dim(int D, Work work) {
    if (D == 32) return work(std::integral_constant<int, 32>());
    if (D == 64) return work(std::integral_constant<int, 64>());
    work(D);
}

static const int PREFETCH_ROWS = 16;

// Prefetches the row that a strided loop reaches PREFETCH_ROWS rows later, if there is one. It is always inlined, since
// GCC drops calls of a function that does nothing but prefetch.
template <class Size>
__attribute__((always_inline)) inline void prefetch_row(const element* row, size_t stride, int t, Size D,
                                                        const AttentionShape& s) {
    if (t + PREFETCH_ROWS >= s.length) return;
    for (int d = 0; d < D; d += 64 / (int)sizeof(element)) simd::prefetch(row + PREFETCH_ROWS * stride + d, 0);
}

// Writes zeros to the rows of a head (R, D) past its length.
inline void zero_padding(element* x, const AttentionShape& s) {
    memset((void*)(x + (size_t)s.length * s.head_dim), 0, (size_t)(s.rows() - s.length) * s.head_dim * sizeof(element));
}

// From a head of which rows are `stride` elements apart to (R, D).
inline void copy_head(element* out, const element* x, size_t stride, const AttentionShape& s) {
    with_head_dim(s.head_dim, [&](auto D) {
        for (int t = 0; t < s.length; t++) {
            prefetch_row(x + t * stride, stride, t, D, s);
            memcpy((void*)(out + (size_t)t * D), x + t * stride, D * sizeof(element));
        }
    });
    zero_padding(out, s);
}

// x = x cos + rotate_half(x) sin, of `rotate` of gpt/model/positions.py, for position t: pairs of elements half a head
// apart are rotated by the table's angles where the direction is 1, and back where it is -1. The two halves of a row of
// the table are alike, so that only the first is read.
template <class Size> inline void rotate(float* x, int t, Size D, const HeadTransform& p, float direction) {
    using namespace simd;
    if (!p.cosine) return;
    const float *cosines = p.cosine + (size_t)t * D, *sines = p.sine + (size_t)t * D;
    const int half = D / 2;
    for (int d = 0; d < half; d += LANES) {
        const floats a = load(x + d), b = load(x + half + d);
        const floats cosine = load(cosines + d), sine = load(sines + d) * direction;
        store(x + d, a * cosine - b * sine);
        store(x + half + d, b * cosine + a * sine);
    }
}

// 1 / sqrt(x) of a normal x > 0. An integer subtraction halves and negates the exponent, which is right to 3.5%; each
// step of Newton's method makes a relative error e one of 1.5 e^2.
inline simd::floats inverse_root(simd::floats x) {
    simd::floats y = (simd::floats)(0x5f3759df - ((simd::ints)x >> 1));
    for (int step = 0; step < 3; step++) y *= 1.5f - 0.5f * x * y * y;
    return y;
}

// 1 / sqrt(mean(x^2) + eps) of each row, as RMSNorm of gpt/model/layers.py divides by its inverse. The roots are
// computed for many rows at a time: roots and quotients of single numbers would take longer than the rest of the
// transform.
template <class Size>
inline void load_inverse_rms(float* inverse_rms, const element* x, Size D, const AttentionShape& s, float eps) {
    using namespace simd;
    const size_t stride = 3 * (size_t)s.stride();
    for (int t = 0; t < s.length; t++) {
        const element* row = x + t * stride;
        prefetch_row(row, stride, t, D, s);
        floats squares = {};
        for (int d = 0; d < D; d += LANES) squares = fma(load(row + d), load(row + d), squares);
        inverse_rms[t] = reduce_add(squares);
    }
    // The last vector may go on past the length, in memory of R numbers; nothing reads these results.
    for (int t = 0; t < s.length; t += LANES)
        store(inverse_rms + t, inverse_root(load(inverse_rms + t) * (1.0f / D) + eps));
}

// The work of transform_head, for a known D.
template <class Size>
inline void transform_rows(element* out, float* inverse_rms, const element* x, Size D, const AttentionShape& s,
                           const HeadTransform p) {
    using namespace simd;
    float normed[MAX_HEAD_DIM];
    const size_t stride = 3 * (size_t)s.stride();
    if (p.gain) load_inverse_rms(inverse_rms, x, D, s, p.eps);
    for (int t = 0; t < s.length; t++) {
        const element* row = x + t * stride;
        if (!p.gain) prefetch_row(row, stride, t, D, s);
        for (int d = 0; d < D; d += LANES)
            store(normed + d, p.gain ? load(row + d) * inverse_rms[t] * load(p.gain + d) : load(row + d));
        rotate(normed, t, D, p, 1.0f);
        for (int d = 0; d < D; d += LANES) store(out + (size_t)t * D + d, load(normed + d) * p.scale);
    }
}

// From the queries or keys of a head in qkv, x, to (R, D); inverse_rms (R) is kept for the backward pass.
inline void transform_head(element* out, float* inverse_rms, const element* x, const AttentionShape& s,
                           const HeadTransform& p) {
    with_head_dim(s.head_dim, [&](auto D) { transform_rows(out, inverse_rms, x, D, s, p); });
    zero_padding(out, s);
}

// The work of transform_head_backward, for a known D. Each row is scaled and rotated back. Through the norm, with
// unit = x inverse:
//     dgain = sum of g unit,   dx = inverse (g gain - unit mean(g gain unit))
template <class Size>
inline void transform_rows_backward(element* dx, float* dgain, const float* dout, const float* inverse_rms,
                                    const element* x, Size D, const AttentionShape& s, const HeadTransform p) {
    using namespace simd;
    float g[MAX_HEAD_DIM], gain_sums[MAX_HEAD_DIM];
    for (int d = 0; d < D; d += LANES) store(gain_sums + d, floats{});
    const size_t stride = 3 * (size_t)s.stride();
    for (int t = 0; t < s.length; t++) {
        const element* row = x + t * stride;
        element* out = dx + t * stride;
        for (int d = 0; d < D; d += LANES) store(g + d, load(dout + (size_t)t * D + d) * p.scale);
        rotate(g, t, D, p, -1.0f);
        prefetch_row(out, stride, t, D, s);
        if (!p.gain) {
            for (int d = 0; d < D; d += LANES) store(out + d, load(g + d));
            continue;
        }
        const float inverse = inverse_rms[t];
        floats dot = {};
        for (int d = 0; d < D; d += LANES) {
            const floats unit = load(row + d) * inverse, dy = load(g + d);
            store(gain_sums + d, fma(dy, unit, load(gain_sums + d)));
            dot = fma(dy * load(p.gain + d), unit, dot);
        }
        // The part of the gradient that would only change the length of the row has no effect: the norm undoes it.
        const float mean = reduce_add(dot) / D;
        for (int d = 0; d < D; d += LANES)
            store(out + d, (load(g + d) * load(p.gain + d) - load(row + d) * inverse * mean) * inverse);
    }
    for (int d = 0; d < D; d += LANES) store(dgain + d, load(gain_sums + d));
}

// From the gradient of a transformed head, dout (R, D), to that of its queries or keys in qkv, dx, and to that of the
// gain (D), which is 0 where there is no gain.
inline void transform_head_backward(element* dx, float* dgain, const float* dout, const float* inverse_rms,
                                    const element* x, const AttentionShape& s, const HeadTransform& p) {
    with_head_dim(s.head_dim, [&](auto D) { transform_rows_backward(dx, dgain, dout, inverse_rms, x, D, s, p); });
}
