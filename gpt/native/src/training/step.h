// The loss of a batch and its gradients: gpt/model/gpt.py forward and backward. Everything but attention needs only one
// row of the residual stream. So a task computes all of that for a strip of rows, from one block's attention to the
// next one's, while the strip is in the nearest caches. Attention is computed by heads. Gradients of weights, which
// need all rows, are computed beside the attention of the block below.
//
// The sequence of phases, for blocks 0 and 1 of two (a line is a phase, and / separates tasks of different kinds):
//     pack weights
//     embed, project 0                                                             by strips
//     attend 0                                                                     by heads
//     finish 0, project 1                                                          by strips
//     attend 1                                                                     by heads
//     finish 1, head; backward: head, finish 1                                     by strips
//     backward: attend 1 / weights of the head and of block 1 behind its heads     by heads, and by outputs
//     backward: project 1, finish 0                                                by strips
//     backward: attend 0 / weights that project 1, and of block 0 behind its heads by heads, and by outputs
//     backward: project 0, embed                                                   by strips
//     weights that project 0 / embeddings                                          by outputs, and by columns
#pragma once
#include "../team.h"
#include "head.h"
#include "mlp.h"
#include <cfloat>

// A linear layer, and the factors of its weight gradient.
struct LayerFactors {
    const Linear* layer;
    const Factors* factors;
};

// Computes a batch with a team; each worker has a copy.
struct GradientProgram {
    // Not const, by which clang would not take the structure as trivially copyable.
    TrainedModel model;
    MicroBatch batch;
    Plan plan;

    // A configuration may have an epsilon so small that it is 0 as a float. The smallest normal float takes its place,
    // since the inverse root of 0 would make the padding NaN, whose rows are zero.
    float norm_eps() const { return std::max(model.norm_eps, FLT_MIN); }
    Norm norm() const { return {model.is_layer_norm != 0, norm_eps()}; }

    // The dropouts of a model, in the order of MicroBatch::seeds: after the embedding, and for each block three.
    Dropout embedding_dropout() const { return Dropout(batch.seeds[0], model.dropout); }
    uint32_t weights_seed(int block) const { return batch.seeds[1 + 3 * block]; }
    Dropout attention_dropout(int block) const { return Dropout(batch.seeds[2 + 3 * block], model.dropout); }
    Dropout mlp_dropout(int block) const { return Dropout(batch.seeds[3 + 3 * block], model.dropout); }

    const BlockTensors& weights(int block) const { return model.weights.blocks[block]; }
    const BlockTensors& gradients(int block) const { return model.gradients.blocks[block]; }
    bool is_last(int block) const { return block + 1 == model.layers; }
    MlpShape mlp_shape(int block) const {
        const BlockLinears& linears = plan.linears[block];
        return {model.activation, linears.down.inputs, linears.up.outputs()};
    }

    // The first row of the stream that is padding, or the strip's first row after that.
    int first_padding(int strip) const { return std::max(plan.positions, strip * STRIP); }

    AttentionArguments attention(int block) const {
        const BlockMemory& memory = plan.blocks[block];
        AttentionArguments a = {};
        a.qkv = memory.qkv;
        a.y = memory.y;
        a.dy = plan.dy;
        a.dqkv = plan.dqkv;
        a.q_gain = weights(block).q_norm;
        a.k_gain = weights(block).k_norm;
        a.cosine = model.cosine;
        a.sine = model.sine;
        a.log_sums = memory.log_sums;
        a.dq_gain = plan.dq_norm;
        a.dk_gain = plan.dk_norm;
        a.eps = norm_eps();
        a.dropout = model.weights_dropout;
        a.seed = weights_seed(block);
        a.shape = plan.shape;
        return a;
    }

    NormTensors ln_1(int block) const { return {weights(block).ln_1, weights(block).ln_1_bias}; }
    NormTensors ln_2(int block) const { return {weights(block).ln_2, weights(block).ln_2_bias}; }
    NormTensors ln_f() const { return {model.weights.ln_f, model.weights.ln_f_bias}; }

    // x = drop(wte(idx) + wpe), of GPT.forward. Rows of padding are 0 here, and become what biases make of them; their
    // gradients are 0 everywhere.
    void embed(int strip) const {
        const int C = model.width;
        const Dropout drop = embedding_dropout();
        const Stream& stream = plan.blocks[0].input;
        for (int n = strip * STRIP; n < (strip + 1) * STRIP; n++) {
            float* x = stream.row(n);
            if (n >= plan.positions) {
                memset(x, 0, C * sizeof(float));
                continue;
            }
            const float* token = model.weights.wte + (size_t)batch.inputs[n] * C;
            memcpy(x, token, C * sizeof(float));
            if (model.added) {
                const float* position = model.added + (size_t)(n % batch.length) * C;
                for (int c = 0; c < C; c += simd::LANES)
                    simd::store(x + c, simd::load(x + c) + simd::load(position + c));
            }
            drop_row(x, x, n, C, drop);
        }
    }

    // The norm of a strip of the stream, to elements.
    void norm_strip(element* out, const Stream& x, int strip, const NormTensors& parameters) const {
        for (int r = 0; r < STRIP; r++) x.norm(out + (size_t)r * model.width, strip * STRIP + r, parameters, norm());
    }

    // q, k, v = c_q(ln_1(x)), c_k(ln_1(x)), c_v(ln_1(x)), of Block.forward and Attention.forward
    void project(int block, int strip, const WorkerScratch& scratch) const {
        const Linear& qkv = plan.linears[block].qkv;
        element* out = plan.blocks[block].qkv + (size_t)strip * STRIP * qkv.outputs();
        norm_strip(scratch.narrow, plan.blocks[block].input, strip, ln_1(block));
        alignas(64) float y[STRIP * CHUNK];
        for (int first = 0; first < qkv.outputs(); first += CHUNK) {
            const int columns = linear_chunk(y, qkv, scratch.narrow, model.width, first);
            store_chunk(out + first, qkv.outputs(), y, columns);
        }
    }

    // out = x + dropout(linear(y)), of rows of a strip: the end of Attention.forward (resid_dropout(c_proj(y))) and of
    // MLP.forward and SwiGLU.forward (dropout(c_proj(hidden))), and Block.forward's addition. y: (STRIP, layer.inputs).
    void add_linear(const Linear& layer, const Stream& out, const Stream& x, const element* y, int strip,
                    const Dropout& drop) const {
        alignas(64) float result[STRIP * CHUNK];
        for (int first = 0; first < layer.outputs(); first += CHUNK) {
            const int columns = linear_chunk(result, layer, y, layer.inputs, first);
            for (int r = 0; r < STRIP; r++) {
                const int n = strip * STRIP + r;
                add_dropped(out.row(n) + first, x.row(n) + first, result + r * CHUNK, n, first, columns, drop);
            }
        }
    }

    // x = x + attn(ln_1(x)); x = x + mlp(ln_2(x)), of Block.forward, from the results of the heads on
    void finish_block(int block, int strip, const WorkerScratch& scratch) const {
        const BlockLinears& linears = plan.linears[block];
        const BlockMemory& memory = plan.blocks[block];
        const Stream& next = is_last(block) ? *plan.last : plan.blocks[block + 1].input;
        const MlpShape shape = mlp_shape(block);
        element* y = memory.y + (size_t)strip * STRIP * model.width;
        element* up = memory.up + (size_t)strip * STRIP * shape.up_outputs;
        // Attention leaves the padding unwritten, but the matmuls read it.
        for (int n = first_padding(strip); n < (strip + 1) * STRIP; n++)
            memset((void*)(memory.y + (size_t)n * model.width), 0, model.width * sizeof(element));
        add_linear(linears.proj, memory.middle, memory.input, y, strip, attention_dropout(block));
        norm_strip(scratch.narrow, memory.middle, strip, ln_2(block));
        alignas(64) float outputs[STRIP * CHUNK];
        for (int first = 0; first < shape.up_outputs; first += CHUNK) {
            const int columns = linear_chunk(outputs, linears.up, scratch.narrow, model.width, first);
            activate_strip(scratch.hidden, up, outputs, first, columns, shape);
        }
        add_linear(linears.down, next, memory.middle, scratch.hidden, strip, mlp_dropout(block));
    }

    // logits = lm_head(ln_f(x)), of GPT.forward
    void head(int strip, const WorkerScratch& scratch) const {
        const int width = plan.head->outputs();
        norm_strip(scratch.narrow, *plan.last, strip, ln_f());
        alignas(64) float y[STRIP * CHUNK];
        for (int first = 0; first < width; first += CHUNK) {
            const int columns = linear_chunk(y, *plan.head, scratch.narrow, model.width, first);
            copy_chunk(scratch.logits + first, width, y, columns);
        }
    }

    // Writes the logits of a strip for the caller, without padding.
    void store_logits(int strip, const WorkerScratch& scratch) const {
        const int end = std::min(plan.positions, (strip + 1) * STRIP);
        for (int n = strip * STRIP; n < end; n++) {
            const float* row = scratch.logits + (size_t)(n % STRIP) * plan.head->outputs();
            memcpy(batch.logits + (size_t)n * model.vocab, row, model.vocab * sizeof(float));
        }
    }

    // Adds the gradient through a norm of x to that of the stream, plan.dx. scratch.rows holds the gradient of the
    // norm's result, which is computed again and stored as a factor of the weight gradient of the layer that read it.
    // dnorm: what each strip adds to the gradients of the norm's parameters, a row for each strip.
    void norm_strip_backward(const Stream& x, const NormTensors& dnorm, const NormTensors& parameters,
                             const Factors& factors, int strip, const WorkerScratch& scratch) const {
        const int C = model.width;
        const bool is_centered = model.is_layer_norm != 0;
        NormTensors sums = {dnorm.gain + (size_t)strip * C, nullptr};
        memset(sums.gain, 0, C * sizeof(float));
        if (dnorm.bias) {
            sums.bias = dnorm.bias + (size_t)strip * C;
            memset(sums.bias, 0, C * sizeof(float));
        }
        for (int r = 0; r < STRIP; r++) {
            const int n = strip * STRIP + r;
            element* normed = scratch.narrow + (size_t)r * C;
            const float* dnormed = scratch.rows + (size_t)r * C;
            x.norm_backward(plan.dx + (size_t)n * C, sums, normed, n, dnormed, parameters, is_centered);
        }
        factors.store_right(strip, 0, C, scratch.narrow, C);
    }

    // dx = dy W of a layer that reads the result of a norm, into scratch.rows, where norm_strip_backward reads it.
    void linear_backward(const Linear& layer, const element* dy, const WorkerScratch& scratch) const {
        alignas(64) float dx[STRIP * CHUNK];
        for (int first = 0; first < layer.inputs; first += CHUNK) {
            const int columns = linear_chunk_backward(dx, layer, dy, first);
            copy_chunk(scratch.rows + first, model.width, dx, columns);
        }
    }

    // The losses of a strip, and its gradient from the logits to the stream before the last norm.
    void head_backward(int strip, const WorkerScratch& scratch) const {
        const int width = plan.head->outputs();
        LossSums sums = {};
        for (int r = 0; r < STRIP; r++) {
            const int n = strip * STRIP + r;
            element* dlogits = scratch.wide + (size_t)r * width;
            if (n >= plan.positions) {
                memset((void*)dlogits, 0, width * sizeof(element));
                continue;
            }
            float* logits = scratch.logits + (size_t)r * width;
            const LossSums of_row = compute_losses(dlogits, logits, n, model, batch);
            sums.cross_entropy += of_row.cross_entropy;
            sums.z_loss += of_row.z_loss;
        }
        plan.losses[strip] = sums;
        plan.head_factors->store_left(strip, 0, width, scratch.wide, width);
        linear_backward(*plan.head, scratch.wide, scratch);
        memset(plan.dx + (size_t)strip * STRIP * model.width, 0, STRIP * model.width * sizeof(float));
        norm_strip_backward(*plan.last, plan.dln_f, ln_f(), *plan.head_factors, strip, scratch);
    }

    // Computes the gradient of what a layer of a block adds to the stream, into scratch.narrow. It is also stored as a
    // factor of that layer's weight gradient.
    void drop_strip(const Factors& factors, int strip, const WorkerScratch& scratch, const Dropout& drop) const {
        const int C = model.width;
        for (int r = 0; r < STRIP; r++) {
            const int n = strip * STRIP + r;
            drop_row(scratch.narrow + (size_t)r * C, plan.dx + (size_t)n * C, n, C, drop);
        }
        factors.store_left(strip, 0, C, scratch.narrow, C);
    }

    // Of x = x + mlp(ln_2(x)), from the gradient of the result to that of x, in place.
    void mlp_backward(int block, int strip, const WorkerScratch& scratch) const {
        const BlockLinears& linears = plan.linears[block];
        const BlockMemory& memory = plan.blocks[block];
        const BlockFactors& factors = *plan.factors;
        const MlpShape shape = mlp_shape(block);
        const element* up = memory.up + (size_t)strip * STRIP * shape.up_outputs;
        drop_strip(factors.down, strip, scratch, mlp_dropout(block));
        alignas(64) float dhidden[STRIP * CHUNK];
        for (int first = 0; first < shape.hidden; first += CHUNK) {
            const int columns = linear_chunk_backward(dhidden, linears.down, scratch.narrow, first);
            activate_strip_backward(scratch.wide, scratch.hidden, up, dhidden, first, columns, shape);
        }
        factors.down.store_right(strip, 0, shape.hidden, scratch.hidden, shape.hidden);
        factors.up.store_left(strip, 0, shape.up_outputs, scratch.wide, shape.up_outputs);
        linear_backward(linears.up, scratch.wide, scratch);
        norm_strip_backward(memory.middle, plan.dln_2, ln_2(block), factors.up, strip, scratch);
    }

    // From the gradient of a block's result to that of the stream behind its heads, and to that of their results, dy.
    void finish_block_backward(int block, int strip, const WorkerScratch& scratch) const {
        const Linear& proj = plan.linears[block].proj;
        const Factors& factors = plan.factors->proj;
        const int C = model.width;
        const size_t start = (size_t)strip * STRIP * C;
        mlp_backward(block, strip, scratch);
        drop_strip(factors, strip, scratch, attention_dropout(block));
        alignas(64) float dy[STRIP * CHUNK];
        for (int first = 0; first < C; first += CHUNK) {
            const int columns = linear_chunk_backward(dy, proj, scratch.narrow, first);
            store_chunk(plan.dy + start + first, C, dy, columns);
        }
        factors.store_right(strip, 0, C, plan.blocks[block].y + start, C);
    }

    // From the gradients of queries, keys and values to that of the stream before the block.
    void project_backward(int block, int strip, const WorkerScratch& scratch) const {
        const Linear& qkv = plan.linears[block].qkv;
        const Factors& factors = plan.factors->qkv;  // of the block whose turn it is
        const int width = qkv.outputs();
        // Attention leaves the padding unwritten, but the matmuls read it.
        for (int n = first_padding(strip); n < (strip + 1) * STRIP; n++)
            memset((void*)(plan.dqkv + (size_t)n * width), 0, width * sizeof(element));
        const element* dqkv = plan.dqkv + (size_t)strip * STRIP * width;
        factors.store_left(strip, 0, width, dqkv, width);
        linear_backward(qkv, dqkv, scratch);
        norm_strip_backward(plan.blocks[block].input, plan.dln_1, ln_1(block), factors, strip, scratch);
    }

    // The gradient of the embeddings' sum, in place.
    void embed_backward(int strip) const {
        const Dropout drop = embedding_dropout();
        for (int n = strip * STRIP; n < (strip + 1) * STRIP; n++) {
            float* dx = plan.dx + (size_t)n * model.width;
            drop_row(dx, dx, n, model.width, drop);
        }
    }

    // Sums 16 columns from `first` on of `count` rows into a gradient.
    void sum_rows(float* gradient, const float* rows, int count, int width, int first) const {
        for (int c = first; c < first + 16; c += simd::LANES) {
            simd::floats sum = batch.adds ? simd::load(gradient + c) : simd::floats{};
            for (int i = 0; i < count; i++) sum += simd::load(rows + (size_t)i * width + c);
            simd::store(gradient + c, sum);
        }
    }

    // Writes zeros to 16 columns from `first` on of a gradient of embeddings, (rows, C).
    void clear_columns(float* gradient, int rows, int first) const {
        for (int i = 0; i < rows; i++) memset(gradient + (size_t)i * model.width + first, 0, 16 * sizeof(float));
    }

    // The gradients of 16 columns of the embeddings from `first` on. A tied weight is not cleared: an earlier phase has
    // computed its gradient as the head's.
    void embedding_gradients(int first) const {
        const int C = model.width;
        const bool is_tied = model.weights.wte == model.weights.lm_head;
        float *wte = model.gradients.wte, *wpe = model.gradients.wpe;
        if (!batch.adds && !is_tied) clear_columns(wte, model.vocab, first);
        if (!batch.adds && wpe) clear_columns(wpe, model.block_size, first);
        for (int n = 0; n < plan.positions; n++) {
            const float* dx = plan.dx + (size_t)n * C + first;
            add_row(wte + (size_t)batch.inputs[n] * C + first, dx, 16);
            if (wpe) add_row(wpe + (size_t)(n % batch.length) * C + first, dx, 16);
        }
    }

    // Packs the weights of block number i, or of the head after the last one.
    void pack(int i) const {
        if (i == model.layers) return pack_layer(*plan.head);
        BlockLinears& linears = plan.linears[i];
        for (Linear* layer : {&linears.qkv, &linears.proj, &linears.up, &linears.down}) pack_layer(*layer);
    }

    // From the results of a block's heads to what the next heads need, or to the logits. The last block's strips turn
    // around: they are still in the caches when the backward pass begins with them.
    void finish_strip(int block, int strip, const WorkerScratch& scratch) const {
        finish_block(block, strip, scratch);
        if (!is_last(block)) return project(block + 1, strip, scratch);
        head(strip, scratch);
        if (batch.logits) return store_logits(strip, scratch);
        head_backward(strip, scratch);
        finish_block_backward(block, strip, scratch);
    }

    void forward(Team& team) const {
        team.run(model.layers + 1, [&](int i) { pack(i); });
        team.run(plan.strips, [&](int strip) {
            [[maybe_unused]] const MatmulScope scope;
            embed(strip);
            project(0, strip, plan.workers[team.worker]);
        });
        for (int block = 0; block < model.layers; block++) {
            team.run(plan.heads, [&](int i) {
                [[maybe_unused]] const MatmulScope scope;
                attend_head(attention(block), plan.workers[team.worker].forward, head_of(plan.shape, i));
            });
            team.run(plan.strips, [&](int strip) {
                [[maybe_unused]] const MatmulScope scope;
                finish_strip(block, strip, plan.workers[team.worker]);
            });
        }
    }

    // How many tasks `weight_gradients` has for this block. Every worker computes this, also one that comes late, so
    // that it does not read the layers in the plan's memory. (C, 3 C and outputs are multiples of 32.)
    int weight_gradient_tasks(int block) const {
        const int C = model.width;
        const int above = is_last(block) ? plan.head_outputs : 3 * C;
        const int below = block < 0 ? 0 : plan.up_outputs + 2 * C;  // up; down and proj
        return (above + below) / 32;
    }

    // A task: 32 outputs of the weight gradients whose factors are complete when the heads of a block are computed
    // backward. These are the layers behind its heads, and the layer above that reads the block's result: the
    // projection before the heads of the next block, or the model's head. Block -1 has only the layer above.
    void weight_gradients(int task, int block, const WorkerScratch& scratch) const {
        const BlockFactors& factors = *plan.factors;
        LayerFactors complete[4] = {};
        if (is_last(block)) complete[0] = {plan.head, plan.head_factors};
        else complete[0] = {&plan.linears[block + 1].qkv, &factors.qkv};
        if (block >= 0) {
            const BlockLinears& linears = plan.linears[block];
            complete[1] = {&linears.up, &factors.up};
            complete[2] = {&linears.down, &factors.down};
            complete[3] = {&linears.proj, &factors.proj};
        }
        const LayerFactors* one = complete;
        for (; task >= one->layer->outputs() / 32; one++) task -= one->layer->outputs() / 32;
        weight_gradient(*one->layer, *one->factors, task, scratch.sums, batch.adds != 0);
    }

    // 16 columns of the gradients of a norm's parameters.
    void norm_gradients(const NormTensors& gradient, const NormTensors& sums, int first) const {
        sum_rows(gradient.gain, sums.gain, plan.strips, model.width, first);
        if (gradient.bias) sum_rows(gradient.bias, sums.bias, plan.strips, model.width, first);
    }

    // The same of all norms whose gradients are complete when the heads of a block are computed backward.
    void complete_norm_gradients(int first, int block) const {
        if (is_last(block)) {
            norm_gradients({model.gradients.ln_f, model.gradients.ln_f_bias}, plan.dln_f, first);
        } else {
            const BlockTensors& above = gradients(block + 1);
            norm_gradients({above.ln_1, above.ln_1_bias}, plan.dln_1, first);
        }
        if (block < 0) return;
        norm_gradients({gradients(block).ln_2, gradients(block).ln_2_bias}, plan.dln_2, first);
    }

    // The gradients of the gains of queries and keys, which all heads of a block share.
    void head_gain_gradients(int block) const {
        const int D = plan.shape.head_dim;
        const BlockTensors& gains = gradients(block);
        if (!gains.q_norm) return;
        for (int first = 0; first < D; first += 16) {
            sum_rows(gains.q_norm, plan.dq_norm, plan.heads, D, first);
            sum_rows(gains.k_norm, plan.dk_norm, plan.heads, D, first);
        }
    }

    // The heads of a block; beside them, the gradients of layers and norms that are complete by then.
    void heads_backward(Team& team, int block) const {
        const int weight_tasks = weight_gradient_tasks(block), columns = model.width / 16;
        team.run(plan.heads + weight_tasks + columns, [&](int i) {
            [[maybe_unused]] const MatmulScope scope;
            const WorkerScratch& scratch = plan.workers[team.worker];
            const int weight = i - plan.heads, column = weight - weight_tasks;
            if (i < plan.heads) attend_head_backward(attention(block), scratch.backward, i);
            else if (weight < weight_tasks) weight_gradients(weight, block, scratch);
            else complete_norm_gradients(16 * column, block);
        });
    }

    // From the heads of a block down to those of the block below, or to the embeddings.
    void strips_backward(Team& team, int block) const {
        team.run(plan.strips + 1, [&](int strip) {
            [[maybe_unused]] const MatmulScope scope;
            const WorkerScratch& scratch = plan.workers[team.worker];
            if (strip == plan.strips) return head_gain_gradients(block);  // a task beside them
            project_backward(block, strip, scratch);
            if (block > 0) finish_block_backward(block - 1, strip, scratch);
            else embed_backward(strip);
        });
    }

    // What is left when all strips are done: the layer and the norm before the first heads, and the embeddings.
    void first_gradients(Team& team) const {
        const int weight_tasks = weight_gradient_tasks(-1), columns = model.width / 16;
        team.run(weight_tasks + 2 * columns, [&](int i) {
            [[maybe_unused]] const MatmulScope scope;
            const int embedding = i - weight_tasks, norm_column = embedding - columns;
            if (i < weight_tasks) weight_gradients(i, -1, plan.workers[team.worker]);
            else if (embedding < columns) embedding_gradients(16 * embedding);
            else complete_norm_gradients(16 * norm_column, -1);
        });
    }

    void operator()(Team& team) const {
        forward(team);
        if (batch.logits) return;  // and no gradients
        for (int block = model.layers - 1; block >= 0; block--) {
            heads_backward(team, block);
            strips_backward(team, block);
        }
        first_gradients(team);
    }
};
