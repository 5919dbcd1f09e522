// The loss of a batch and its gradients: gpt/model/gpt.py forward and backward. Everything but attention needs only one
// row of the residual stream, so that a task computes all of that for a strip of rows, from one block's attention to
// the next one's, while it is in the nearest caches. Attention is computed by heads. Gradients of weights, which need
// all rows, are computed beside the attention of the block below.
#pragma once
#include "../ops/activations.h"
#include "../team.h"
#include "head.h"
#include <cfloat>

// The activation, c_proj's input, of `columns` outputs of `up` from `first` on; they are kept as elements.
inline void activate_strip(element* hidden, element* up, int up_width, const float* y, int first, int columns,
                           const Linear& down, int activation) {
    using namespace simd;
    const int F = down.inputs;
    for (int r = 0; r < STRIP; r++) {
        const float* row = y + (size_t)r * CHUNK;
        element *kept = up + (size_t)r * up_width, *out = hidden + (size_t)r * F;
        for (int c = 0; c < columns; c += LANES) store(kept + first + c, load(row + c));
        if (activation == GATED_SILU) {
            // silu(c_gate(x)) * c_fc(x): gates come first, and nothing is to be done before their other factor.
            for (int c = 0; c < columns; c += LANES)
                if (first + c >= F) {
                    const int j = first + c - F;
                    const floats gate = load(kept + j);
                    store(out + j, gate * sigmoid(gate) * load(kept + first + c));
                }
            continue;
        }
        with_activation(activation, [&](auto function) {
            for (int c = 0; c < columns; c += LANES) store(out + first + c, function.value(load(kept + first + c)));
        });
    }
}

// The backward pass of the same, of `columns` columns of c_proj's input: dx, their gradient; dup, that of `up`.
// Computes the activation again.
inline void activate_strip_backward(element* dup, element* hidden, const element* up, int up_width, const float* dx,
                                    int first, int columns, const Linear& down, int activation) {
    using namespace simd;
    const int F = down.inputs;
    for (int r = 0; r < STRIP; r++) {
        const float* d_row = dx + (size_t)r * CHUNK;
        const element* x = up + (size_t)r * up_width + first;
        element *dup_row = dup + (size_t)r * up_width + first, *out = hidden + (size_t)r * F + first;
        if (activation == GATED_SILU) {
            for (int c = 0; c < columns; c += LANES) {
                const floats gate = load(x + c), other = load(x + F + c), s = sigmoid(gate), d = load(d_row + c);
                store(out + c, gate * s * other);
                // The slope of SiLU, g s, is s (1 + g (1 - s)).
                store(dup_row + c, d * other * s * fma(gate, 1.0f - s, broadcast(1.0f)));
                store(dup_row + F + c, d * gate * s);
            }
            continue;
        }
        with_activation(activation, [&](auto function) {
            for (int c = 0; c < columns; c += LANES) {
                const floats value = load(x + c);
                store(out + c, function.value(value));
                store(dup_row + c, load(d_row + c) * function.slope(value));
            }
        });
    }
}

// Computes a batch with a team; each worker has a copy.
struct GradientProgram {
    // Not const, by which clang would not take the structure as trivially copyable.
    TrainedModel m;
    MicroBatch b;
    Plan p;

    // A configuration may have an epsilon so small that it is 0 as a float. The smallest normal float takes its place,
    // since the inverse root of 0 would make the padding NaN, whose rows are zero.
    float norm_eps() const { return std::max(m.norm_eps, FLT_MIN); }
    Norm norm() const { return {m.is_layer_norm != 0, norm_eps()}; }
    Dropout drop(int number) const { return Dropout(b.seeds[number], m.dropout); }
    const BlockTensors& weights(int block) const { return m.weights.blocks[block]; }
    const BlockTensors& gradients(int block) const { return m.gradients.blocks[block]; }

    AttentionArguments attention(int block) const {
        const BlockMemory& k = p.blocks[block];
        const BlockTensors& w = weights(block);
        return {k.qkv,  k.y,        p.dy,      p.dqkv,    w.q_norm,   w.k_norm,          m.cosine,
                m.sine, k.log_sums, p.dq_norm, p.dk_norm, norm_eps(), m.weights_dropout, b.seeds[1 + 3 * block],
                p.shape};
    }

    // x = drop(wte(idx) + wpe), of GPT.forward
    void embed(int strip) const {
        const int C = m.width;
        const Dropout drop = this->drop(0);
        const Stream& out = m.layers ? p.blocks[0].input : *p.last;
        for (int n = strip * STRIP; n < (strip + 1) * STRIP; n++) {
            float* x = out.row(n);
            if (n >= p.positions) {
                memset(x, 0, C * sizeof(float));
                continue;
            }
            const float* token = m.weights.wte + (size_t)b.inputs[n] * C;
            const float* position = m.added ? m.added + (size_t)(n % b.length) * C : nullptr;
            for (int c = 0; c < C; c += simd::LANES) {
                const simd::floats sum = simd::load(token + c);
                simd::store(x + c, position ? sum + simd::load(position + c) : sum);
            }
            drop_row(x, x, n, C, drop);
        }
    }

    // The norm of a strip of the stream, to elements.
    void norm_strip(element* out, const Stream& x, int strip, const float* gain) const {
        for (int r = 0; r < STRIP; r++) x.norm(out + (size_t)r * m.width, strip * STRIP + r, gain, norm());
    }

    // q, k, v = c_q(ln_1(x)), c_k(ln_1(x)), c_v(ln_1(x)), of Block and Attention
    void project(int block, int strip, const WorkerScratch& s) const {
        const Linear& l = p.linears[block].qkv;
        element* out = p.blocks[block].qkv + (size_t)strip * STRIP * l.outputs();
        norm_strip(s.narrow, p.blocks[block].input, strip, weights(block).ln_1);
        linear_strip(l, s.narrow, m.width, [&](int first, int columns, const float* y) {
            for (int r = 0; r < STRIP; r++)
                for (int c = 0; c < columns; c += simd::LANES)
                    simd::store(out + (size_t)r * l.outputs() + first + c, simd::load(y + r * CHUNK + c));
        });
    }

    // out = x + dropout(linear(y)), as both layers of a block end
    void add_linear(const Linear& l, const Stream& out, const Stream& x, const element* y, int strip,
                    const Dropout& drop) const {
        linear_strip(l, y, l.inputs, [&](int first, int columns, const float* result) {
            for (int r = 0; r < STRIP; r++) {
                const int n = strip * STRIP + r;
                add_dropped(out.row(n) + first, x.row(n) + first, result + r * CHUNK, n, first, columns, drop);
            }
        });
    }

    // x = x + attn(ln_1(x)); x = x + mlp(ln_2(x)), of Block, from the result of the heads on
    void finish_block(int block, int strip, const WorkerScratch& s) const {
        const BlockLinears& l = p.linears[block];
        const BlockMemory& k = p.blocks[block];
        const Stream& next = block + 1 < m.layers ? p.blocks[block + 1].input : *p.last;
        const int U = l.up.outputs();
        element *y = k.y + (size_t)strip * STRIP * m.width, *up = k.up + (size_t)strip * STRIP * U;
        // Attention writes no padding, which takes part in the matmuls.
        for (int n = std::max(p.positions, strip * STRIP); n < (strip + 1) * STRIP; n++)
            memset((void*)(k.y + (size_t)n * m.width), 0, m.width * sizeof(element));
        add_linear(l.proj, k.middle, k.input, y, strip, drop(2 + 3 * block));
        norm_strip(s.narrow, k.middle, strip, weights(block).ln_2);
        linear_strip(l.up, s.narrow, m.width, [&](int first, int columns, const float* result) {
            activate_strip(s.hidden, up, U, result, first, columns, l.down, m.activation);
        });
        add_linear(l.down, next, k.middle, s.hidden, strip, drop(3 + 3 * block));
    }

    // logits = lm_head(ln_f(x)), of GPT.forward
    void head(int strip, const WorkerScratch& s) const {
        const int width = p.head->outputs();
        norm_strip(s.narrow, *p.last, strip, m.weights.ln_f);
        linear_strip(*p.head, s.narrow, m.width, [&](int first, int columns, const float* y) {
            for (int r = 0; r < STRIP; r++)
                memcpy(s.logits + (size_t)r * width + first, y + r * CHUNK, columns * sizeof(float));
        });
    }

    void store_logits(int strip, const WorkerScratch& s) const {
        for (int n = strip * STRIP; n < std::min(p.positions, (strip + 1) * STRIP); n++)
            memcpy(b.logits + (size_t)n * m.vocab, s.logits + (size_t)(n % STRIP) * p.head->outputs(),
                   m.vocab * sizeof(float));
    }

    // Adds the gradient through a norm to that of the stream, dx. Its result is kept as a factor of the weights'
    // gradient of the layer that read it, whose dx is in s.rows.
    void norm_strip_backward(const Stream& x, float* dgain, const float* gain, const Factors& f, int strip,
                             const WorkerScratch& s) const {
        const int C = m.width;
        float* sums = dgain + (size_t)strip * C;
        memset(sums, 0, C * sizeof(float));
        for (int r = 0; r < STRIP; r++) {
            const int n = strip * STRIP + r;
            x.norm_backward(p.dx + (size_t)n * C, sums, s.narrow + (size_t)r * C, n, s.rows + (size_t)r * C, gain,
                            m.is_layer_norm != 0);
        }
        f.store_right(strip, 0, C, s.narrow, C);
    }

    // dx of a layer, to s.rows.
    void linear_backward(const Linear& l, const element* dy, const WorkerScratch& s) const {
        linear_strip_backward(l, dy, l.outputs(), [&](int first, int columns, const float* dx) {
            for (int r = 0; r < STRIP; r++)
                memcpy(s.rows + (size_t)r * m.width + first, dx + r * CHUNK, columns * sizeof(float));
        });
    }

    void head_backward(int strip, const WorkerScratch& s) const {
        const int width = p.head->outputs();
        LossSums sums = {};
        for (int r = 0; r < STRIP; r++) {
            const int n = strip * STRIP + r;
            element* dlogits = s.wide + (size_t)r * width;
            if (n >= p.positions) {
                memset((void*)dlogits, 0, width * sizeof(element));
                continue;
            }
            const LossSums of_row = lose(dlogits, s.logits + (size_t)r * width, n, m, b);
            sums.cross_entropy += of_row.cross_entropy;
            sums.z_loss += of_row.z_loss;
        }
        p.losses[strip] = sums;
        p.head_factors->store_left(strip, 0, width, s.wide, width);
        linear_backward(*p.head, s.wide, s);
        memset(p.dx + (size_t)strip * STRIP * m.width, 0, STRIP * m.width * sizeof(float));
        norm_strip_backward(*p.last, p.dln_f, m.weights.ln_f, *p.head_factors, strip, s);
    }

    // The gradient of what a layer of a block adds to the stream, to s.narrow, which is kept as a factor too.
    void drop_strip(const Factors& f, int strip, const WorkerScratch& s, const Dropout& drop) const {
        const int C = m.width;
        for (int r = 0; r < STRIP; r++) {
            const int n = strip * STRIP + r;
            drop_row(s.narrow + (size_t)r * C, p.dx + (size_t)n * C, n, C, drop);
        }
        f.store_left(strip, 0, C, s.narrow, C);
    }

    // From the gradient of a block's result to that of its heads' results, dy.
    void finish_block_backward(int block, int strip, const WorkerScratch& s) const {
        const BlockLinears& l = p.linears[block];
        const BlockMemory& k = p.blocks[block];
        const BlockFactors& f = *p.factors;
        const int C = m.width, U = l.up.outputs();
        const element* up = k.up + (size_t)strip * STRIP * U;
        drop_strip(f.down, strip, s, drop(3 + 3 * block));
        linear_strip_backward(l.down, s.narrow, C, [&](int first, int columns, const float* dx) {
            activate_strip_backward(s.wide, s.hidden, up, U, dx, first, columns, l.down, m.activation);
        });
        f.down.store_right(strip, 0, l.down.inputs, s.hidden, l.down.inputs);
        f.up.store_left(strip, 0, U, s.wide, U);
        linear_backward(l.up, s.wide, s);
        norm_strip_backward(k.middle, p.dln_2, weights(block).ln_2, f.up, strip, s);
        drop_strip(f.proj, strip, s, drop(2 + 3 * block));
        const size_t start = (size_t)strip * STRIP * C;
        linear_strip_backward(l.proj, s.narrow, C, [&](int first, int columns, const float* dx) {
            for (int r = 0; r < STRIP; r++)
                for (int c = 0; c < columns; c += simd::LANES)
                    simd::store(p.dy + start + (size_t)r * C + first + c, simd::load(dx + r * CHUNK + c));
        });
        f.proj.store_right(strip, 0, C, k.y + start, C);
    }

    // From the gradients of queries, keys and values to that of the stream before the block.
    void project_backward(int block, int strip, const WorkerScratch& s) const {
        const Linear& l = p.linears[block].qkv;
        const Factors& f = p.factors->qkv;
        for (int n = std::max(p.positions, strip * STRIP); n < (strip + 1) * STRIP; n++)
            memset((void*)(p.dqkv + (size_t)n * l.outputs()), 0, l.outputs() * sizeof(element));
        const element* dy = p.dqkv + (size_t)strip * STRIP * l.outputs();
        f.store_left(strip, 0, l.outputs(), dy, l.outputs());
        linear_backward(l, dy, s);
        norm_strip_backward(p.blocks[block].input, p.dln_1, weights(block).ln_1, f, strip, s);
    }

    // The gradient of the embeddings' sum, in place.
    void embed_backward(int strip) const {
        const Dropout drop = this->drop(0);
        for (int n = strip * STRIP; n < (strip + 1) * STRIP; n++) {
            float* dx = p.dx + (size_t)n * m.width;
            drop_row(dx, dx, n, m.width, drop);
        }
    }

    // Sums `count` rows of 16 columns from `first` on, which go to a gradient.
    void sum_rows(float* gradient, const float* rows, int count, int width, int first) const {
        for (int c = first; c < first + 16; c += simd::LANES) {
            simd::floats sum = b.adds ? simd::load(gradient + c) : simd::floats{};
            for (int i = 0; i < count; i++) sum += simd::load(rows + (size_t)i * width + c);
            simd::store(gradient + c, sum);
        }
    }

    // The gradients of 16 columns of the embeddings. That of a tied head is there already.
    void embedding_gradients(int first) const {
        const int C = m.width;
        const bool is_tied = m.weights.wte == m.weights.lm_head;
        const auto clear = [&](float* gradient, int rows) {
            for (int i = 0; i < rows; i++) memset(gradient + (size_t)i * C + first, 0, 16 * sizeof(float));
        };
        const auto add = [&](float* gradient, const float* dx) {
            for (int c = first; c < first + 16; c += simd::LANES)
                simd::store(gradient + c, simd::load(gradient + c) + simd::load(dx + c));
        };
        float *wte = m.gradients.wte, *wpe = m.gradients.wpe;
        if (!b.adds && !is_tied) clear(wte, m.vocab);
        if (!b.adds && wpe) clear(wpe, m.block_size);
        for (int n = 0; n < p.positions; n++) {
            add(wte + (size_t)b.inputs[n] * C, p.dx + (size_t)n * C);
            if (wpe) add(wpe + (size_t)(n % b.length) * C, p.dx + (size_t)n * C);
        }
    }

    // Packs the weights of block number i, or of the head after the last one.
    void pack(int i) const {
        const auto pack_one = [](Linear& l) {
            for (int first = 0; first < l.outputs(); first += 32) join_weights(l, first);
            pack_weights(l);
        };
        if (i == m.layers) return pack_one(*p.head);
        BlockLinears& l = p.linears[i];
        for (Linear* each : {&l.qkv, &l.proj, &l.up, &l.down}) pack_one(*each);
    }

    // Calls task(i - first) if i is one of the `count` numbers from `first` on, and moves `first` behind them.
    template <class Task> static bool is_task(int i, int& first, int count, const Task& task) {
        const int number = i - first;
        first += count;
        if (number < 0 || number >= count) return false;
        task(number);
        return true;
    }

    void forward(Team& team) const {
        team.run(m.layers + 1, [&](int i) { pack(i); });
        team.run(p.strips, [&](int strip) {
            [[maybe_unused]] const MatmulScope scope;
            embed(strip);
            project(0, strip, p.workers[team.worker]);
        });
        for (int block = 0; block < m.layers; block++) {
            team.run(p.heads, [&](int i) {
                [[maybe_unused]] const MatmulScope scope;
                attend_head(attention(block), p.workers[team.worker].forward, head_of(p.shape, i));
            });
            team.run(p.strips, [&](int strip) {
                [[maybe_unused]] const MatmulScope scope;
                const WorkerScratch& s = p.workers[team.worker];
                finish_block(block, strip, s);
                if (block + 1 < m.layers) return project(block + 1, strip, s);
                head(strip, s);
                if (b.logits) return store_logits(strip, s);
                head_backward(strip, s);
                finish_block_backward(block, strip, s);
            });
        }
    }

    // The gradients of the weights whose factors are complete when the heads of a block are computed backward: those
    // behind its heads, and those before the heads of the block above.
    bool weight_gradients(int i, int& first, int block, const WorkerScratch& s) const {
        const auto gradient = [&](const Linear& l, const Factors& f) {
            return is_task(i, first, l.outputs() / 32,
                           [&](int task) { weight_gradient(l, f, task, s.sums, b.adds != 0); });
        };
        if (block + 1 == m.layers && gradient(*p.head, *p.head_factors)) return true;
        if (block + 1 < m.layers && gradient(p.linears[block + 1].qkv, p.factors->qkv)) return true;
        if (block < 0) return false;
        const BlockLinears& l = p.linears[block];
        return gradient(l.up, p.factors->up) || gradient(l.down, p.factors->down) || gradient(l.proj, p.factors->proj);
    }
    int weight_gradient_tasks(int block) const {
        const int C = m.width, above = block + 1 < m.layers ? 3 * C : p.head_outputs;
        return (above + (block < 0 ? 0 : p.up_outputs + 2 * C)) / 32;
    }

    // The gradients of gains that are complete at that time.
    void gain_gradients(int first, int block) const {
        const int C = m.width;
        if (block + 1 == m.layers) sum_rows(m.gradients.ln_f, p.dln_f, p.strips, C, first);
        else sum_rows(gradients(block + 1).ln_1, p.dln_1, p.strips, C, first);
        if (block >= 0) sum_rows(gradients(block).ln_2, p.dln_2, p.strips, C, first);
    }

    void head_gain_gradients(int block) const {
        const int D = p.shape.head_dim;
        const BlockTensors& g = gradients(block);
        if (!g.q_norm) return;
        for (int first = 0; first < D; first += 16) {
            sum_rows(g.q_norm, p.dq_norm, p.heads, D, first);
            sum_rows(g.k_norm, p.dk_norm, p.heads, D, first);
        }
    }

    void backward(Team& team) const {
        for (int block = m.layers - 1; block >= 0; block--) {
            const int columns = m.width / 16, weights = weight_gradient_tasks(block);
            team.run(p.heads + weights + columns, [&](int i) {
                [[maybe_unused]] const MatmulScope scope;
                const WorkerScratch& s = p.workers[team.worker];
                if (i < p.heads) return attend_head_backward(attention(block), s.backward, i);
                int first = p.heads;
                if (weight_gradients(i, first, block, s)) return;
                gain_gradients(16 * (i - p.heads - weights), block);
            });
            team.run(p.strips + 1, [&](int strip) {
                [[maybe_unused]] const MatmulScope scope;
                const WorkerScratch& s = p.workers[team.worker];
                if (strip == p.strips) return head_gain_gradients(block);
                project_backward(block, strip, s);
                if (block > 0) finish_block_backward(block - 1, strip, s);
                else embed_backward(strip);
            });
        }
        const int columns = m.width / 16, weights = weight_gradient_tasks(-1);
        team.run(weights + 2 * columns, [&](int i) {
            [[maybe_unused]] const MatmulScope scope;
            int first = 0;
            if (weight_gradients(i, first, -1, p.workers[team.worker])) return;
            const int column = i - weights;
            if (column < columns) embedding_gradients(16 * column);
            else gain_gradients(16 * (column - columns), -1);
        });
    }

    void operator()(Team& team) const {
        forward(team);
        if (!b.logits) backward(team);
    }
};
