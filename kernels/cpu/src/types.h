// What the parts of the library hand each other. Owns: the structs, the table of kernels that each
// instruction set fills. Must not know: threads, Python.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace rs {

enum DType : int32_t { kFloat32 = 0, kBFloat16 = 1 };

inline size_t size_of(int32_t dtype) { return dtype == kBFloat16 ? 2 : 4; }

inline const void* at(const void* base, int64_t index, int32_t dtype) {
    return static_cast<const char*>(base) + index * static_cast<int64_t>(size_of(dtype));
}

inline void* at(void* base, int64_t index, int32_t dtype) {
    return static_cast<char*>(base) + index * static_cast<int64_t>(size_of(dtype));
}

constexpr int64_t kPanel = 32;  // rows of weight that lie together

// y = x @ weight.T + bias. x: [m, in]. weight: of [out, in], packed. bias: [out] or null.
// y: [m, out].
// Packed: panels of kPanel rows one after another, the last filled up with zeros, each
// [in, kPanel] in float32 and [ceil(in / 2), kPanel, 2] in bfloat16.
// gated: weight is of [2 * out, in], gate first, and y = silu(gate) * up; a panel holds kPanel / 2
// rows of gate, then the same rows of up.
// residual: [m, out] in y's type or null, added after y has been rounded (may be y itself).
struct Linear {
    const void* x;
    const void* weight;
    const void* bias;
    const void* residual;
    void* y;
    int64_t m, in, out;
    int32_t x_type, weight_type, y_type, gated;
};

inline int64_t panel_width(const Linear& a) { return a.gated ? kPanel / 2 : kPanel; }

// next: the panel that this thread will probably read after it, of these weights or others, of which
// next_bytes are asked for in time; null where that is not known.
struct LinearPart {
    int64_t first_row, last_row, first_panel, last_panel;
    const char* next;
    int64_t next_bytes;
};

// normed = x / rms(x) * weight, each row of `size`.
struct Norm {
    const void* x;
    const void* weight;
    void* normed;
    int64_t size;
    float eps;
    int32_t dtype;
};

// heads: [tokens, num_qo_heads + 2 * num_kv_heads, head_dim], q then k then v; q is rotated in
// place, rotated k and v go to the cache. cos, sin: [tokens, stride] float32, head_dim / 2 used.
// q_norm, k_norm: [head_dim] or null: rms norm of each head before it is rotated.
struct Rotary {
    void* heads;
    const float* cos;
    const float* sin;
    const void* q_norm;
    const void* k_norm;
    const int64_t* slots;
    void* k_cache;
    void* v_cache;
    int64_t stride, num_qo_heads, num_kv_heads, head_dim;
    float eps;
    int32_t dtype;
};

// Queries of one item of attention: `count` tokens, the query heads of kv_heads KV heads each, from
// kv_head on.
// KV tokens t0 .. t1 - 1 of the table `pages`; t0 is a multiple of kBlock.
struct AttendItem {
    const int32_t* tokens;
    const int32_t* pages;
    int32_t count, kv_head, kv_heads, t0, t1;
    int32_t row;    // of the own part of a row; -1 for a shared part
    bool is_whole;  // everything from t0 on is here: the item writes the output
};

constexpr int32_t kBlock = 64;       // KV tokens computed at once
constexpr int32_t kSegment = 256;    // KV tokens folded into one state; a multiple of kBlock
constexpr int64_t kStateExtra = 32;  // floats of a state beside its accumulator

struct Attend {
    const void* q;
    const void* k_cache;
    const void* v_cache;
    void* out;
    const int32_t* limits;       // [tokens] the last KV token that each token sees
    const int64_t* state_place;  // [tokens] its first state, in states of all heads; -1: none
    float* states;
    int64_t q_stride, out_stride, num_qo_heads, num_kv_heads, head_dim, page_size;
    float scale;
    int32_t dtype;
};

struct Candidate {
    float value;
    int32_t id;
};

constexpr int64_t kScanBlock = 128;  // logits whose best is kept apart

// One row of logits. mask_bits (token 32 i + j in bit j of word i) or mask_bytes may be null.
struct Scan {
    const float* logits;
    const uint32_t* mask_bits;
    const uint8_t* mask_bytes;
    int64_t n;
    float temperature;
    float* scaled;      // [n] logits / temperature, -inf where masked; null: only the best
    float* block_best;  // [ceil(n / kScanBlock)]
};

struct Best {
    float value;
    int32_t block;  // first id of the first block of kScanBlock that holds it
    bool has_nan;
};

struct Kernels {
    const char* name;
    void (*linear)(const Linear&, const LinearPart&);
    // x as the linear kernel reads it: room for m * in floats, or x itself.
    const void* (*prepare)(const Linear&, float* room);
    void (*rms_norm)(const Norm&, int64_t first_row, int64_t last_row);
    void (*rotary)(const Rotary&, int64_t first_token, int64_t last_token);
    int64_t (*attend_scratch)(const Attend&, int32_t most);  // bytes; most: tokens * KV heads
    // next: an item that this thread is likely to take after this one, or null.
    void (*attend)(const Attend&, const AttendItem&, const AttendItem* next, void* scratch);
    void (*finish)(const Attend&, const AttendItem&, void* scratch);  // states of a row to out
    Best (*scan)(const Scan&);
    // weights = exp(scaled - best), 0 where less than least; sums: of each kScanBlock.
    void (*weigh)(const float* scaled, int64_t n, float best, float least, float* weights,
                  double* sums);
    double (*exp_sum)(const float* values, int64_t n, float best);  // of exp(value - best)
};

// Null where the compiler could not build the path.
const Kernels* avx512_kernels();
const Kernels* avx2_kernels();
const Kernels* neon_kernels();
const Kernels* plain_kernels();

// The path in use; never null.
const Kernels& kernels();

}  // namespace rs
