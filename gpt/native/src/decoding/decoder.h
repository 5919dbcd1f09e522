// A decoder on a CPU: it has the keys and values of some sequences, and computes passes. A pass has a batch of tokens,
// each at one position of one sequence: a decode step has one token of every sequence, a prefill many tokens of one.
// The results for a token do not depend on the other tokens or on the number of threads, to the last bit.
//
// m is a model, l a layer, p a pass, b a batch, w a share of the work, and D the size of a head.
#pragma once
#include "../memory.h"
#include "../ops/norm.h"
#include "../team.h"
#include "attention.h"
#include "layers.h"
#include "matmul.h"
#include <numeric>
#include <vector>

static const int MAX_REPEATED_NORMS = 4;  // each share normalizes up to this many tokens itself, to save a phase

// A part of the work on attention: the tokens [first, end) of a batch, which are of one sequence, and one key and value
// head.
struct Run {
    int first, end, head;
};

// The sizes of buffers. All but `tokens` and `threads` are padded to whole blocks. tokens: how many a pass can have.
// capacity: positions of a window. qkv: queries, keys and values of a token.
struct Sizes {
    int tokens, threads, capacity, dim, hidden, qkv, vocab;
    Sizes(const Model& m, int tokens, int threads)
        : tokens(tokens), threads(threads), capacity(round_up(m.block_size, BLOCK)), dim(round_up(m.dim, BLOCK)),
          hidden(round_up(m.hidden_dim, BLOCK)), qkv(round_up((m.heads + 2 * m.kv_heads) * m.head_dim, BLOCK)),
          vocab(round_up(m.vocab_size, BLOCK)) {}
};

// Temporary memory of one worker. `ranks` and `order` are for sampling.
struct WorkerScratch {
    float *normed, *query, *weights, *sums, *ranks;
    int32_t* order;
    TileScratch tiles;
    WorkerScratch(Arena& a, const Model& m, const Sizes& s)
        : order(a.alloc<int32_t>(s.vocab)), tiles(a, s.tokens, std::max(s.dim, s.hidden)) {
        normed = a.alloc<float>((size_t)MAX_REPEATED_NORMS * s.dim);
        query = a.alloc<float>((size_t)MAX_QUERIES * m.head_dim);
        weights = a.alloc<float>((size_t)MAX_QUERIES * s.capacity);
        sums = a.alloc<float>((size_t)MAX_QUERIES * padded_head_dim(m.head_dim));
        ranks = a.alloc<float>(s.vocab);
    }
};

// The activations of the tokens of a pass, each array (tokens, padded size). x: the residual stream. mixed: the output
// of attention. up, gate: the hidden layer of the feed-forward network.
struct Activations {
    float *x, *normed, *mixed, *qkv, *up, *gate, *logits;
    Activations(Arena& a, const Sizes& s) {
        for (float** rows : {&x, &normed, &mixed}) *rows = a.alloc<float>((size_t)s.tokens * s.dim);
        for (float** rows : {&up, &gate}) *rows = a.alloc<float>((size_t)s.tokens * s.hidden);
        qkv = a.alloc<float>((size_t)s.tokens * s.qkv);
        logits = a.alloc<float>((size_t)s.tokens * s.vocab);
    }
    // The activations from one token on.
    Activations from(size_t token, const Sizes& s) const {
        Activations a = *this;
        for (float** rows : {&a.x, &a.normed, &a.mixed}) *rows += token * s.dim;
        for (float** rows : {&a.up, &a.gate}) *rows += token * s.hidden;
        a.qkv += token * s.qkv;
        a.logits += token * s.vocab;
        return a;
    }
};

// The tokens that a team computes, or one worker alone. `first` is the index of the first of these tokens in the batch
// of the caller.
struct Pass {
    Team& team;
    int shares;  // into which the work of each phase is divided
    int first;
    Batch b;
    Activations a;
    const WorkerScratch* scratch;  // of each share

    // Calls work(share, its temporary memory) for each share, and returns when all are done.
    template <class Work> void run(const Work& work) const {
        team.run(shares, [&](int index) {
            [[maybe_unused]] TileScope tiles;  // configures the AMX tiles meanwhile
            work(Share{index, shares}, scratch[index]);
        });
    }
};

// Calls work with a value of the type in which keys and values are stored.
template <class Work> inline void with_kv_type(int kind, Work work) {
    if (kind == FLOAT32) work(float());
    else if (kind == BFLOAT16) work(bf16());
    else work(int8_t());
}

// Memory of the physical blocks. head_bytes: the size of one key and value head of one layer in a block.
struct CacheMemory {
    size_t head_bytes, block_bytes;
    char* blocks;
    CacheMemory(Arena& a, const Model& m, const CacheOptions& o) {
        with_kv_type(o.kind, [&](auto kv) { head_bytes = HeadCache<decltype(kv)>::bytes(m.head_dim); });
        block_bytes = m.layers * m.kv_heads * head_bytes;
        blocks = a.alloc<char>(o.blocks * block_bytes);
    }
};

class Decoder {
    std::vector<Layer> layers;
    Memory<Activations, true> activations;
    Memory<WorkerScratch, true> scratch;
    Memory<CacheMemory, true> cache;
    std::vector<int32_t> indices;

    // Writes the normalized x of some of the tokens at indices `which`: (count, padded dim).
    void normalize(const Pass& p, float* y, const int32_t* which, Range range, const float* gain, const float* bias) {
        for (int i = range.first; i < range.end; i++)
            norm_row(y + (size_t)i * size.dim, p.a.x + (size_t)which[i] * size.dim, gain, bias, m.dim,
                     {m.is_layer_norm != 0, m.eps});
    }

    // Calls work(share, scratch, normalized x of the tokens at indices `which`). Few tokens are normalized for each
    // share anew, many by all workers together.
    template <class Work>
    void run_with_norm(const Pass& p, const int32_t* which, int count, const float* gain, const float* bias,
                       const Work& work) {
        const bool is_shared = count > MAX_REPEATED_NORMS;
        if (is_shared)
            p.run([&](const Share& w, const WorkerScratch&) {
                normalize(p, p.a.normed, which, w.of(count), gain, bias);
            });
        p.run([&](const Share& w, const WorkerScratch& scratch) {
            if (!is_shared) normalize(p, scratch.normed, which, {0, count}, gain, bias);
            work(w, scratch, is_shared ? p.a.normed : scratch.normed);
        });
    }

    // The block table of a sequence.
    const int32_t* table(int sequence) const { return kv.tables + (size_t)sequence * (size.capacity / BLOCK); }

    // The stored keys and values of one head of a sequence.
    template <class T> HeadCache<T> cached(int layer, int sequence, int head) const {
        const size_t start = ((size_t)layer * m.kv_heads + head) * cache->head_bytes;
        return {cache->blocks + start, cache->block_bytes, table(sequence), m.head_dim};
    }

    // Stores the keys and values of a run, and computes its attention, for several queries at a time. `next` is the run
    // that this worker computes after it, or null.
    template <class T>
    void attend_run(const Pass& p, const WorkerScratch& own_scratch, int layer, const Run& run, const Run* next) {
        const Layer& l = layers[layer];
        const Batch& b = p.b;
        const int D = m.head_dim, group = m.heads / m.kv_heads;
        const HeadCache<T> c = cached<T>(layer, b.sequences[run.first], run.head);
        for (int i = run.first; i < run.end; i++) {
            // A row of qkv has all queries of a token, then all keys, then all values.
            const float *qkv = p.a.qkv + (size_t)i * size.qkv, *k = qkv + (m.heads + run.head) * D;
            // No query is in scratch yet, so that the key can be prepared there.
            prepare_head(own_scratch.query, k, m, l.k_norm, b.positions[i], 1.0f);
            store(c, b.positions[i], own_scratch.query, k + m.kv_heads * D);
        }
        Queries q = {own_scratch.query, own_scratch.weights, own_scratch.sums, size.capacity, {}, {}};
        const int queries = (run.end - run.first) * group;
        for (int n = 0, count; n < queries; n += count) {
            count = queries - n >= 4 ? 4 : queries - n >= 2 ? 2 : 1;  // the numbers that `attend` is compiled for
            for (int j = 0; j < count; j++) {
                // Query n + j of the run. The query heads of a token that share a key head follow each other.
                const int i = run.first + (n + j) / group, h = run.head * group + (n + j) % group;
                prepare_head(own_scratch.query + j * D, p.a.qkv + (size_t)i * size.qkv + h * D, m, l.q_norm,
                             b.positions[i], 1.0f / std::sqrt((float)D));
                q.positions[j] = b.positions[i] + 1;
                q.result[j] = p.a.mixed + (size_t)i * size.dim + h * D;
            }
            // The last queries of a run prefetch the keys of the next run.
            const bool is_last = n + count == queries && next;
            const HeadCache<T> ahead = is_last ? cached<T>(layer, b.sequences[next->first], next->head) : c;
            const int positions = is_last ? b.positions[next->end - 1] + 1 : 0;
            if (count == 4) attend<T, 4>(c, q, ahead, positions);
            else if (count == 2) attend<T, 2>(c, q, ahead, positions);
            else attend<T, 1>(c, q, ahead, positions);
        }
    }

    // Computes `mixed` from `qkv`. A share is some heads of all sequences, so that the shares are about the same work
    // although the sequences differ in length.
    template <class T> void attention(const Pass& p, const Share& w, const WorkerScratch& scratch, int layer) {
        const Batch& b = p.b;
        int runs = 0;
        for (int i = 0; i < b.count; i++) runs += i == 0 || b.sequences[i] != b.sequences[i - 1];
        const Range mine = w.of(runs * m.kv_heads);
        Run last = {0, 0, 0};
        for (int first = 0, run = 0, end; first < b.count; first = end, run++) {
            for (end = first + 1; end < b.count && b.sequences[end] == b.sequences[first];) end++;
            for (int head = 0; head < m.kv_heads; head++) {
                // A share is some pairs of a head and a run, in the order of heads, and of runs within a head.
                if (head * runs + run < mine.first || head * runs + run >= mine.end) continue;
                const Run next = {first, end, head};
                // A run is computed only when the next one is known, whose keys it prefetches.
                if (last.end) attend_run<T>(p, scratch, layer, last, &next);
                last = next;
            }
        }
        if (last.end) attend_run<T>(p, scratch, layer, last, nullptr);
    }

  public:
    const Model m;
    const CacheOptions kv;
    const Sizes size;
    int threads;                             // at most size.threads
    std::atomic<int64_t> failed{INT64_MAX};  // of `gpt_decoder_generate`; here, since late workers read it

    Decoder(const Model& model, const Layer* first_layer, const CacheOptions& kv, int tokens, int threads)
        : layers(first_layer, first_layer + model.layers), activations(1, Sizes(model, tokens, threads)),
          scratch(threads, model, Sizes(model, tokens, threads)), cache(1, model, kv), indices(tokens), m(model),
          kv(kv), size(model, tokens, threads), threads(threads) {
        // 0 means that the system grants the tiles, or that this processor has none.
        if (request_tiles()) throw std::runtime_error("the system does not give the AMX tiles");
        // The padding of rows must be 0; later, only zeros are written there.
        activations.clear();
        scratch.clear();
        std::iota(indices.begin(), indices.end(), 0);
    }
    ~Decoder() { wait_for_late_workers(); }
    size_t block_bytes() const { return cache->block_bytes; }
    char* block(int i) const { return cache->blocks + i * cache->block_bytes; }
    float* logits(const Pass& p, int i) const { return p.a.logits + (size_t)i * size.vocab; }
    const int32_t* all_indices() const { return indices.data(); }
    void copy_block(int to, int from) { memcpy(block(to), block(from), cache->block_bytes); }

    // Two ways to share a batch among the workers. Together, all workers compute a part of each token. Apart, each
    // share is some of the sequences, which one worker computes alone with all weights: it neither waits for the others
    // nor reads what they write.
    Pass together(Team& team, const Batch& b) const { return {team, threads, 0, b, activations[0], &scratch[0]}; }
    Pass apart(Team& alone, const Share& w, const Batch& b) const {
        const Range range = w.of(b.count);
        const int first = range.first;
        const Batch mine = {b.tokens + first, b.sequences + first, b.positions + first, range.end - first};
        return {alone, 1, first, mine, activations->from(first, size), &scratch[w.index]};
    }

    // Writes the embedding of token i of a pass to `x`.
    void embed(const Pass& p, int i) {
        const int position = p.b.positions[i];
        const float* embedding = m.token_embedding + (size_t)p.b.tokens[i] * m.dim;
        const float* added = m.position_embedding ? m.position_embedding + (size_t)position * m.dim : nullptr;
        float* x = p.a.x + (size_t)i * size.dim;
        for (int c = 0; c < m.dim; c++) x[c] = embedding[c] + (added ? added[c] : 0.0f);
    }

    void embed(const Pass& p) {
        p.run([&](const Share& w, const WorkerScratch&) {
            const Range range = w.of(p.b.count);
            for (int i = range.first; i < range.end; i++) embed(p, i);
        });
    }

    // Computes all blocks of the model, from the embeddings in `x`, which become the output of the last block.
    void pass(const Pass& p) {
        const Batch& b = p.b;
        const Activations& a = p.a;
        const size_t dim = size.dim, hidden = size.hidden, qkv = size.qkv;
        for (int i = 0; i < m.layers; i++) {
            const Layer& l = layers[i];
            run_with_norm(p, all_indices(), b.count, l.norm_1, l.norm_1_bias,
                          [&](const Share& w, const WorkerScratch& scratch, const float* h) {
                              matmul(w, scratch.tiles, {a.qkv, qkv, h, dim, b.count, &l.qkv, false});
                          });
            p.run([&](const Share& w, const WorkerScratch& scratch) {
                with_kv_type(kv.kind, [&](auto kv) { attention<decltype(kv)>(p, w, scratch, i); });
            });
            p.run([&](const Share& w, const WorkerScratch& scratch) {
                matmul(w, scratch.tiles, {a.x, dim, a.mixed, dim, b.count, &l.projection, true});
            });
            run_with_norm(p, all_indices(), b.count, l.norm_2, l.norm_2_bias,
                          [&](const Share& w, const WorkerScratch& scratch, const float* h) {
                              const TileScratch& tiles = scratch.tiles;
                              if (m.activation == GATED_SILU)
                                  matmul(w, tiles, {a.gate, hidden, h, dim, b.count, &l.gate, false});
                              matmul(w, tiles, {a.up, hidden, h, dim, b.count, &l.up, false});
                              // `matmul` divides the outputs in the same way, so that this share has computed these.
                              const Range blocks = w.of(size.hidden / BLOCK);
                              for (int t = 0; t < b.count; t++)
                                  activate(a.up + t * hidden, a.gate + t * hidden, blocks.first * BLOCK,
                                           blocks.end * BLOCK, m.activation);
                          });
            p.run([&](const Share& w, const WorkerScratch& scratch) {
                matmul(w, scratch.tiles, {a.x, dim, a.up, hidden, b.count, &l.down, true});
            });
        }
    }

    // Writes the logits of the tokens at indices `which` (count) to `logits` (count, padded vocab_size).
    void head(const Pass& p, const int32_t* which, int count) {
        run_with_norm(
            p, which, count, m.norm, m.norm_bias, [&](const Share& w, const WorkerScratch& scratch, const float* h) {
                matmul(w, scratch.tiles, {p.a.logits, (size_t)size.vocab, h, (size_t)size.dim, count, &m.head, false});
            });
    }

    // Stores the keys and values of a batch, and computes the logits of its tokens at indices `which` (count).
    void forward(const Pass& p, const int32_t* which, int count) {
        embed(p);
        pass(p);
        if (count) head(p, which, count);
    }
};
