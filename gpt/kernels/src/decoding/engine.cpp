// A whole decoder on a CPU: key/value cache, any number of positions of any rows in one pass, and sampling.
// A pass takes "slots": each is one token at one position of one row. A step of decoding has a slot for
// every row, a prefill many slots of one row. What a slot gets does not depend on the other slots, to the
// last bit, nor on the number of threads.
#include "decode_layers.h"
#include "decode_model.h"
#include "decode_products.h"
#include "decode_sampling.h"
#include "decode_workers.h"
#include <memory>
#include <new>
#include <omp.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <vector>

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
    std::vector<std::unique_ptr<void, void (*)(void*)>> taken;
    float *x, *normed, *projected, *mixed, *up, *gate, *logits;  // (slots, width of its kind)
    float *keys, *values;                                         // (layers, rows, kv heads, of a head)
    std::vector<float*> own_normed, own_weights, own_query;       // one a worker
    std::vector<std::vector<int32_t>> own_order;
    std::vector<std::vector<float>> own_ranks;
    std::vector<int32_t> all_slots;
    Barrier barrier;

    Decoder(const Model& model, int rows, int slots, int threads);
    float* take(size_t count) { return (float*)memset(take_as_is(count), 0, count * sizeof(float)); }
    // In large pages where the system has some: what is read from end to end asks for fewer translations of addresses.
    float* take_as_is(size_t count) {
        const size_t page = 1 << 21, bytes = count * sizeof(float), unit = bytes < page ? 64 : page;
        void* piece = aligned_alloc(unit, (bytes + unit) / unit * unit);
        if (!piece) throw std::bad_alloc();
        taken.emplace_back(piece, free);
#ifdef MADV_HUGEPAGE
        if (unit == page) madvise(piece, bytes, MADV_HUGEPAGE);
#endif
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
      own_order(threads, std::vector<int32_t>(m.vocabulary)), own_ranks(threads, std::vector<float>(m.vocabulary)) {
    x = take((size_t)slots * width), normed = take((size_t)slots * width), mixed = take((size_t)slots * width);
    projected = take((size_t)slots * qkv), up = take((size_t)slots * hidden), gate = take((size_t)slots * hidden);
    logits = take((size_t)slots * vocabulary);
    keys = take_as_is((size_t)m.layers * rows * m.kv_heads * keys_of_head);
    values = take_as_is((size_t)m.layers * rows * m.kv_heads * values_of_head);
    for (int t = 0; t < threads; t++) {
        own_normed.push_back(take((size_t)FEW * width));
        own_weights.push_back(take(capacity));
        own_query.push_back(take(m.head_width));
    }
    all_slots.resize(slots);
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
    for (int i = is_shared ? w.first(count) : 0; i < (is_shared ? w.end(count) : count); i++)
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
    const int items = groups * m.kv_heads, first = w.first(items), end = w.end(items);
    for (int i = 0, group = -1; i < s.count; i++) {
        group += i == 0 || s.rows[i] != s.rows[i - 1];
        for (int k = 0; k < m.kv_heads; k++) {
            if (group * m.kv_heads + k < first || group * m.kv_heads + k >= end) continue;
            const int position = s.positions[i];
            const float* q = projected + (size_t)i * qkv;
            float* query = own_query[w.index];
            float *keys = keys_of(layer, s.rows[i], k), *values = values_of(layer, s.rows[i], k);
            prepare_head(query, q + (m.heads + k) * D, m, l.k_norm, position, 1.0f);
            for (int d = 0; d < D; d++) keys[key_at(position, D) + (size_t)d * BLOCK] = query[d];
            memcpy(values + (size_t)position * round_up(D, LANES), q + (m.heads + m.kv_heads + k) * D, D * sizeof(float));
            for (int h = k * share; h < (k + 1) * share; h++) {
                prepare_head(query, q + h * D, m, l.q_norm, position, 1.0f / std::sqrt((float)D));
                attend(mixed + (size_t)i * width + h * D, query, keys, values, position + 1, D, own_weights[w.index]);
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
        const int from = w.first(hidden / BLOCK) * BLOCK, to = w.end(hidden / BLOCK) * BLOCK;  // what it wrote itself
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
    const int from = w.first(vocabulary / BLOCK) * BLOCK, to = w.end(vocabulary / BLOCK) * BLOCK;
    for (int i = 0; i < count && m.softcap > 0; i++) cap_logits(logits + (size_t)i * vocabulary + from, to - from, m.softcap);
    w.wait();
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
        for (int i = w.first(count); i < w.end(count); i++) d->embed(i, tokens[i], positions[i]);
        w.wait();
        d->pass(w, s);
        if (wanted) d->head(w, which, wanted);
        for (int i = w.first(wanted); i < w.end(wanted); i++)
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
        for (int b = w.first(count); b < w.end(count); b++) d->embed(b, tokens[b], positions[b]);
        w.wait();
        for (int step = 0; step < steps; step++) {
            d->pass(w, {count, tokens, rows, positions});
            d->head(w, d->all_slots.data(), count);
            for (int b = w.first(count); b < w.end(count); b++) {
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
        for (int i = w.first(count); i < w.end(count); i++) d->embed(i, tokens[i], positions[i]);
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
            const size_t keys = (size_t)round_up(positions, BLOCK) * d->m.head_width;
            memcpy(d->keys_of(layer, to, k), d->keys_of(layer, from, k), keys * sizeof(float));
            memcpy(d->values_of(layer, to, k), d->values_of(layer, from, k), (size_t)positions * padded * sizeof(float));
        }
}

int64_t gpt_decoder_cache_bytes(const Decoder* d) {
    return (int64_t)d->m.layers * d->rows * d->m.kv_heads * (d->keys_of_head + d->values_of_head) * sizeof(float);
}

}  // extern "C"
