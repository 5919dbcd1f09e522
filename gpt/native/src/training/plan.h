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

// What a worker needs for one strip, or for one head.
struct WorkerScratch {
    element* narrow;  // (STRIP, C): the result of a norm, or the gradient of a layer's result
    element* hidden;  // (STRIP, inputs of down)
    element* wide;    // (STRIP, outputs of up) or (STRIP, logits): gradients
    float* rows;      // (STRIP, C): the gradient of a norm's result
    float* logits;    // (STRIP, logits)
    float* sums;      // (32, the most inputs of a layer): of a weight gradient
    ForwardScratch forward;
    BackwardScratch backward;
};

// A linear layer of some parts; gradients: where those of the parameters are written.
inline Linear plan_linear(Arena& arena, int parts, int part_outputs, int part_inputs, const LinearTensors& parameters,
                          const LinearTensors& gradients) {
    Linear layer = {};
    layer.parameters = parameters;
    layer.gradients = gradients;
    layer.parts = parts;
    layer.part_outputs = part_outputs;
    layer.part_inputs = part_inputs;
    layer.padded_outputs = round_up(part_outputs, 32);
    layer.inputs = round_up(part_inputs, 32);
    layer.joined = arena.alloc<element>(layer.joined_size());
    layer.forward = arena.alloc<element>(layer.forward_size());
    layer.backward = arena.alloc<element>(layer.backward_size());
    layer.bias = layer.has_bias() ? arena.alloc<float>(layer.outputs()) : nullptr;
    return layer;
}

inline Linear plan_head(Arena& arena, const TrainedModel& model) {
    return plan_linear(arena, 1, model.vocab, model.width, {{model.weights.lm_head}, {}},
                       {{model.gradients.lm_head}, {}});
}

// The parameters of a block's layers, or their gradients.
inline LinearTensors qkv_tensors(const BlockTensors& b) {
    return {{b.c_q, b.c_k, b.c_v}, {b.c_q_bias, b.c_k_bias, b.c_v_bias}};
}
inline LinearTensors proj_tensors(const BlockTensors& b) { return {{b.c_proj}, {b.c_proj_bias}}; }
inline LinearTensors up_tensors(const BlockTensors& b, bool is_gated) {
    if (!is_gated) return {{b.c_fc}, {b.c_fc_bias}};
    return {{b.c_gate, b.c_fc}, {b.c_gate_bias, b.c_fc_bias}};
}
inline LinearTensors down_tensors(const BlockTensors& b) { return {{b.mlp_c_proj}, {b.mlp_c_proj_bias}}; }

inline BlockLinears plan_linears(Arena& arena, const TrainedModel& model, int block) {
    const BlockTensors &w = model.weights.blocks[block], &g = model.gradients.blocks[block];
    const int C = model.width, F = model.hidden;
    const bool is_gated = model.activation == GATED_SILU;
    // Braces evaluate these in their order, which is the order of their memory.
    return {plan_linear(arena, 3, C, C, qkv_tensors(w), qkv_tensors(g)),
            plan_linear(arena, 1, C, C, proj_tensors(w), proj_tensors(g)),
            plan_linear(arena, is_gated ? 2 : 1, F, C, up_tensors(w, is_gated), up_tensors(g, is_gated)),
            plan_linear(arena, 1, C, F, down_tensors(w), down_tensors(g))};
}

// rows: R; log_sums: how many.
inline BlockMemory plan_block(Arena& arena, const BlockLinears& linears, int rows, int width, size_t log_sums) {
    return {Stream(arena, rows, width),
            Stream(arena, rows, width),
            arena.alloc<element>((size_t)rows * 3 * width),
            arena.alloc<element>((size_t)rows * width),
            arena.alloc<element>((size_t)rows * linears.up.outputs()),
            arena.alloc<float>(log_sums)};
}

inline BlockFactors plan_factors(Arena& arena, int strips, const BlockLinears& linears) {
    return {Factors(arena, strips, linears.qkv), Factors(arena, strips, linears.proj),
            Factors(arena, strips, linears.up), Factors(arena, strips, linears.down)};
}

inline WorkerScratch plan_worker(Arena& arena, const BlockLinears& linears, const Linear& head,
                                 const AttentionShape& shape) {
    const int C = linears.proj.inputs, logits = head.outputs();
    const int widest = std::max(linears.up.outputs(), logits), most_inputs = std::max(C, linears.down.inputs);
    return {arena.alloc<element>((size_t)STRIP * C),
            arena.alloc<element>((size_t)STRIP * linears.down.inputs),
            arena.alloc<element>((size_t)STRIP * widest),
            arena.alloc<float>((size_t)STRIP * C),
            arena.alloc<float>((size_t)STRIP * logits),
            arena.alloc<float>((size_t)32 * most_inputs),
            ForwardScratch(arena, shape),
            BackwardScratch(arena, shape)};
}

// All memory of a step. Its arrays are in the arena, and so must not be read outside of tasks: a late worker may come
// when the memory is gone. The numbers that are needed there are here.
struct Plan {
    AttentionShape shape;
    int positions, strips;         // of the batch
    int heads;                     // of all its sequences; each is a task of attention
    int up_outputs, head_outputs;  // outputs of the layer `up` of a block, and of the head
    Linear* head;                  // one
    BlockLinears* linears;         // by blocks
    BlockMemory* blocks;           // by blocks
    Stream* last;                  // one: the residual stream before the last norm
    float* dx;              // (R, C), its gradient, which becomes that of the stream further up when it goes back
    element *dy, *dqkv;     // (R, C), (R, 3 C): gradients of attention's result and of its inputs
    BlockFactors* factors;  // one: those of the block whose turn it is
    Factors* head_factors;  // one
    NormTensors dln_1, dln_2, dln_f;  // (strips, C): what each strip adds to their gradients
    float *dq_norm, *dk_norm;         // (heads, D): what each head adds to them
    LossSums* losses;                 // by strips
    WorkerScratch* workers;           // by workers

    Plan(Arena& arena, const TrainedModel& model, const MicroBatch& batch, int threads)
        : shape{batch.batch, batch.length, model.heads, model.width / model.heads},
          positions(batch.batch * batch.length), strips(round_up(positions, STRIP) / STRIP),
          heads(batch.batch * model.heads) {
        const int C = model.width, R = strips * STRIP;
        head = arena.alloc<Linear>(1);
        put(head, 0, plan_head(arena, model));
        // The sizes of layers are read from copies, since there are no arrays yet while the memory is measured.
        Arena nowhere(nullptr);
        const BlockLinears sizes = plan_linears(nowhere, model, 0);
        const Linear head_sizes = plan_head(nowhere, model);
        up_outputs = sizes.up.outputs();
        head_outputs = head_sizes.outputs();
        linears = arena.alloc<BlockLinears>(model.layers);
        for (int i = 0; i < model.layers; i++) put(linears, i, plan_linears(arena, model, i));
        blocks = arena.alloc<BlockMemory>(model.layers);
        const size_t log_sums = (size_t)heads * batch.length;
        for (int i = 0; i < model.layers; i++) put(blocks, i, plan_block(arena, sizes, R, C, log_sums));
        last = arena.alloc<Stream>(1);
        put(last, 0, Stream(arena, R, C));
        dx = arena.alloc<float>((size_t)R * C);
        dy = arena.alloc<element>((size_t)R * C);
        dqkv = arena.alloc<element>((size_t)R * 3 * C);
        factors = arena.alloc<BlockFactors>(1);
        put(factors, 0, plan_factors(arena, strips, sizes));
        head_factors = arena.alloc<Factors>(1);
        put(head_factors, 0, Factors(arena, strips, head_sizes));
        const size_t norm_sums = (size_t)strips * C;
        for (NormTensors* sums : {&dln_1, &dln_2, &dln_f}) {
            sums->gain = arena.alloc<float>(norm_sums);
            sums->bias = model.weights.ln_f_bias ? arena.alloc<float>(norm_sums) : nullptr;
        }
        for (float** sums : {&dq_norm, &dk_norm}) *sums = arena.alloc<float>((size_t)heads * shape.head_dim);
        losses = arena.alloc<LossSums>(strips);
        workers = arena.alloc<WorkerScratch>(threads);
        for (int i = 0; i < threads; i++) put(workers, i, plan_worker(arena, sizes, head_sizes, shape));
    }
};
