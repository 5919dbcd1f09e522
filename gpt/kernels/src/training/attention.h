// Causal attention, forward and backward, one head of one sequence at a time, so that its queries, keys, values and
// scores stay in the processor's cache. It includes the norm of queries and keys and their rotation.
//
// The forward pass keeps the logarithm of each query's softmax sum; the backward pass recomputes the weights from it
// (Dao et al. 2022, 2205.14135, appendix B.4).
#pragma once
#include "../arena.h"
#include "../parallel.h"
#include "dropout.h"
#include "head_transform.h"
#include "matmul.h"

struct AttentionInputs {
    const element* qkv;
    HeadTransform q, k;
};

// A mask of the lanes that are at most `last`, counted from `first`.
inline simd::ints up_to(int first, int last) { return simd::lanes() <= last - first; }

// Calls work(b, h) for the heads that belong to a worker.
template <class Work> inline void for_each_head(const Worker& w, const AttentionShape& s, Work work) {
    const Range share = w.share(s.batch * s.heads);
    for (int i = share.first; i < share.end; i++) work(i / s.heads, i % s.heads);
}

// --- forward -------------------------------------------------------------------------------------

struct ForwardScratch {
    element *q, *k, *v, *packed_k, *packed_v, *weights;
    float *scores, *out, *inverse_rms;

    ForwardScratch(Arena& arena, const AttentionShape& s)
        : q(arena.alloc<element>(s.head_size())), k(arena.alloc<element>(s.head_size())), v(arena.alloc<element>(s.head_size())),
          packed_k(arena.alloc<element>(s.head_size())), packed_v(arena.alloc<element>(s.head_size())),
          weights(arena.alloc<element>(16 * (size_t)s.rows())), scores(arena.alloc<float>(16 * (size_t)s.rows())),
          out(arena.alloc<float>(16 * (size_t)s.head_dim)), inverse_rms(arena.alloc<float>(s.rows())) {}
};

// Turns a row of scores into weights, not normalized, after dropout; returns their sum before dropout, and its logarithm.
inline float softmax_row(element* weights, float* log_sum, const float* scores, int query, int keys, const Dropout& drop, uint32_t stream) {
    using namespace simd;
    floats top = broadcast(-INFINITY), total = {};
    for (int j = 0; j <= query; j += LANES) {
        const floats row = load(scores + j);
        top = max(top, j + LANES <= query + 1 ? row : select(up_to(j, query), row, broadcast(-INFINITY)));
    }
    const float peak = reduce_max(top);
    for (int j = 0; j < keys; j += LANES) {
        floats e = {};
        if (j <= query) e = exp(load(scores + j) - peak);
        if (j + LANES > query + 1) e = select(up_to(j, query), e, floats{});
        total += e;
        store(weights + j, drop.apply(stream, j, e));
    }
    const float result = reduce_add(total);
    *log_sum = peak + std::log(result);
    return result;
}

inline void attend_head(element* y, float* log_sums, const element* qkv, const AttentionInputs& in, const AttentionShape& s,
                        const ForwardScratch& scratch, const Dropout& drop, uint32_t first_stream) {
    using namespace simd;
    const int D = s.head_dim, R = s.rows(), T = s.length;
    transform_head(scratch.q, scratch.inverse_rms, qkv, s, in.q);
    transform_head(scratch.k, scratch.inverse_rms, qkv + s.stride(), s, in.k);
    copy_head(scratch.v, qkv + 2 * s.stride(), 3 * (size_t)s.stride(), s);
    const element *k = pack_transposed(scratch.packed_k, scratch.k, R, D), *v = pack(scratch.packed_v, scratch.v, R, D);
    for (int i = 0; i < T; i += 16) {
        const int keys = round_up(i + 16, 32);
        float total[16], ignored;
        matmul(scratch.scores, R, scratch.q + (size_t)i * D, D, k, PAIR * R, D / 32, keys / 16);
        for (int r = 0; r < 16; r++)
            total[r] = softmax_row(scratch.weights + (size_t)r * R, i + r < T ? log_sums + i + r : &ignored, scratch.scores + (size_t)r * R, i + r, keys,
                                   drop, drop.stream(first_stream + i + r));
        matmul(scratch.out, D, scratch.weights, R, v, PAIR * D, keys / 32, D / 16);
        for (int r = 0; r < 16 && i + r < T; r++)
            for (int d = 0; d < D; d += LANES)
                store(y + (size_t)(i + r) * s.stride() + d, load(scratch.out + (size_t)r * D + d) * (1.0f / total[r]));
    }
}

inline void attention_forward(element* y, float* log_sums, const AttentionInputs& in, const AttentionShape& s, const Dropout& drop, int threads) {
    const Scratch<ForwardScratch> memory(threads, s);
    parallel(threads, [&](const Worker& w) {
        [[maybe_unused]] const MatmulScope scope;
        const ForwardScratch scratch = memory.of(w.index, s);
        for_each_head(w, s, [&](int b, int h) {
            const size_t head = (size_t)b * s.heads + h;
            attend_head(y + s.result_start(b, h), log_sums + head * s.length, in.qkv + s.qkv_start(b, h), in, s, scratch, drop, (uint32_t)(head * s.length));
        });
    });
}
