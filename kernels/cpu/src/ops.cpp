#include "ops.h"

#include <algorithm>
#include <cstring>

#include "pool.h"

namespace rs {
namespace {

constexpr int64_t kRowsAlone = 4;  // rows that are done before another thread could be told
constexpr int64_t kRowChunk = 4;

template <class Body>
void over_rows(int64_t rows, Body&& body) {
    if (rows <= kRowsAlone) return body(0, rows);
    parallel_for((rows + kRowChunk - 1) / kRowChunk, [&](int64_t chunk, int) {
        body(chunk * kRowChunk, std::min(rows, (chunk + 1) * kRowChunk));
    });
}

}  // namespace

void run_linear(const Linear& asked) {
    Linear a = asked;
    const Kernels& with = kernels();
    float* room = nullptr;
    if (a.x_type == kBFloat16)
        room = static_cast<float*>(scratch(0, 0, static_cast<size_t>(a.m * a.in) * sizeof(float)));
    a.x = with.prepare(a, room);
    parallel_for((a.out + kOutChunk - 1) / kOutChunk, [&](int64_t chunk, int) {
        with.linear(a, chunk * kOutChunk, std::min(a.out, (chunk + 1) * kOutChunk));
    });
}

void run_norm(const Norm& a, int64_t rows) {
    over_rows(rows, [&](int64_t first, int64_t last) { kernels().rms_norm(a, first, last); });
}

void run_rotary(const Rotary& a, int64_t tokens) {
    over_rows(tokens, [&](int64_t first, int64_t last) { kernels().rotary(a, first, last); });
}

void run_silu_mul(const void* x, void* y, int64_t rows, int64_t size, int32_t dtype) {
    over_rows(rows, [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row)
            kernels().silu_mul(at(x, row * 2 * size, dtype), at(y, row * size, dtype), size,
                               dtype);
    });
}

void run_gather(const void* table, const int64_t* ids, void* out, int64_t rows, int64_t bytes) {
    for (int64_t row = 0; row < rows; ++row)
        std::memcpy(static_cast<char*>(out) + row * bytes,
                    static_cast<const char*>(table) + ids[row] * bytes,
                    static_cast<size_t>(bytes));
}

}  // namespace rs
