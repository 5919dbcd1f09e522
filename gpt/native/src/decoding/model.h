// The structures that Python passes to the decoder: gpt/native/decoding/c_structs.py has the same.
#pragma once
#include "../kinds.h"

static const int BLOCK = 64;  // how many outputs of a matrix, or positions of keys, are stored side by side

// The weights and bias of a linear layer, in blocks of 64 outputs. weights: (outputs / 64, inputs, 64); for INT4 a byte
// has inputs k and k + 1; for INT8_TILES (outputs / 64, inputs / 64, 4, 16, 16, 4), which are AMX tiles of 64 inputs
// for 16 outputs, with four inputs side by side. scales: (outputs / 64, inputs / group, 64), or null. bias: (outputs),
// or null. The last block of outputs is padded with zeros.
struct Matrix {
    const void* weights;
    const float *scales, *bias;
    int32_t kind, outputs, inputs, group;
};

// A block of the model. What it lacks is null.
struct Layer {
    Matrix qkv, projection, gate, up, down;
    const float *norm_1, *norm_1_bias, *norm_2, *norm_2_bias, *q_norm, *k_norm;
};

// The model outside of its blocks, and its sizes. What it lacks is null.
struct Model {
    Matrix head;
    const float *token_embedding, *position_embedding, *cos, *sin, *norm, *norm_bias;
    float eps;
    int32_t layers, heads, kv_heads, head_dim, dim, hidden_dim, vocab_size, block_size;
    int32_t is_layer_norm, activation;
};

// How keys and values are stored. kind: their type. blocks: the number of physical blocks; each has, for every layer
// and every key and value head, the keys and values of 64 positions. tables: a block table for each sequence, which
// lists the physical blocks of its positions, 64 by 64; the caller may change it between passes.
struct CacheOptions {
    const int32_t* tables;
    int32_t kind, blocks;
};

// The tokens of a pass, with the sequence and the position of each.
struct Batch {
    int32_t *tokens, *sequences, *positions;
    int32_t count;
};

// Sampling parameters. Only tokens below `ids` are sampled.
struct Sampling {
    float temperature, top_p, min_p, penalty;
    int32_t top_k, ids;
};

// How to sample a token. uniform: a random number in [0, 1). seen: (vocab_size), 1 for tokens to penalize, or null.
// logits: where to copy the logits (vocab_size), or null.
struct Sample {
    Sampling sampling;
    float uniform;
    const uint8_t* seen;
    float* logits;
};
