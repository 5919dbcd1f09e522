// The C interface of the decoder, for gpt/kernels/decoding/engine.py.
#include "decoder.h"
#include "sampling.h"
#include <atomic>
#include <exception>
#include <vector>

template <class Work> static void run(Decoder& d, Work work) {
    parallel(d.size.threads, [&](const Worker& w) {
        TileScope tiles;
        work(w);
    });
}

// Samples from the logits of token i of a pass, which are overwritten; `copy` receives them first, unless it is null.
static int sample_token(Decoder& d, const Worker& w, int i, const Sampling& p, float uniform, const uint8_t* seen, float* copy) {
    const int V = d.m.vocab_size;
    if (copy) memcpy(copy, d.logits(i), V * sizeof(float));
    return sample(d.logits(i), V, p, uniform, seen, d.scratch(w).ranks, d.scratch(w).order);
}

extern "C" {

// Returns null on failure; `error` (size) then says why.
Decoder* gpt_decoder_create(const Model* model, const Layer* layers, const CacheOptions* kv, int tokens, int threads, char* error,
                            int size) {
    try {
        return new Decoder(*model, layers, *kv, tokens, threads);
    } catch (const std::bad_alloc&) {
        strncpy(error, "there is not enough memory", size - 1);
    } catch (const std::exception& e) {
        strncpy(error, e.what(), size - 1);
    }
    return nullptr;
}

void gpt_decoder_free(Decoder* d) { delete d; }

// Stores the keys and values of some tokens, at most as many as the decoder has room for; returns the logits
// (wanted, vocab_size) of the tokens at indices `which`.
void gpt_decoder_forward(Decoder* d, int count, const int32_t* tokens, const int32_t* sequences, const int32_t* positions,
                         int wanted, const int32_t* which, float* logits) {
    const int V = d->m.vocab_size;
    run(*d, [&](const Worker& w) {
        for (int i = w.first(count); i < w.end(count); i++) d->embed(i, tokens[i], positions[i]);
        w.wait();
        d->pass(w, {count, tokens, sequences, positions});
        if (wanted) d->head(w, which, wanted);
        for (int i = w.first(wanted); i < w.end(wanted); i++) memcpy(logits + (size_t)i * V, d->logits(i), V * sizeof(float));
    });
}

// Samples `steps` tokens for each of `count` sequences into sampled (count, steps), feeding each back. `tokens` and
// `positions` are those of the newest token of each sequence, not stored yet; both are advanced. uniforms: (count, steps).
// seen: (count, vocab_size), or null; kept up to date. logits: (steps, count, vocab_size), or null.
// Returns 0, or 1 + index + count * step if logits are not finite.
int64_t gpt_decoder_generate(Decoder* d, int count, const int32_t* sequences, int32_t* tokens, int32_t* positions, int steps,
                             const Sampling* sampling, const float* uniforms, uint8_t* seen, int32_t* sampled, float* logits) {
    const int V = d->m.vocab_size;
    std::atomic<int64_t> failed{INT64_MAX};
    run(*d, [&](const Worker& w) {
        for (int i = w.first(count); i < w.end(count); i++) d->embed(i, tokens[i], positions[i]);
        w.wait();
        for (int step = 0; step < steps; step++) {
            d->pass(w, {count, tokens, sequences, positions});
            d->head(w, d->all_indices(), count);
            for (int i = w.first(count); i < w.end(count); i++) {
                uint8_t* row_seen = seen ? seen + (size_t)i * V : nullptr;
                float* copy = logits ? logits + ((size_t)step * count + i) * V : nullptr;
                const int token = sample_token(*d, w, i, *sampling, uniforms[(size_t)i * steps + step], row_seen, copy);
                if (token < 0) {
                    int64_t failure = 1 + i + (int64_t)count * step, before = failed;
                    while (failure < before && !failed.compare_exchange_weak(before, failure)) {}
                    continue;
                }
                sampled[(size_t)i * steps + step] = tokens[i] = token;
                if (row_seen) row_seen[token] = 1;
                if (++positions[i] < d->m.block_size) d->embed(i, token, positions[i]);
            }
            w.wait();
            if (failed != INT64_MAX) break;
        }
    });
    return failed == INT64_MAX ? 0 : failed.load();
}

// Like forward, but samples a token after each of the tokens at indices `which`, each with its own parameters, into
// sampled (wanted); -1 where logits are not finite.
void gpt_decoder_step(Decoder* d, int count, const int32_t* tokens, const int32_t* sequences, const int32_t* positions, int wanted,
                      const int32_t* which, const Sample* samples, int32_t* sampled) {
    run(*d, [&](const Worker& w) {
        for (int i = w.first(count); i < w.end(count); i++) d->embed(i, tokens[i], positions[i]);
        w.wait();
        d->pass(w, {count, tokens, sequences, positions});
        if (wanted) d->head(w, which, wanted);
        for (int i = w.first(wanted); i < w.end(wanted); i++) {
            const Sample& s = samples[i];
            sampled[i] = sample_token(*d, w, i, s.sampling, s.uniform, s.seen, s.logits);
        }
    });
}

// Samples a token from each row of logits (rows, count), each by a number of `uniforms`, as decoding does: so that it can
// be compared with sampling in PyTorch. seen: (rows, count), or null.
void gpt_decoder_sample(int rows, int count, const float* logits, const Sampling* sampling, const float* uniforms, const uint8_t* seen,
                        int32_t* sampled) {
    std::vector<float> x(count + simd::LANES), ranks(count + simd::LANES);
    std::vector<int32_t> order(count);
    for (int i = 0; i < rows; i++) {
        std::copy_n(logits + (size_t)i * count, count, x.begin());
        const uint8_t* row_seen = seen ? seen + (size_t)i * count : nullptr;
        sampled[i] = sample(x.data(), count, *sampling, uniforms[i], row_seen, ranks.data(), order.data());
    }
}

// Copies the physical blocks `from` (count) to `to` (count).
void gpt_decoder_copy_blocks(Decoder* d, int count, const int32_t* to, const int32_t* from) {
    parallel(d->size.threads, [=](const Worker& w) {
        for (int i = w.first(count); i < w.end(count); i++) d->copy_block(to[i], from[i]);
    });
}

// Returns the bytes of a physical block.
int64_t gpt_decoder_block_bytes(const Decoder* d) { return (int64_t)d->block_bytes(); }

}  // extern "C"
