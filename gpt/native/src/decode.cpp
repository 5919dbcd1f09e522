// A whole decoder on a CPU: key/value cache, any number of positions of any rows in one pass, and sampling.
// A pass takes "slots": each is one token at one position of one row. A step of decoding has a slot for
// every row, a prefill many slots of one row. What a slot gets does not depend on the other slots, to the
// last bit, nor on the number of threads.
//
// With PLAIN defined, the loops are written as one would first write them; they are the reference.
#include "floats.h"
#include <atomic>
#include <algorithm>
#include <numeric>
#include <omp.h>
#include <sched.h>
#include <stdlib.h>
#include <vector>

// --- what Python fills in: gpt/native/decoding.py has the same ------------------------------------

static const int BLOCK = 64;  // outputs of a matrix that lie side by side

enum Kind : int32_t { FLOAT32, BFLOAT16, INT8, INT4 };

// Weights in blocks of 64 outputs: (outputs / 64, inputs, 64); of int4 a byte holds inputs k and k + 1.
// Scales, where there are any: (outputs / 64, inputs / group, 64). Outputs are filled up with zeros.
struct Matrix {
    const void* weights;
    const float *scales, *bias;
    int32_t kind, outputs, inputs, group;
};

struct Layer {
    Matrix qkv, projection, gate, up, down;
    const float *norm_1, *norm_1_bias, *norm_2, *norm_2_bias, *q_norm, *k_norm;
};

enum Activation : int32_t { GELU, GELU_TANH, RELU, RELU_SQUARED, GATED_SILU };

struct Model {
    int32_t layers, heads, kv_heads, head_width, width, hidden, vocabulary, window;
    int32_t is_centred, activation;
    float eps, softcap;  // softcap 0: none
    const float *tokens, *positions, *cosine, *sine, *norm, *norm_bias;
    Matrix head;
    const Layer* layer;
};

struct Sampling {
    float temperature, top_p, min_p, penalty;
    int32_t top_k;
};

// --- threads -------------------------------------------------------------------------------------

struct Barrier {
    alignas(64) std::atomic<int> arrived{0};
    alignas(64) std::atomic<int> round{0};
};

// One of the threads that work on the same pass.
struct Worker {
    int index, count;
    Barrier* barrier;

    // The part of n pieces that is this worker's.
    int first(int n) const { return (int)((int64_t)n * index / count); }
    int last(int n) const { return (int)((int64_t)n * (index + 1) / count); }

    void wait() const {
        if (count == 1) return;
        const int round = barrier->round.load(std::memory_order_relaxed);
        if (barrier->arrived.fetch_add(1, std::memory_order_acq_rel) == count - 1) {
            barrier->arrived.store(0, std::memory_order_relaxed);
            barrier->round.store(round + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; barrier->round.load(std::memory_order_acquire) == round; spins++)
            if (spins > 4000) sched_yield();  // someone else may need this processor
            else __builtin_ia32_pause();
    }
};

// --- matrix products -----------------------------------------------------------------------------

#ifdef PLAIN

static float weight_of(const Matrix& m, int output, int input) {
    const size_t block = output / BLOCK, place = output % BLOCK, at = (block * m.inputs + input) * BLOCK + place;
    float scale = m.scales ? m.scales[(block * (m.inputs / m.group) + input / m.group) * BLOCK + place] : 1.0f;
    switch (m.kind) {
        case FLOAT32: return ((const float*)m.weights)[at];
        case BFLOAT16: {
            uint32_t bits = (uint32_t)((const uint16_t*)m.weights)[at] << 16;
            float x;
            memcpy(&x, &bits, 4);
            return x;
        }
        case INT8: return ((const int8_t*)m.weights)[at] * scale;
        default: {
            int8_t pair = ((const int8_t*)m.weights)[(block * (m.inputs / 2) + input / 2) * BLOCK + place];
            return (input % 2 ? pair >> 4 : (int8_t)((uint8_t)pair << 4) >> 4) * scale;
        }
    }
}

// y = x m^T, blocks of outputs shared among the workers. x: (slots, .), y: (slots, .).
static void multiply(const Worker& w, float* y, int ldy, const float* x, int ldx, int slots, const Matrix& m, bool add) {
    const int blocks = round_up(m.outputs, BLOCK) / BLOCK;
    for (int n = w.first(blocks) * BLOCK; n < std::min(m.outputs, w.last(blocks) * BLOCK); n++)
        for (int s = 0; s < slots; s++) {
            float total = 0.0f;
            for (int k = 0; k < m.inputs; k++) total += x[(size_t)s * ldx + k] * weight_of(m, n, k);
            float* out = y + (size_t)s * ldy + n;
            *out = total + (m.bias ? m.bias[n] : 0.0f) + (add ? *out : 0.0f);
        }
}

#else

// How to read the k-th row of 64 weights of a block.
struct Float32 {
    const float* p;
    Float32(const Matrix& m, int block) : p((const float*)m.weights + (size_t)block * m.inputs * BLOCK) {}
    floats at(int k, int i) const { return load(p + (size_t)k * BLOCK + i); }
};
struct BFloat16 {
    const uint16_t* p;
    BFloat16(const Matrix& m, int block) : p((const uint16_t*)m.weights + (size_t)block * m.inputs * BLOCK) {}
    floats at(int k, int i) const { return from_bfloat16(p + (size_t)k * BLOCK + i); }
};
struct Int8 {
    const int8_t* p;
    Int8(const Matrix& m, int block) : p((const int8_t*)m.weights + (size_t)block * m.inputs * BLOCK) {}
    floats at(int k, int i) const { return from_int8(p + (size_t)k * BLOCK + i); }
};
struct Int4 {
    const int8_t* p;
    Int4(const Matrix& m, int block) : p((const int8_t*)m.weights + (size_t)block * (m.inputs / 2) * BLOCK) {}
    floats at(int k, int i) const { return from_int4(p + (size_t)(k / 2) * BLOCK + i, k % 2); }
};

static const int VECTORS = BLOCK / LANES;

// One block of outputs for SLOTS slots; their sums stay in registers.
template <class Weights, int SLOTS>
static void multiply_block(float* y, int ldy, const float* x, int ldx, const Matrix& m, int block, bool add) {
    const Weights weights(m, block);
    const float* scales = m.scales ? m.scales + (size_t)block * (m.inputs / m.group) * BLOCK : nullptr;
    floats total[SLOTS][VECTORS] = {};
    for (int k = 0; k < m.inputs;) {
        floats part[SLOTS][VECTORS] = {};
        for (const int end = k + m.group; k < end; k++) {
            floats row[VECTORS];
            for (int v = 0; v < VECTORS; v++) row[v] = weights.at(k, v * LANES);
            for (int s = 0; s < SLOTS; s++)
                for (int v = 0; v < VECTORS; v++) part[s][v] += x[(size_t)s * ldx + k] * row[v];
        }
        for (int s = 0; s < SLOTS; s++)
            for (int v = 0; v < VECTORS; v++) total[s][v] += scales ? part[s][v] * load(scales + v * LANES) : part[s][v];
        if (scales) scales += BLOCK;
    }
    for (int s = 0; s < SLOTS; s++)
        for (int v = 0; v < VECTORS; v++) {
            float* out = y + (size_t)s * ldy + v * LANES;
            if (m.bias) total[s][v] += load(m.bias + (size_t)block * BLOCK + v * LANES);
            store(out, add ? total[s][v] + load(out) : total[s][v]);
        }
}

template <class Weights>
static void multiply_as(const Worker& w, float* y, int ldy, const float* x, int ldx, int slots, const Matrix& m, bool add) {
    const int blocks = round_up(m.outputs, BLOCK) / BLOCK;
    static const auto kernels = {multiply_block<Weights, 1>, multiply_block<Weights, 2>, multiply_block<Weights, 3>,
                                 multiply_block<Weights, 4>, multiply_block<Weights, 5>, multiply_block<Weights, 6>};
    const int most = (int)kernels.size();
    for (int block = w.first(blocks); block < w.last(blocks); block++)
        for (int s = 0; s < slots;) {
            const int parts = (slots - s + most - 1) / most, count = (slots - s + parts - 1) / parts;  // of like size
            kernels.begin()[count - 1](y + (size_t)s * ldy + block * BLOCK, ldy, x + (size_t)s * ldx, ldx, m, block, add);
            s += count;
        }
}

// y = x m^T, or y += x m^T; blocks of outputs are shared among the workers. x: (slots, ldx), y: (slots, ldy).
static void multiply(const Worker& w, float* y, int ldy, const float* x, int ldx, int slots, const Matrix& m, bool add) {
    switch (m.kind) {
        case FLOAT32: return multiply_as<Float32>(w, y, ldy, x, ldx, slots, m, add);
        case BFLOAT16: return multiply_as<BFloat16>(w, y, ldy, x, ldx, slots, m, add);
        case INT8: return multiply_as<Int8>(w, y, ldy, x, ldx, slots, m, add);
        default: return multiply_as<Int4>(w, y, ldy, x, ldx, slots, m, add);
    }
}

#endif

// --- elementwise: rows of floats, filled up to a multiple of 16 ------------------------------------

#ifdef PLAIN

static void normalise(float* y, const float* x, const float* gain, const float* bias, int width, bool is_centred, float eps) {
    double mean = 0.0, squares = 0.0;
    for (int c = 0; c < width && is_centred; c++) mean += x[c] / (double)width;
    for (int c = 0; c < width; c++) squares += (x[c] - mean) * (x[c] - mean);
    for (int c = 0; c < width; c++) y[c] = (x[c] - mean) / std::sqrt(squares / width + eps) * gain[c] + (bias ? bias[c] : 0.0f);
}

static void activate(float* y, const float* gate, int from, int to, Activation kind) {
    for (int i = from; i < to; i++) {
        const float x = y[i];
        switch (kind) {
            case GELU: y[i] = x * 0.5f * (1.0f + std::erf(x * 0.70710678f)); break;
            case GELU_TANH: y[i] = 0.5f * x * (1.0f + std::tanh(0.79788456f * (x + 0.044715f * x * x * x))); break;
            case RELU: y[i] = std::max(x, 0.0f); break;
            case RELU_SQUARED: y[i] = std::max(x, 0.0f) * std::max(x, 0.0f); break;
            case GATED_SILU: y[i] = x * gate[i] / (1.0f + std::exp(-gate[i]));
        }
    }
}

static void cap_logits(float* x, int count, float cap) {
    for (int i = 0; i < count; i++) x[i] = cap * std::tanh(x[i] / cap);
}

#else

// LayerNorm where it is centred, else RMSNorm. What lies past the width is 0 in x and in gain.
static void normalise(float* y, const float* x, const float* gain, const float* bias, int width, bool is_centred, float eps) {
    floats total = {}, squares = {};
    for (int c = 0; c < width && is_centred; c += LANES) total += load(x + c);
    const float mean = is_centred ? sum(total) / width : 0.0f;
    for (int c = 0; c < width; c += LANES) {
        floats v = load(x + c) - mean;
        if (c + LANES > width) v = lanes() < width - c ? v : floats{};
        squares += v * v;
    }
    const float inverse = 1.0f / std::sqrt(sum(squares) / width + eps);
    for (int c = 0; c < width; c += LANES) {
        floats v = (load(x + c) - mean) * inverse * load(gain + c);
        store(y + c, bias ? v + load(bias + c) : v);
    }
}

static floats activated(floats x, floats gate, Activation kind) {
    switch (kind) {
        case GELU: return x * normal_below(x);
        case GELU_TANH: return 0.5f * x * (1.0f + tanh(0.79788456f * (x + 0.044715f * x * x * x)));
        case RELU: return larger(x, floats{});
        case RELU_SQUARED: return larger(x, floats{}) * larger(x, floats{});
        default: return x * gate / (1.0f + exp(-gate));
    }
}

static void activate(float* y, const float* gate, int from, int to, Activation kind) {
    for (int i = from; i < to; i += LANES) store(y + i, activated(load(y + i), kind == GATED_SILU ? load(gate + i) : floats{}, kind));
}

static void cap_logits(float* x, int count, float cap) {
    for (int i = 0; i < count; i += LANES) store(x + i, cap * tanh(load(x + i) / cap));
}

#endif

// --- attention -----------------------------------------------------------------------------------

// Of one query head over the first positions of its row. Keys lie transposed, (D, capacity), so that
// scores need no sum across lanes; values (capacity, padded D). weights: (capacity), scratch.
#ifdef PLAIN

static void attend(float* y, const float* q, const float* keys, const float* values, int positions, int capacity, int D, float* weights) {
    float top = -INFINITY, total = 0.0f;
    for (int j = 0; j < positions; j++) {
        weights[j] = 0.0f;
        for (int d = 0; d < D; d++) weights[j] += q[d] * keys[(size_t)d * capacity + j];
        top = std::max(top, weights[j]);
    }
    for (int j = 0; j < positions; j++) total += weights[j] = std::exp(weights[j] - top);
    for (int d = 0; d < D; d++) {
        float value = 0.0f;
        for (int j = 0; j < positions; j++) value += weights[j] * values[(size_t)j * round_up(D, LANES) + d];
        y[d] = value / total;
    }
}

#else

static void attend(float* y, const float* q, const float* keys, const float* values, int positions, int capacity, int D, float* weights) {
    floats top = all(-INFINITY), total = {};
    for (int j = 0; j < positions; j += 4 * LANES) {
        floats scores[4] = {};
        for (int d = 0; d < D; d++)
            for (int v = 0; v < 4; v++) scores[v] += q[d] * load(keys + (size_t)d * capacity + j + v * LANES);
        for (int v = 0; v < 4; v++) {
            scores[v] = lanes() < positions - j - v * LANES ? scores[v] : all(-INFINITY);
            top = larger(top, scores[v]);
            store(weights + j + v * LANES, scores[v]);
        }
    }
    const float peak = largest(top);
    for (int j = 0; j < positions; j += LANES) {
        floats e = exp(load(weights + j) - peak);
        e = lanes() < positions - j ? e : floats{};
        store(weights + j, e);
        total += e;
    }
    const float inverse = 1.0f / sum(total);
    const int padded = round_up(D, LANES);
    for (int d = 0; d < D; d += LANES) {
        floats part[4] = {};  // of every fourth position
        int j = 0;
        for (; j + 4 <= positions; j += 4)
            for (int i = 0; i < 4; i++) part[i] += weights[j + i] * load(values + (size_t)(j + i) * padded + d);
        for (; j < positions; j++) part[0] += weights[j] * load(values + (size_t)j * padded + d);
        const floats value = ((part[0] + part[1]) + (part[2] + part[3])) * inverse;
        if (d + LANES <= D) store(y + d, value);
        else for (int i = 0; i < D - d; i++) y[d + i] = value[i];
    }
}

#endif

// A head's vector, normed, turned and scaled; y may be x.
static void prepare_head(float* y, const float* x, const Model& m, const float* gain, int position, float scale) {
    const int D = m.head_width, half = D / 2;
    float inverse = scale;
    if (gain) {
        float squares = 0.0f;
        for (int d = 0; d < D; d++) squares += x[d] * x[d];
        inverse = scale / std::sqrt(squares / D + m.eps);
    }
    for (int d = 0; d < D; d++) y[d] = x[d] * inverse * (gain ? gain[d] : 1.0f);
    if (!m.cosine) return;
    const float *cosine = m.cosine + (size_t)position * D, *sine = m.sine + (size_t)position * D;
    for (int d = 0; d < half; d++) {
        const float a = y[d], b = y[half + d];
        y[d] = a * cosine[d] - b * sine[d];
        y[half + d] = b * cosine[half + d] + a * sine[half + d];
    }
}

// --- a pass --------------------------------------------------------------------------------------

static const int FEW = 4;  // slots up to which every worker norms all of them, which saves a barrier

struct Slots {
    int count;
    const int32_t *tokens, *rows, *positions;
};

// Memory for passes of up to so many slots over up to so many rows; all of it is taken at once.
struct Decoder {
    Model m;
    std::vector<Layer> layers;
    int rows, slots, threads, capacity, width, hidden, qkv, vocabulary;  // widths filled up to blocks
    size_t keys_of_head, values_of_head;
    std::vector<void*> taken;
    float *x, *normed, *projected, *mixed, *up, *gate, *logits;  // (slots, width of its kind)
    float *keys, *values;                                         // (layers, rows, kv heads, of a head)
    std::vector<float*> own_normed, own_weights, own_query;       // one a worker
    std::vector<std::vector<int32_t>> own_order;
    std::vector<std::vector<float>> own_ranks;
    std::vector<int32_t> all_slots;
    Barrier barrier;

    Decoder(const Model& model, int rows, int slots, int threads);
    ~Decoder() {
        for (void* piece : taken) free(piece);
    }
    float* take(size_t count) {
        const size_t size = (count * sizeof(float) + 127) / 64 * 64;
        void* piece = aligned_alloc(64, size);
        if (!piece) throw std::bad_alloc();
        taken.push_back(memset(piece, 0, size));
        return (float*)piece;
    }
    float* keys_of(int layer, int row, int head) const { return keys + (((size_t)layer * rows + row) * m.kv_heads + head) * keys_of_head; }
    float* values_of(int layer, int row, int head) const { return values + (((size_t)layer * rows + row) * m.kv_heads + head) * values_of_head; }

    void embed(int slot, int token, int position);
    const float* norm(const Worker& w, const int32_t* which, int count, const float* gain, const float* bias);
    void attention(const Worker& w, int layer, const Slots& s);
    void pass(const Worker& w, const Slots& s);
    void head(const Worker& w, const int32_t* which, int count);
};

Decoder::Decoder(const Model& model, int rows, int slots, int threads)
    : m(model), layers(model.layer, model.layer + model.layers), rows(rows), slots(slots), threads(threads),
      capacity(round_up(m.window, BLOCK)), width(round_up(m.width, BLOCK)), hidden(round_up(m.hidden, BLOCK)),
      qkv(round_up((m.heads + 2 * m.kv_heads) * m.head_width, BLOCK)), vocabulary(round_up(m.vocabulary, BLOCK)),
      keys_of_head((size_t)m.head_width * capacity), values_of_head((size_t)round_up(m.head_width, LANES) * capacity),
      own_order(threads, std::vector<int32_t>(m.vocabulary)), own_ranks(threads, std::vector<float>(m.vocabulary)), all_slots(slots) {
    x = take((size_t)slots * width), normed = take((size_t)slots * width), mixed = take((size_t)slots * width);
    projected = take((size_t)slots * qkv), up = take((size_t)slots * hidden), gate = take((size_t)slots * hidden);
    logits = take((size_t)slots * vocabulary);
    keys = take((size_t)m.layers * rows * m.kv_heads * keys_of_head);
    values = take((size_t)m.layers * rows * m.kv_heads * values_of_head);
    for (int t = 0; t < threads; t++) {
        own_normed.push_back(take((size_t)FEW * width));
        own_weights.push_back(take(capacity));
        own_query.push_back(take(m.head_width));
    }
    std::iota(all_slots.begin(), all_slots.end(), 0);
}

void Decoder::embed(int slot, int token, int position) {
    const float* from = m.tokens + (size_t)token * m.width;
    const float* added = m.positions ? m.positions + (size_t)position * m.width : nullptr;
    for (int c = 0; c < m.width; c++) x[(size_t)slot * width + c] = from[c] + (added ? added[c] : 0.0f);
}

// The norm of some slots' x: (count, width).
const float* Decoder::norm(const Worker& w, const int32_t* which, int count, const float* gain, const float* bias) {
    const bool is_shared = count > FEW;
    float* y = is_shared ? normed : own_normed[w.index];
    for (int i = is_shared ? w.first(count) : 0; i < (is_shared ? w.last(count) : count); i++)
        normalise(y + (size_t)i * width, x + (size_t)which[i] * width, gain, bias, m.width, m.is_centred, m.eps);
    if (is_shared) w.wait();
    return y;
}

// From `projected` to `mixed`. A worker takes a key and value head of a row, for all slots of that row in
// order: so each sees what the ones before it have stored.
void Decoder::attention(const Worker& w, int layer, const Slots& s) {
    const Layer& l = layers[layer];
    const int D = m.head_width, share = m.heads / m.kv_heads;
    int groups = 0;
    for (int i = 0; i < s.count; i++) groups += i == 0 || s.rows[i] != s.rows[i - 1];
    const int items = groups * m.kv_heads, first = w.first(items), last = w.last(items);
    for (int i = 0, group = -1; i < s.count; i++) {
        group += i == 0 || s.rows[i] != s.rows[i - 1];
        for (int k = 0; k < m.kv_heads; k++) {
            if (group * m.kv_heads + k < first || group * m.kv_heads + k >= last) continue;
            const int position = s.positions[i];
            const float* q = projected + (size_t)i * qkv;
            float* query = own_query[w.index];
            float *keys = keys_of(layer, s.rows[i], k), *values = values_of(layer, s.rows[i], k);
            prepare_head(query, q + (m.heads + k) * D, m, l.k_norm, position, 1.0f);
            for (int d = 0; d < D; d++) keys[(size_t)d * capacity + position] = query[d];
            memcpy(values + (size_t)position * round_up(D, LANES), q + (m.heads + m.kv_heads + k) * D, D * sizeof(float));
            for (int h = k * share; h < (k + 1) * share; h++) {
                prepare_head(query, q + h * D, m, l.q_norm, position, 1.0f / std::sqrt((float)D));
                attend(mixed + (size_t)i * width + h * D, query, keys, values, position + 1, capacity, D, own_weights[w.index]);
            }
        }
    }
}

// From the embeddings in `x` through all blocks.
void Decoder::pass(const Worker& w, const Slots& s) {
    for (int i = 0; i < m.layers; i++) {
        const Layer& l = layers[i];
        const float* h = norm(w, all_slots.data(), s.count, l.norm_1, l.norm_1_bias);
        multiply(w, projected, qkv, h, width, s.count, l.qkv, false);
        w.wait();
        attention(w, i, s);
        w.wait();
        multiply(w, x, width, mixed, width, s.count, l.projection, true);
        w.wait();
        h = norm(w, all_slots.data(), s.count, l.norm_2, l.norm_2_bias);
        if (m.activation == GATED_SILU) multiply(w, gate, hidden, h, width, s.count, l.gate, false);
        multiply(w, up, hidden, h, width, s.count, l.up, false);
        const int from = w.first(hidden / BLOCK) * BLOCK, to = w.last(hidden / BLOCK) * BLOCK;  // what it wrote itself
        for (int t = 0; t < s.count; t++) activate(up + (size_t)t * hidden, gate + (size_t)t * hidden, from, to, (Activation)m.activation);
        w.wait();
        multiply(w, x, width, up, hidden, s.count, l.down, true);
        w.wait();
    }
}

// Logits of some slots, to `logits` (count, .).
void Decoder::head(const Worker& w, const int32_t* which, int count) {
    const float* h = norm(w, which, count, m.norm, m.norm_bias);
    multiply(w, logits, vocabulary, h, width, count, m.head, false);
    const int from = w.first(vocabulary / BLOCK) * BLOCK, to = w.last(vocabulary / BLOCK) * BLOCK;
    for (int i = 0; i < count && m.softcap > 0; i++) cap_logits(logits + (size_t)i * vocabulary + from, to - from, m.softcap);
    w.wait();
}

// --- sampling: as gpt/generation/sampling.py -------------------------------------------------------

static void softmax(float* x, int count) {
    float top = *std::max_element(x, x + count), total = 0.0f;
    for (int i = 0; i < count; i++) total += x[i] = std::exp(x[i] - top);
    for (int i = 0; i < count; i++) x[i] /= total;
}

// Logits that stay; the others become -inf. `ranks` and `order` are scratch.
static void filter(float* x, int count, const Sampling& p, float* ranks, int32_t* order) {
    if (p.top_k > 0 && p.top_k < count) {
        std::copy(x, x + count, ranks);
        std::nth_element(ranks, ranks + p.top_k - 1, ranks + count, [](float a, float b) { return a > b; });
        const float least = ranks[p.top_k - 1];
        for (int i = 0; i < count; i++) x[i] = x[i] < least ? -INFINITY : x[i];
    }
    if (p.top_p < 1.0f) {
        std::copy(x, x + count, ranks);
        softmax(ranks, count);
        std::iota(order, order + count, 0);
        std::sort(order, order + count, [&](int a, int b) { return ranks[a] > ranks[b] || (ranks[a] == ranks[b] && a < b); });
        float before = 0.0f;
        for (int i = 0; i < count; before += ranks[order[i]], i++)
            if (before >= p.top_p && before > 0.0f) x[order[i]] = -INFINITY;
    }
    if (p.min_p > 0.0f) {
        std::copy(x, x + count, ranks);
        softmax(ranks, count);
        const float least = p.min_p * *std::max_element(ranks, ranks + count);
        for (int i = 0; i < count; i++) x[i] = ranks[i] < least ? -INFINITY : x[i];
    }
}

// The token that a number in [0, 1) picks. `x` is overwritten; seen: which tokens the penalty is for, or null.
static int draw(float* x, int count, const Sampling& p, float uniform, const uint8_t* seen, float* ranks, int32_t* order) {
    for (int i = 0; i < count && seen; i++)
        if (seen[i]) x[i] = x[i] > 0.0f ? x[i] / p.penalty : x[i] * p.penalty;
    const float top = *std::max_element(x, x + count);
    if (p.temperature == 0.0f) return (int)(std::max_element(x, x + count) - x);
    for (int i = 0; i < count; i++) x[i] = (x[i] - top) / p.temperature;
    filter(x, count, p, ranks, order);
    softmax(x, count);
    double total = 0.0, reached = 0.0;
    for (int i = 0; i < count; i++) total += x[i];
    int last = 0;
    for (int i = 0; i < count; i++) {
        if (x[i] > 0.0f) last = i;
        if ((reached += x[i]) > uniform * total) return i;
    }
    return last;
}

static bool is_finite(const float* x, int count) {
    float product = 0.0f;
    for (int i = 0; i < count; i++) product += x[i] * 0.0f;  // 0, or not a number
    return product == 0.0f;
}

// --- the interface -------------------------------------------------------------------------------

template <class Work> static void in_parallel(Decoder& d, Work work) {
    d.barrier.arrived = 0;
#pragma omp parallel num_threads(d.threads)
    work(Worker{omp_get_thread_num(), omp_get_num_threads(), &d.barrier});
}

extern "C" {

Decoder* gpt_decoder_create(const Model* model, int rows, int slots, int threads) {
    try {
        return new Decoder(*model, rows, slots, threads);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

void gpt_decoder_free(Decoder* d) { delete d; }

// Stores the keys and values of some slots, at most as many as the decoder has; gives the logits
// (wanted, vocabulary) of those that `which` names.
void gpt_decoder_forward(Decoder* d, int count, const int32_t* tokens, const int32_t* rows, const int32_t* positions,
                         int wanted, const int32_t* which, float* logits) {
    const Slots s = {count, tokens, rows, positions};
    in_parallel(*d, [&](const Worker& w) {
        for (int i = w.first(count); i < w.last(count); i++) d->embed(i, tokens[i], positions[i]);
        w.wait();
        d->pass(w, s);
        if (wanted) d->head(w, which, wanted);
        for (int i = w.first(wanted); i < w.last(wanted); i++)
            memcpy(logits + (size_t)i * d->m.vocabulary, d->logits + (size_t)i * d->vocabulary, d->m.vocabulary * sizeof(float));
    });
}

// Draws `steps` tokens for each of `count` rows, to drawn (count, steps), feeding each back. `tokens` and
// `positions` are of the newest token of each row, not stored yet; both are moved on. uniforms: (count, steps).
// seen: (count, vocabulary), or null; kept up to date. logits: (steps, count, vocabulary), or null.
// Returns 0, or 1 + row + count * step where logits are not finite.
int64_t gpt_decoder_generate(Decoder* d, int count, const int32_t* rows, int32_t* tokens, int32_t* positions, int steps,
                             const Sampling* sampling, const float* uniforms, uint8_t* seen, int32_t* drawn, float* logits) {
    const int V = d->m.vocabulary;
    std::atomic<int64_t> failed{INT64_MAX};
    in_parallel(*d, [&](const Worker& w) {
        for (int b = w.first(count); b < w.last(count); b++) d->embed(b, tokens[b], positions[b]);
        w.wait();
        for (int step = 0; step < steps; step++) {
            d->pass(w, {count, tokens, rows, positions});
            d->head(w, d->all_slots.data(), count);
            for (int b = w.first(count); b < w.last(count); b++) {
                float* x = d->logits + (size_t)b * d->vocabulary;
                if (logits) memcpy(logits + ((size_t)step * count + b) * V, x, V * sizeof(float));
                if (!is_finite(x, V)) {
                    int64_t place = 1 + b + (int64_t)count * step, before = failed;
                    while (place < before && !failed.compare_exchange_weak(before, place)) {}
                    continue;
                }
                uint8_t* known = seen ? seen + (size_t)b * V : nullptr;
                tokens[b] = draw(x, V, *sampling, uniforms[(size_t)b * steps + step], known, d->own_ranks[w.index].data(), d->own_order[w.index].data());
                drawn[(size_t)b * steps + step] = tokens[b];
                if (known) known[tokens[b]] = 1;
                if (++positions[b] < d->m.window) d->embed(b, tokens[b], positions[b]);
            }
            w.wait();
            if (failed != INT64_MAX) break;
        }
    });
    return failed == INT64_MAX ? 0 : failed.load();
}

// As forward, with the token that each slot's logits and number in `uniforms` (count) pick, to drawn (count); -1 where
// logits are not finite. The slots of a row stand together. seen: (rows in this pass, vocabulary) before its first
// slot, or null; overwritten. logits: (count, vocabulary), or null.
void gpt_decoder_verify(Decoder* d, int count, const int32_t* tokens, const int32_t* rows, const int32_t* positions,
                        const Sampling* sampling, const float* uniforms, uint8_t* seen, int32_t* drawn, float* logits) {
    const int V = d->m.vocabulary;
    in_parallel(*d, [&](const Worker& w) {
        for (int i = w.first(count); i < w.last(count); i++) d->embed(i, tokens[i], positions[i]);
        w.wait();
        d->pass(w, {count, tokens, rows, positions});
        d->head(w, d->all_slots.data(), count);
        uint8_t* known = seen;
        for (int i = 0; i < count; i++) {  // in order, since a slot's token counts as seen for those behind it
            if (i > 0 && rows[i] != rows[i - 1] && known) known += V;
            if (rows[i] % w.count != w.index) continue;
            float* x = d->logits + (size_t)i * d->vocabulary;
            if (logits) memcpy(logits + (size_t)i * V, x, V * sizeof(float));
            if (known) known[tokens[i]] = 1;
            drawn[i] = is_finite(x, V) ? draw(x, V, *sampling, uniforms[i], known, d->own_ranks[w.index].data(), d->own_order[w.index].data()) : -1;
        }
    });
}

// Row `to` becomes what row `from` is, as far as some positions.
void gpt_decoder_copy(Decoder* d, int to, int from, int positions) {
    const int padded = round_up(d->m.head_width, LANES);
    for (int layer = 0; layer < d->m.layers; layer++)
        for (int k = 0; k < d->m.kv_heads; k++) {
            float *keys = d->keys_of(layer, to, k), *others = d->keys_of(layer, from, k);
            for (int i = 0; i < d->m.head_width; i++)
                memcpy(keys + (size_t)i * d->capacity, others + (size_t)i * d->capacity, positions * sizeof(float));
            memcpy(d->values_of(layer, to, k), d->values_of(layer, from, k), (size_t)positions * padded * sizeof(float));
        }
}

int64_t gpt_decoder_cache_bytes(const Decoder* d) {
    return (int64_t)d->m.layers * d->rows * d->m.kv_heads * (d->keys_of_head + d->values_of_head) * sizeof(float);
}

}  // extern "C"
