// A model that is trained and a batch that it learns from, as gpt/native/training/bindings.py describes them.
#pragma once
#include <cstdint>

// The parameters of a block of gpt/model/gpt.py, or their gradients, by name. Those that the model does not have are
// null.
struct BlockTensors {
    float *ln_1, *c_q, *c_k, *c_v, *q_norm, *k_norm, *c_proj, *ln_2, *c_gate, *c_fc, *mlp_c_proj;
    float *ln_1_bias, *c_q_bias, *c_k_bias, *c_v_bias, *c_proj_bias;
    float *ln_2_bias, *c_gate_bias, *c_fc_bias, *mlp_c_proj_bias;
};

struct ModelTensors {
    float *wte, *wpe, *ln_f, *ln_f_bias, *lm_head;  // lm_head may be wte
    const BlockTensors* blocks;
};

struct TrainedModel {
    ModelTensors weights, gradients;
    // Of positions, (T, C) and (T, D) twice: what is added to the embeddings, and angles of the rotation; or null.
    const float *added, *cosine, *sine;
    float norm_eps, dropout, weights_dropout;
    int32_t layers, heads, width, hidden, vocab, block_size, is_layer_norm, activation;
};

// B sequences of T positions, and how their losses are weighted (gpt/training/objective.py).
struct MicroBatch {
    const int64_t *inputs, *targets;  // (B, T); a negative target does not count
    const float* teacher;             // (B, T, V) probabilities, or null
    const uint32_t* seeds;            // of dropout: after the embedding, and for each block three
    const float* later_weights;       // of the targets one, two, ... positions further
    float* logits;                    // (B, T, V): they are written, and no gradients; or null
    float scale;                      // of all gradients
    float temperature, teacher_weight, z_weight;
    int32_t later, batch, length, adds;  // adds: to the gradients that are there
};

// Sums over the positions of a batch, in nats and in nats squared.
struct LossSums {
    double cross_entropy, z_loss;
};
