// The C ABI. Owns: the names that Python loads, the choice of instruction set. Everything that
// computes holds running(), so that two engines of one process may share the pool.
#include <cstring>
#include <mutex>

#include "decoder.h"
#include "ops.h"
#include "plan.h"
#include "pool.h"
#include "sample.h"
#include "types.h"

#define RS_API extern "C" __attribute__((visibility("default")))

namespace rs {
namespace {

const Kernels* usable(const char* name) {
    struct Path {
        const Kernels* kernels;
        bool runs_here;
    };
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512bf16");
#else
    const bool avx2 = false, avx512 = false;
#endif
    const Path paths[] = {
        {avx512_kernels(), avx512}, {avx2_kernels(), avx2}, {neon_kernels(), true},
        {plain_kernels(), true}};
    for (const Path& path : paths) {
        if (path.kernels == nullptr || !path.runs_here) continue;
        if (*name == '\0' || std::strncmp(path.kernels->name, name, std::strlen(name)) == 0)
            return path.kernels;
    }
    return nullptr;
}

const Kernels* in_use = plain_kernels();

}  // namespace

const Kernels& kernels() { return *in_use; }

}  // namespace rs

using Lock = std::lock_guard<std::mutex>;

// name: "" for the best path of this machine, or the beginning of one's name. Returns the name of
// the path now in use, null (and no change) when this machine or build has none of that name.
RS_API const char* rs_use(const char* name) {
    Lock lock(rs::running());
    const rs::Kernels* found = rs::usable(name);
    if (found == nullptr) return nullptr;
    rs::in_use = found;
    return found->name;
}

RS_API void rs_set_threads(int32_t count) {
    Lock lock(rs::running());
    rs::set_threads(count);
}

RS_API void rs_linear(const rs::Linear* a) {
    Lock lock(rs::running());
    rs::run_linear(*a);
}

RS_API void rs_gather(const void* table, const int64_t* ids, void* out, int64_t rows, int64_t in,
                      int32_t dtype) {
    Lock lock(rs::running());
    rs::run_gather(table, ids, out, rows, in, dtype);
}

RS_API void rs_rms_norm(const rs::Norm* a, int64_t rows) {
    Lock lock(rs::running());
    rs::run_norm(*a, rows);
}

RS_API void rs_rotary(const rs::Rotary* a, int64_t tokens) {
    Lock lock(rs::running());
    rs::run_rotary(*a, tokens);
}

RS_API rs::AttentionPlan* rs_plan_new(const rs::Shape* shape) {
    return new rs::AttentionPlan(*shape);
}

RS_API void rs_plan_free(rs::AttentionPlan* plan) { delete plan; }

RS_API void rs_plan_fill(rs::AttentionPlan* plan, const rs::Rows* rows) {
    Lock lock(rs::running());
    plan->fill(*rows);
}

// slots: [tokens] int64, of the last fill; valid until the next.
RS_API const int64_t* rs_plan_slots(const rs::AttentionPlan* plan) { return plan->slots(); }

RS_API void rs_attend(rs::AttentionPlan* plan, const void* q, int64_t q_stride,
                      const void* k_cache, const void* v_cache, void* out, int64_t out_stride) {
    Lock lock(rs::running());
    plan->run(q, q_stride, k_cache, v_cache, out, out_stride);
}

RS_API void rs_decoder(const rs::Model* model, rs::AttentionPlan* plan,
                       const void* const* k_caches, const void* const* v_caches,
                       const int64_t* ids, const int64_t* wanted, int64_t count, void* hidden) {
    Lock lock(rs::running());
    rs::run_decoder(*model, *plan, k_caches, v_caches, ids, {wanted, count}, hidden);
}

RS_API void rs_sample(const rs::Sampling* a) {
    Lock lock(rs::running());
    rs::run_sample(*a);
}

RS_API void rs_logprobs(const float* logits, int64_t rows, int64_t vocab, const int32_t* targets,
                        float* out) {
    Lock lock(rs::running());
    rs::run_logprobs(logits, rows, vocab, targets, out);
}
