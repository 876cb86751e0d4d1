// A decoder of the Llama family, a whole step in one call. Owns: the order of operations and the
// buffers between them. Must not know: who owns the weights.
#pragma once
#include <cstdint>

#include "plan.h"

namespace rs {

// Matrices are packed, of [out, in] with the rows of q, k, v one after another, gate_up gated (types.h).
// Null: absent.
struct Layer {
    const void* input_norm;
    const void* qkv;
    const void* qkv_bias;
    const void* q_norm;
    const void* k_norm;
    const void* output;
    const void* output_bias;
    const void* post_norm;
    const void* gate_up;
    const void* gate_up_bias;
    const void* down;
    const void* down_bias;
};

// What a step is made of, in the order in which it is done first.
enum Stage { kEmbedding, kNorm, kQkv, kRotary, kAttention, kOutput, kGateUp, kDown, kStages };

struct Model {
    int64_t num_layers, hidden_size, intermediate_size;
    float eps;
    int32_t dtype;
    const float* inv_freq;  // [head_dim / 2]
    const void* embedding;  // of [vocab, hidden_size], packed
    const void* norm;
    const Layer* layers;
    int64_t* times;  // [kStages] nanoseconds, added to; null: nobody wants to know
};

// ids: [plan.tokens()]. k_caches, v_caches: [num_layers], written at the plan's slots. wanted: the
// tokens whose hidden states are asked for: of the others the last layer computes K and V alone.
// hidden: [wanted.count, hidden_size], the final norm done.
void run_decoder(const Model& model, AttentionPlan& plan, const void* const* k_caches,
                 const void* const* v_caches, const int64_t* ids, const Tokens& wanted,
                 void* hidden);

}  // namespace rs
