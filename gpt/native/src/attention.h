// Causal attention, forward and backward, one head of one row at a time, so that a head's queries,
// keys, values and scores stay in the processor's cache. The normalisation of queries and keys and
// their rotation are part of it. Tensors are (B, T, H * D) bfloat16, D a multiple of 32; queries, keys
// and values stand side by side in one tensor (B, T, 3 * H * D).
//
// The forward pass keeps the logarithm of each query's softmax sum; the backward pass computes the
// weights again from it (Dao et al. 2022, 2205.14135, appendix B.4).
#pragma once
#include "packing.h"
#include "products.h"
#include "scratch.h"
#include <omp.h>

static const int MAX_WIDTH = 256;  // of a head

struct AttentionShape {
    int batch, length, heads, width, threads;
    int rows() const { return (length + 31) / 32 * 32; }  // padded to what a product takes
    int stride() const { return heads * width; }  // from one position to the next
    size_t head_size() const { return (size_t)rows() * width; }
    size_t head_start(int b, int h) const { return (size_t)b * length * stride() + (size_t)h * width; }
    size_t projected_start(int b, int h) const { return (size_t)b * length * 3 * stride() + (size_t)h * width; }
};

// Fetches a row that is some steps of a strided loop away.
static inline void fetch_row(const bf16* row, int width) {
    for (int d = 0; d < width; d += 32) _mm_prefetch((const char*)(row + d), _MM_HINT_T0);
}
static const int ROWS_AHEAD = 16;

// What happens to queries and keys before the product; each pointer may be null.
struct Preparation {
    const float *gain, *cosine, *sine;  // (D), (T, D), (T, D)
    float eps;
};

// Which of 16 lanes from `first` on are at most `last`.
static inline __mmask16 up_to(int first, int last) {
    return last - first >= 15 ? 0xffff : last < first ? 0 : (__mmask16)((1u << (last - first + 1)) - 1);
}
// Which of 16 lanes from `first` on are at least `least`.
static inline __mmask16 from(int first, int least) {
    return first >= least ? 0xffff : least - first > 15 ? 0 : (__mmask16)(0xffffu << (least - first));
}

// One head to (rows, D): normalised, rotated, scaled; zeros past its length.
static void prepare(bf16* out, float* inverse_rms, const bf16* x, const AttentionShape& s, const Preparation& p, float scale) {
    float normed[MAX_WIDTH], turned[MAX_WIDTH];
    const int D = s.width, half = D / 2;
    for (int t = 0; t < s.length; t++) {
        const bf16* row = x + (size_t)t * 3 * s.stride();
        fetch_row(row + (size_t)ROWS_AHEAD * 3 * s.stride(), D);
        vec squares = all(0.0f);
        for (int d = 0; d < D; d += 16) {
            vec v = load(row + d);
            store(normed + d, v);
            squares = fma(v, v, squares);
        }
        const float* from = normed;
        if (p.gain) {
            vec r = all(1.0f / sqrtf(sum(squares) / D + p.eps));
            inverse_rms[t] = _mm512_cvtss_f32(r);
            for (int d = 0; d < D; d += 16) store(normed + d, load(normed + d) * r * load(p.gain + d));
        }
        if (p.cosine) {
            const float *c = p.cosine + (size_t)t * D, *n = p.sine + (size_t)t * D;
            for (int d = 0; d < half; d += 16) {
                vec a = load(normed + d), b = load(normed + half + d);
                store(turned + d, a * load(c + d) - b * load(n + d));
                store(turned + half + d, b * load(c + half + d) + a * load(n + half + d));
            }
            from = turned;
        }
        for (int d = 0; d < D; d += 16) store(out + (size_t)t * D + d, load(from + d) * all(scale));
    }
    memset(out + (size_t)s.length * D, 0, (size_t)(s.rows() - s.length) * D * sizeof(bf16));
}

// The way back, to the gradient of the projection; adds to that of the gain.
static void prepare_backward(bf16* dx, float* dgain, const float* dout, const float* inverse_rms, const bf16* x,
                             const AttentionShape& s, const Preparation& p, float scale) {
    float g[MAX_WIDTH];
    const int D = s.width, half = D / 2;
    for (int t = 0; t < s.length; t++) {
        const float* d_row = dout + (size_t)t * D;
        const bf16* row = x + (size_t)t * 3 * s.stride();
        if (p.cosine) {
            const float *c = p.cosine + (size_t)t * D, *n = p.sine + (size_t)t * D;
            for (int d = 0; d < half; d += 16) {
                vec a = load(d_row + d) * all(scale), b = load(d_row + half + d) * all(scale);
                store(g + d, a * load(c + d) + b * load(n + half + d));
                store(g + half + d, b * load(c + half + d) - a * load(n + d));
            }
        } else
            for (int d = 0; d < D; d += 16) store(g + d, load(d_row + d) * all(scale));
        bf16* out = dx + (size_t)t * 3 * s.stride();
        fetch_row(out + (size_t)ROWS_AHEAD * 3 * s.stride(), D);
        if (p.gain) {
            vec r = all(inverse_rms[t]), dot = all(0.0f);
            for (int d = 0; d < D; d += 16) {
                vec unit = load(row + d) * r, dy = load(g + d);
                store(dgain + d, fma(dy, unit, load(dgain + d)));
                dot = fma(dy * load(p.gain + d), unit, dot);
            }
            vec mean = all(sum(dot) / D);
            for (int d = 0; d < D; d += 16)
                store(out + d, r * (load(g + d) * load(p.gain + d) - load(row + d) * r * mean));
        } else
            for (int d = 0; d < D; d += 16) store(out + d, load(g + d));
    }
}

static void copy_head(bf16* out, const bf16* x, int stride, const AttentionShape& s) {
    for (int t = 0; t < s.length; t++) {
        fetch_row(x + (size_t)(t + ROWS_AHEAD) * stride, s.width);
        memcpy(out + (size_t)t * s.width, x + (size_t)t * stride, s.width * sizeof(bf16));
    }
    memset(out + (size_t)s.length * s.width, 0, (size_t)(s.rows() - s.length) * s.width * sizeof(bf16));
}

// One row of scores to unnormalised weights, dropped out; returns the sum before dropout and its logarithm.
static float soften(bf16* weights, float* log_sum, const float* scores, int query, int keys, const Dropout& drop, uint32_t stream) {
    vec top = all(-INFINITY);
    for (int j = 0; j <= query; j += 16) top = _mm512_mask_max_ps(top, up_to(j, query), top, load(scores + j));
    vec peak = all(_mm512_reduce_max_ps(top)), total = all(0.0f);
    for (int j = 0; j < keys; j += 16) {
        vec e = _mm512_maskz_mov_ps(up_to(j, query), exp(load(scores + j) - peak));
        total = total + e;
        store(weights + j, drop.apply(stream, j, e));
    }
    float result = sum(total);
    *log_sum = _mm512_cvtss_f32(peak) + logf(result);
    return result;
}

struct AttentionInputs {
    const bf16* qkv;
    Preparation for_q, for_k;
};

static void attention_forward(bf16* y, float* log_sums, const AttentionInputs& in, const AttentionShape& s, const Dropout& drop) {
    const int D = s.width, R = s.rows(), T = s.length;
    const float scale = 1.0f / sqrtf((float)D);
#pragma omp parallel num_threads(s.threads)
    {
        ProductScope scope;
        Scratch scratch((s.head_size() * 5 + 16 * (size_t)R) * sizeof(bf16) + ((size_t)17 * R + 16 * D) * sizeof(float) + 4096);
        bf16 *q = scratch.take<bf16>(s.head_size()), *k = scratch.take<bf16>(s.head_size()), *kt = scratch.take<bf16>(s.head_size());
        bf16 *v = scratch.take<bf16>(s.head_size()), *vp = scratch.take<bf16>(s.head_size()), *weights = scratch.take<bf16>(16 * (size_t)R);
        float *scores = scratch.take<float>(16 * (size_t)R), *out = scratch.take<float>(16 * D), *rms = scratch.take<float>(R);
#pragma omp for collapse(2) schedule(static)
        for (int b = 0; b < s.batch; b++)
            for (int h = 0; h < s.heads; h++) {
                const size_t start = s.head_start(b, h), head = (size_t)b * s.heads + h;
                const bf16 *own_q = in.qkv + s.projected_start(b, h), *own_k = own_q + s.stride(), *own_v = own_k + s.stride();
                prepare(q, rms, own_q, s, in.for_q, scale);
                prepare(k, rms, own_k, s, in.for_k, 1.0f);
                copy_head(v, own_v, 3 * s.stride(), s);
                pack_transposed(kt, k, R, D);
                pack(vp, v, R, D);
                for (int i = 0; i < T; i += 16) {
                    const int keys = (i + 16 + 31) / 32 * 32;
                    float total[16], ignored;
                    multiply(scores, R, q + (size_t)i * D, D, kt, 2 * R, D / 32, keys / 16);
                    for (int r = 0; r < 16; r++)
                        total[r] = soften(weights + (size_t)r * R, i + r < T ? log_sums + head * T + i + r : &ignored,
                                          scores + (size_t)r * R, i + r, keys, drop, drop.stream(head * T + i + r));
                    multiply(out, D, weights, R, vp, 2 * D, keys / 32, D / 16);
                    for (int r = 0; r < 16 && i + r < T; r++)
                        for (int d = 0; d < D; d += 16)
                            store(y + start + (size_t)(i + r) * s.stride() + d, load(out + (size_t)r * D + d) * all(1.0f / total[r]));
                }
            }
    }
}

struct AttentionGradients {
    bf16* qkv;
    float *q_gain, *k_gain;  // (threads, D), one row a thread, zero at first
};

static void attention_backward(const AttentionGradients& grad, const bf16* dy, const bf16* y, const float* log_sums,
                               const AttentionInputs& in, const AttentionShape& s, const Dropout& drop) {
    const int D = s.width, R = s.rows(), T = s.length;
    const size_t size = s.head_size();
    const float scale = 1.0f / sqrtf((float)D);
#pragma omp parallel num_threads(s.threads)
    {
        ProductScope scope;
        Scratch scratch((size * 11 + 32 * (size_t)R) * sizeof(bf16) + (size * 3 + 37 * (size_t)R) * sizeof(float) + 8192);
        bf16 *q = scratch.take<bf16>(size), *k = scratch.take<bf16>(size), *v = scratch.take<bf16>(size), *g = scratch.take<bf16>(size);
        bf16 *qt = scratch.take<bf16>(size), *kt = scratch.take<bf16>(size), *vt = scratch.take<bf16>(size), *gt = scratch.take<bf16>(size);
        bf16 *qp = scratch.take<bf16>(size), *kp = scratch.take<bf16>(size), *gp = scratch.take<bf16>(size);
        bf16 *weights = scratch.take<bf16>(16 * (size_t)R), *ds = scratch.take<bf16>(16 * (size_t)R);
        float *dq = scratch.take<float>(size), *dk = scratch.take<float>(size), *dv = scratch.take<float>(size);
        float *scores = scratch.take<float>(16 * (size_t)R), *dw = scratch.take<float>(16 * (size_t)R);
        float *q_rms = scratch.take<float>(R), *k_rms = scratch.take<float>(R), *delta = scratch.take<float>(R), *logs = scratch.take<float>(R);
        uint32_t* streams = scratch.take<uint32_t>(R);
        float* q_gain = grad.q_gain + (size_t)omp_get_thread_num() * D;
        float* k_gain = grad.k_gain + (size_t)omp_get_thread_num() * D;
#pragma omp for collapse(2) schedule(static)
        for (int b = 0; b < s.batch; b++)
            for (int h = 0; h < s.heads; h++) {
                const size_t start = s.head_start(b, h), head = (size_t)b * s.heads + h;
                const bf16 *own_q = in.qkv + s.projected_start(b, h), *own_k = own_q + s.stride(), *own_v = own_k + s.stride();
                prepare(q, q_rms, own_q, s, in.for_q, scale);
                prepare(k, k_rms, own_k, s, in.for_k, 1.0f);
                copy_head(v, own_v, 3 * s.stride(), s);
                copy_head(g, dy + start, s.stride(), s);
                pack_transposed(qt, q, R, D), pack_transposed(kt, k, R, D), pack_transposed(vt, v, R, D), pack_transposed(gt, g, R, D);
                pack(qp, q, R, D), pack(kp, k, R, D), pack(gp, g, R, D);
                for (int t = 0; t < R; t++) {  // delta: the gradient of each query's weights, averaged by the weights
                    fetch_row(y + start + (size_t)(t + ROWS_AHEAD) * s.stride(), D);
                    vec products = all(0.0f);
                    for (int d = 0; t < T && d < D; d += 16)
                        products = fma(load(g + (size_t)t * D + d), load(y + start + (size_t)t * s.stride() + d), products);
                    delta[t] = sum(products);
                    logs[t] = t < T ? log_sums[head * T + t] : INFINITY;
                    streams[t] = drop.stream(head * T + t);
                }
                for (int i = 0; i < T; i += 16) {  // 16 queries: their gradient
                    const int keys = (i + 16 + 31) / 32 * 32;
                    multiply(scores, R, q + (size_t)i * D, D, kt, 2 * R, D / 32, keys / 16);
                    multiply(dw, R, g + (size_t)i * D, D, vt, 2 * R, D / 32, keys / 16);
                    for (int r = 0; r < 16; r++)
                        for (int j = 0; j < keys; j += 16) {
                            const size_t at = (size_t)r * R + j;
                            vec w = _mm512_maskz_mov_ps(up_to(j, i + r), exp(load(scores + at) - all(logs[i + r])));
                            vec d = drop.apply(streams[i + r], j, load(dw + at));
                            store(ds + at, w * (d - all(delta[i + r])));
                        }
                    multiply(dq + (size_t)i * D, D, ds, R, kp, 2 * D, keys / 32, D / 16);
                }
                for (int j = 0; j < T; j += 16) {  // 16 keys: their gradient and that of their values
                    const int first = j / 32 * 32, queries = R - first;
                    multiply(scores, R, k + (size_t)j * D, D, qt + 2 * first, 2 * R, D / 32, queries / 16);
                    multiply(dw, R, v + (size_t)j * D, D, gt + 2 * first, 2 * R, D / 32, queries / 16);
                    for (int r = 0; r < 16; r++)
                        for (int i = 0; i < queries; i += 16) {
                            const size_t at = (size_t)r * R + i;
                            const int query = first + i;
                            vec w = _mm512_maskz_mov_ps(from(query, j + r), exp(load(scores + at) - load(logs + query)));
                            vec d = load(dw + at), kept = w;
                            if (drop.active()) {
                                __mmask16 m = drop.kept(_mm512_add_epi32(_mm512_loadu_si512(streams + query), _mm512_set1_epi32(j + r)));
                                d = drop.apply(m, d), kept = drop.apply(m, w);
                            }
                            store(weights + at, kept);
                            store(ds + at, w * (d - load(delta + query)));
                        }
                    multiply(dv + (size_t)j * D, D, weights, R, gp + (size_t)first * D, 2 * D, queries / 32, D / 16);
                    multiply(dk + (size_t)j * D, D, ds, R, qp + (size_t)first * D, 2 * D, queries / 32, D / 16);
                }
                bf16 *own_dq = grad.qkv + s.projected_start(b, h), *own_dk = own_dq + s.stride(), *own_dv = own_dk + s.stride();
                prepare_backward(own_dq, q_gain, dq, q_rms, own_q, s, in.for_q, scale);
                prepare_backward(own_dk, k_gain, dk, k_rms, own_k, s, in.for_k, 1.0f);
                for (int t = 0; t < T; t++)
                    for (int d = 0; d < D; d += 16)
                        store(own_dv + (size_t)t * 3 * s.stride() + d, load(dv + (size_t)t * D + d));
            }
    }
}
