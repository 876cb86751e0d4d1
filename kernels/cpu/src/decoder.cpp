#include "decoder.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <vector>

#include "ops.h"
#include "pool.h"

namespace rs {
namespace {

struct Buffers {
    char* hidden;
    char* normed;
    char* heads;
    char* attended;
    char* inner;
    float* cos;
    float* sin;
};

// One piece of scratch memory for everything that lives through the step.
Buffers buffers(const Model& model, const Shape& shape, int64_t tokens) {
    const int64_t head_rows = shape.num_qo_heads + 2 * shape.num_kv_heads;
    const int64_t sizes[] = {model.hidden_size, model.hidden_size, head_rows * shape.head_dim,
                             shape.num_qo_heads * shape.head_dim, model.intermediate_size};
    const size_t angles = static_cast<size_t>(tokens * shape.head_dim / 2) * sizeof(float);
    const auto padded = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
    size_t total = 2 * padded(angles), at[5];
    for (int i = 0; i < 5; ++i) {
        at[i] = total;
        total += padded(static_cast<size_t>(tokens * sizes[i]) * size_of(model.dtype));
    }
    char* base = static_cast<char*>(scratch(0, 2, total));
    return {base + at[0], base + at[1], base + at[2], base + at[3], base + at[4],
            reinterpret_cast<float*>(base), reinterpret_cast<float*>(base + padded(angles))};
}

void angles(const Model& model, const AttentionPlan& plan, const Buffers& to) {
    const int64_t half = plan.shape().head_dim / 2;
    for (int64_t token = 0; token < plan.tokens(); ++token)
        for (int64_t i = 0; i < half; ++i) {
            const float angle = static_cast<float>(plan.positions()[token]) * model.inv_freq[i];
            to.cos[token * half + i] = std::cos(angle);
            to.sin[token * half + i] = std::sin(angle);
        }
}

// Rows of `bytes` each: the tokens' to the front.
void keep_rows(char* rows, const Tokens& tokens, int64_t bytes) {
    for (int64_t i = 0; i < tokens.count; ++i)
        std::memmove(rows + i * bytes, rows + tokens.places[i] * bytes,
                     static_cast<size_t>(bytes));
}

class Clock {
public:
    explicit Clock(int64_t* times) : times_(times) {
        if (times_ != nullptr) begin_ = now();
    }
    // What has been done since the last call belongs to `stage`.
    void lap(Stage stage) {
        if (times_ == nullptr) return;
        const int64_t end = now();
        times_[stage] += end - begin_;
        begin_ = end;
    }

private:
    static int64_t now() {
        const auto since = std::chrono::steady_clock::now().time_since_epoch();
        return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
    }
    int64_t* times_;
    int64_t begin_ = 0;
};

}  // namespace

void run_decoder(const Model& model, AttentionPlan& plan, const void* const* k_caches,
                 const void* const* v_caches, const int64_t* ids, const Tokens& wanted,
                 void* hidden_out) {
    const Shape& shape = plan.shape();
    const int64_t hidden = model.hidden_size;
    int64_t m = plan.tokens();  // rows that are computed
    const int64_t q_size = shape.num_qo_heads * shape.head_dim;
    const int64_t heads_size = q_size + 2 * shape.num_kv_heads * shape.head_dim;
    const Buffers to = buffers(model, shape, m);
    Clock clock(model.times);
    const auto norm = [&](const void* weight, void* normed) {
        run_norm({to.hidden, weight, normed, hidden, model.eps, model.dtype}, m);
        clock.lap(kNorm);
    };
    const bool are_few = wanted.count < m;
    if (are_few) plan.choose(wanted);
    run_gather(model.embedding, ids, to.hidden, m, hidden, model.dtype);
    angles(model, plan, to);
    clock.lap(kEmbedding);
    const int32_t type = model.dtype;
    const int64_t inner = model.intermediate_size;
    const auto qkv_of = [&](int64_t i) {
        const Layer& layer = model.layers[i];
        return Linear{to.normed, layer.qkv, layer.qkv_bias, nullptr, to.heads, m, hidden,
                      heads_size, type, type, type, false};
    };
    for (int64_t i = 0; i < model.num_layers; ++i) {
        const Layer& layer = model.layers[i];
        const bool is_last = i + 1 == model.num_layers;
        const bool drops = are_few && is_last;
        const int64_t kept = drops ? wanted.count : m;
        const Linear output = {to.attended, layer.output, layer.output_bias, to.hidden, to.hidden,
                               kept, q_size, hidden, type, type, type, false};
        const Linear gate_up = {to.normed, layer.gate_up, layer.gate_up_bias, nullptr, to.inner,
                                kept, hidden, inner, type, type, type, true};
        const Linear down = {to.inner, layer.down, layer.down_bias, to.hidden, to.hidden, kept,
                             inner, hidden, type, type, type, false};
        norm(layer.input_norm, to.normed);
        run_linear(qkv_of(i), &output);
        clock.lap(kQkv);
        run_rotary({to.heads, to.cos, to.sin, layer.q_norm, layer.k_norm, plan.slots(),
                    const_cast<void*>(k_caches[i]), const_cast<void*>(v_caches[i]),
                    shape.head_dim / 2, shape.num_qo_heads, shape.num_kv_heads, shape.head_dim,
                    model.eps, model.dtype},
                   m);
        clock.lap(kRotary);
        plan.run(to.heads, heads_size, k_caches[i], v_caches[i], to.attended, q_size, drops);
        if (drops) {
            keep_rows(to.attended, wanted, q_size * static_cast<int64_t>(size_of(type)));
            keep_rows(to.hidden, wanted, hidden * static_cast<int64_t>(size_of(type)));
            m = wanted.count;
        }
        clock.lap(kAttention);
        run_linear(output, &gate_up);
        clock.lap(kOutput);
        norm(layer.post_norm, to.normed);
        run_linear(gate_up, &down);
        clock.lap(kGateUp);
        const Linear next = qkv_of(is_last ? i : i + 1);
        run_linear(down, is_last ? nullptr : &next);
        clock.lap(kDown);
    }
    norm(model.norm, hidden_out);
}

}  // namespace rs
