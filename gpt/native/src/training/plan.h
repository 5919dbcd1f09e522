// The memory of a step. It is planned from the sizes of a model and of a batch: the same code measures and allocates.
#pragma once
#include "attention_backward.h"
#include "linear.h"
#include "model.h"
#include "rows.h"

// The linear layers of a block. Queries, keys and values are the parts of one; gate and up of a gated network, too.
struct BlockLinears {
    Linear qkv, proj, up, down;
};

// What a block keeps of the forward pass for the backward pass. R: positions of the batch, up to whole strips.
struct BlockMemory {
    Stream input, middle;   // the residual stream before attention, and before the feed-forward network
    element *qkv, *y, *up;  // (R, 3 C), (R, C), (R, outputs of up)
    float* log_sums;        // (B, H, T)
};

// The factors of the weight gradients of one block.
struct BlockFactors {
    Factors qkv, proj, up, down;
};

struct WorkerScratch {
    element *narrow, *hidden, *wide;  // (STRIP, C), (STRIP, inputs of down), (STRIP, outputs of up, or logits)
    float *rows, *logits, *sums;      // (STRIP, C), (STRIP, logits), (32, the most inputs of a layer)
    ForwardScratch forward;
    BackwardScratch backward;
};

template <class T, class Make> inline T* make_array(Arena& arena, int count, const Make& make) {
    T* array = arena.alloc<T>(count);
    for (int i = 0; i < count; i++) {
        const T made = make(i);
        if (array) memcpy((void*)(array + i), &made, sizeof made);
    }
    return array;
}

inline Linear plan_linear(Arena& arena, int part_outputs, int part_inputs, std::initializer_list<float*> weights,
                          std::initializer_list<float*> gradients) {
    Linear l = {};
    l.parts = (int)weights.size(), l.part_outputs = part_outputs, l.part_inputs = part_inputs;
    std::copy(weights.begin(), weights.end(), l.weights);
    std::copy(gradients.begin(), gradients.end(), l.gradients);
    l.padded_outputs = round_up(part_outputs, 32), l.inputs = round_up(part_inputs, 32);
    l.joined = arena.alloc<element>(l.joined_size());
    l.forward = arena.alloc<element>(l.forward_size());
    l.backward = arena.alloc<element>(l.backward_size());
    return l;
}

inline BlockLinears plan_linears(Arena& arena, const TrainedModel& m, int block) {
    const BlockTensors &w = m.weights.blocks[block], &g = m.gradients.blocks[block];
    const int C = m.width, F = m.hidden;
    return {plan_linear(arena, C, C, {w.c_q, w.c_k, w.c_v}, {g.c_q, g.c_k, g.c_v}),
            plan_linear(arena, C, C, {w.c_proj}, {g.c_proj}),
            m.activation == GATED_SILU ? plan_linear(arena, F, C, {w.c_gate, w.c_fc}, {g.c_gate, g.c_fc})
                                       : plan_linear(arena, F, C, {w.c_fc}, {g.c_fc}),
            plan_linear(arena, C, F, {w.mlp_c_proj}, {g.mlp_c_proj})};
}

inline BlockMemory plan_block(Arena& arena, const BlockLinears& l, int rows, int width, int log_sums) {
    return {Stream(arena, rows, width),
            Stream(arena, rows, width),
            arena.alloc<element>((size_t)rows * 3 * width),
            arena.alloc<element>((size_t)rows * width),
            arena.alloc<element>((size_t)rows * l.up.outputs()),
            arena.alloc<float>(log_sums)};
}

inline WorkerScratch plan_worker(Arena& arena, const BlockLinears& l, const Linear& head, const AttentionShape& shape) {
    const int C = l.proj.inputs, logits = head.outputs();
    return {arena.alloc<element>((size_t)STRIP * C),
            arena.alloc<element>((size_t)STRIP * l.down.inputs),
            arena.alloc<element>((size_t)STRIP * std::max(l.up.outputs(), logits)),
            arena.alloc<float>((size_t)STRIP * C),
            arena.alloc<float>((size_t)STRIP * logits),
            arena.alloc<float>((size_t)32 * std::max(C, l.down.inputs)),
            ForwardScratch(arena, shape),
            BackwardScratch(arena, shape)};
}

struct Plan {
    AttentionShape shape;
    int positions, strips, heads;  // of the batch; a head of one sequence is a task
    int up_outputs, head_outputs;  // of layers
    Linear* head;
    BlockLinears* linears;
    BlockMemory* blocks;
    Stream* last;           // the residual stream before the last norm
    float* dx;              // (R, C), its gradient, which becomes that of the stream further up in the backward pass
    element *dy, *dqkv;     // (R, C), (R, 3 C)
    BlockFactors* factors;  // those of the block whose turn it is
    Factors* head_factors;
    float *dln_1, *dln_2, *dln_f;  // gradients of gains, (strips, C), by strips
    float *dq_norm, *dk_norm;      // (heads, D), by heads
    LossSums* losses;              // by strips
    WorkerScratch* workers;

    Plan(Arena& arena, const TrainedModel& m, const MicroBatch& b, int threads)
        : shape{b.batch, b.length, m.heads, m.width / m.heads}, positions(b.batch * b.length),
          strips(round_up(positions, STRIP) / STRIP), heads(b.batch * m.heads) {
        const int C = m.width, R = strips * STRIP;
        head = make_array<Linear>(
            arena, 1, [&](int) { return plan_linear(arena, m.vocab, C, {m.weights.lm_head}, {m.gradients.lm_head}); });
        // A copy, since there is no array yet while the memory is measured.
        Arena nowhere(nullptr);
        const BlockLinears sizes = plan_linears(nowhere, m, 0);
        const Linear head_sizes = plan_linear(nowhere, m.vocab, C, {m.weights.lm_head}, {m.gradients.lm_head});
        up_outputs = sizes.up.outputs(), head_outputs = head_sizes.outputs();
        linears = make_array<BlockLinears>(arena, m.layers, [&](int i) { return plan_linears(arena, m, i); });
        blocks = make_array<BlockMemory>(arena, m.layers,
                                         [&](int) { return plan_block(arena, sizes, R, C, heads * b.length); });
        last = make_array<Stream>(arena, 1, [&](int) { return Stream(arena, R, C); });
        dx = arena.alloc<float>((size_t)R * C);
        dy = arena.alloc<element>((size_t)R * C);
        dqkv = arena.alloc<element>((size_t)R * 3 * C);
        factors = make_array<BlockFactors>(arena, 1, [&](int) {
            return BlockFactors{Factors(arena, strips, sizes.qkv), Factors(arena, strips, sizes.proj),
                                Factors(arena, strips, sizes.up), Factors(arena, strips, sizes.down)};
        });
        head_factors = make_array<Factors>(arena, 1, [&](int) { return Factors(arena, strips, head_sizes); });
        for (float** sums : {&dln_1, &dln_2, &dln_f}) *sums = arena.alloc<float>((size_t)strips * C);
        for (float** sums : {&dq_norm, &dk_norm}) *sums = arena.alloc<float>((size_t)heads * shape.head_dim);
        losses = arena.alloc<LossSums>(strips);
        workers = make_array<WorkerScratch>(arena, threads,
                                            [&](int) { return plan_worker(arena, sizes, head_sizes, shape); });
    }
};
