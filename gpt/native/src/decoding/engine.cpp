// The C interface of the decoder, for gpt/native/decoding/decoder.py. d is a decoder, b a batch, p a pass, w a share of
// the work, and V the size of the vocabulary.
#include "../api.h"
#include "decoder.h"
#include "sampling.h"
#include <exception>

// Samples a token from row i of the logits of a pass, which is overwritten.
static int sample_token(Decoder& d, const Pass& p, const WorkerScratch& scratch, int i, const Sample& s) {
    const int V = d.m.vocab_size;
    if (s.logits) memcpy(s.logits, d.logits(p, i), V * sizeof(float));
    return sample(d.logits(p, i), V, s.sampling, s.uniform, s.seen, scratch.ranks, scratch.order);
}

GPT_FACTS(GPT_SIZE(Matrix), GPT_SIZE(Layer), GPT_SIZE(Model), GPT_SIZE(CacheOptions), GPT_SIZE(Batch),
          GPT_SIZE(Sampling), GPT_SIZE(Sample))

// Creates a decoder with room for `tokens` tokens in a pass. On failure it returns null and writes a message to
// `error`, which has `size` bytes that are 0.
GPT_API Decoder* gpt_decoder_create(const Model* model, const Layer* layers, const CacheOptions* kv, int tokens,
                                    int threads, char* error, int size) {
    try {
        return new Decoder(*model, layers, *kv, tokens, threads);
    } catch (const std::bad_alloc&) {
        strncpy(error, "there is not enough memory", size - 1);
    } catch (const std::exception& e) {
        strncpy(error, e.what(), size - 1);
    }
    return nullptr;
}

GPT_API void gpt_decoder_free(Decoder* d) { delete d; }

// Sets how many threads compute the next calls, at most as many as the decoder was created with.
GPT_API void gpt_decoder_use_threads(Decoder* d, int threads) { d->threads = std::min(threads, d->size.threads); }

// Stores the keys and values of a batch, which has at most as many tokens as the decoder has room for. Writes the
// logits (wanted, vocab_size) of the tokens at indices `which` (wanted).
GPT_API void gpt_decoder_forward(Decoder* d, const Batch* b, int wanted, const int32_t* which, float* logits) {
    run_together(d->threads, [d, b = *b, wanted, which, logits](Team& team) {
        const size_t V = d->m.vocab_size;
        const Pass p = d->together(team, b);
        d->forward(p, which, wanted);
        p.run([&](const Share& w, const WorkerScratch&) {
            const Range mine = w.of(wanted);
            for (int i = mine.first; i < mine.end; i++) memcpy(logits + i * V, d->logits(p, i), V * sizeof(float));
        });
    });
}

// The arguments of `gpt_decoder_generate`.
struct Generation {
    Decoder* d;
    Batch b;
    int steps;
    const Sampling* sampling;
    const float* uniforms;
    uint8_t* seen;
    int32_t* sampled;
    float* logits;

    // Samples a token after each token of a range, and feeds it back.
    void sample_range(const Pass& p, Range range, const WorkerScratch& scratch, int step) const {
        const size_t V = d->m.vocab_size, count = b.count;
        for (int i = range.first; i < range.end; i++) {
            const size_t row = p.first + i;
            uint8_t* row_seen = seen ? seen + row * V : nullptr;
            float* copy = logits ? logits + (step * count + row) * V : nullptr;
            const Sample s = {*sampling, uniforms[row * steps + step], row_seen, copy};
            const int token = sample_token(*d, p, scratch, i, s);
            if (token < 0) {
                // Of several failures the one in the first step is returned, and in that step the first row.
                int64_t failure = 1 + row + count * step, before = d->failed;
                while (failure < before && !d->failed.compare_exchange_weak(before, failure)) {}
                continue;
            }
            sampled[row * steps + step] = p.b.tokens[i] = token;
            if (row_seen) row_seen[token] = 1;
            // The last sampled token may lie outside of the window: no pass reads it.
            if (++p.b.positions[i] < d->m.block_size) d->embed(p, i);
        }
    }

    void generate(const Pass& p) const {
        d->embed(p);
        for (int step = 0; step < steps; step++) {
            d->pass(p);
            d->head(p, d->all_indices(), p.b.count);
            p.run(
                [&](const Share& w, const WorkerScratch& scratch) { sample_range(p, w.of(p.b.count), scratch, step); });
            if (d->failed <= (int64_t)b.count * (step + 1)) break;  // some row failed in this step or before
        }
    }
};

// Samples `steps` tokens for each sequence of a batch into sampled (count, steps). The batch has the newest token of
// each sequence, whose keys and values are not stored yet; each sampled token takes the place of the one before it. The
// workers share each token, or with by_sequence the sequences. uniforms: (count, steps), random numbers in [0, 1).
// seen: (count, vocab_size), where sampled tokens are set to 1, or null. logits: (steps, count, vocab_size), or null.
// Returns 0, or 1 + row + count * step if the logits of a row are not finite.
GPT_API int64_t gpt_decoder_generate(Decoder* d, const Batch* b, int by_sequence, int steps, const Sampling* sampling,
                                     const float* uniforms, uint8_t* seen, int32_t* sampled, float* logits) {
    d->failed = INT64_MAX;
    const Generation g = {d, *b, steps, sampling, uniforms, seen, sampled, logits};
    if (!by_sequence) {
        run_together(d->threads, [g](Team& team) { g.generate(g.d->together(team, g.b)); });
    } else {
        run_together(d->threads, [g, shares = d->threads](Team& team) {
            team.run(shares, [&](int index) {
                Team alone(nullptr, 0, 0);
                const Pass p = g.d->apart(alone, {index, shares}, g.b);
                if (p.b.count > 0) g.generate(p);
            });
        });
    }
    return d->failed == INT64_MAX ? 0 : d->failed.load();
}

// Stores the keys and values of a batch, and samples a token after each of its tokens at indices `which` (wanted), each
// with parameters of its own, into sampled (wanted). A token is -1 where the logits are not finite.
GPT_API void gpt_decoder_step(Decoder* d, const Batch* b, int wanted, const int32_t* which, const Sample* samples,
                              int32_t* sampled) {
    run_together(d->threads, [d, b = *b, wanted, which, samples, sampled](Team& team) {
        const Pass p = d->together(team, b);
        d->forward(p, which, wanted);
        p.run([&](const Share& w, const WorkerScratch& scratch) {
            const Range mine = w.of(wanted);
            for (int i = mine.first; i < mine.end; i++) sampled[i] = sample_token(*d, p, scratch, i, samples[i]);
        });
    });
}

// Copies the physical blocks `from` (count) to the blocks `to` (count).
GPT_API void gpt_decoder_copy_blocks(Decoder* d, int count, const int32_t* to, const int32_t* from) {
    run_together(d->size.threads,
                 [d, count, to, from](Team& team) { team.run(count, [&](int i) { d->copy_block(to[i], from[i]); }); });
}

// Returns the size of a physical block.
GPT_API int64_t gpt_decoder_block_bytes(const Decoder* d) { return (int64_t)d->block_bytes(); }
