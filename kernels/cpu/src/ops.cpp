#include "ops.h"

#include <algorithm>
#include <cstring>
#include <vector>

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

// Rows that a thread takes through a panel: their inputs stay in its own cache from panel to panel.
constexpr int64_t kRowBlock = 256;

// The share of `units` that begins at `begin`: large ones first, to be told of seldom and to read
// memory in order, small ones last, so that the threads end together.
int64_t share_of(int64_t units, int64_t begin) {
    return std::max<int64_t>(1, (units - begin) / (2 * threads()));
}

struct Weights {
    explicit Weights(const Linear& a)
        : panels((a.out + panel_width(a) - 1) / panel_width(a)),
          bytes((a.in * static_cast<int64_t>(size_of(a.weight_type)) + 3) / 4 * 4 * kPanel),
          first(static_cast<const char*>(a.weight)) {}
    int64_t panels, bytes;  // of a panel
    const char* first;
};

}  // namespace

void run_linear(const Linear& asked, const Linear* after) {
    Linear a = asked;
    const Kernels& with = kernels();
    float* room = nullptr;
    if (a.x_type == kBFloat16)
        room = static_cast<float*>(scratch(0, 0, static_cast<size_t>(a.m * a.in) * sizeof(float)));
    a.x = with.prepare(a, room);
    const Weights own(a), later(after == nullptr ? a : *after);
    const int64_t blocks = (a.m + kRowBlock - 1) / kRowBlock, units = blocks * own.panels;
    std::vector<int64_t> begins{0};
    while (begins.back() < units) begins.push_back(begins.back() + share_of(units, begins.back()));
    const int64_t shares = static_cast<int64_t>(begins.size()) - 1;
    // Where the share begins that a thread will probably get after this one.
    const auto next_of = [&](int64_t share) -> const char* {
        share += threads();
        if (share < shares) return own.first + begins[share] % own.panels * own.bytes;
        if (after == nullptr) return nullptr;
        int64_t begin = 0;
        for (; share > shares; --share) begin += share_of(later.panels, begin);
        return begin < later.panels ? later.first + begin * later.bytes : nullptr;
    };
    parallel_for(shares, [&](int64_t share, int) {
        int64_t first = begins[share];
        const int64_t last = begins[share + 1];
        while (first < last) {
            const int64_t block = first / own.panels, begin = first % own.panels;
            const int64_t end = std::min(own.panels, begin + last - first);
            first += end - begin;
            const bool is_own = first < last || share + threads() < shares;
            const char* next = first < last ? own.first : next_of(share);
            with.linear(a, {a.m * block / blocks, a.m * (block + 1) / blocks, begin, end, next,
                            is_own ? own.bytes : later.bytes});
        }
    });
}

void run_norm(const Norm& a, int64_t rows) {
    over_rows(rows, [&](int64_t first, int64_t last) { kernels().rms_norm(a, first, last); });
}

void run_rotary(const Rotary& a, int64_t tokens) {
    over_rows(tokens, [&](int64_t first, int64_t last) { kernels().rotary(a, first, last); });
}

void run_gather(const void* table, const int64_t* ids, void* out, int64_t rows, int64_t in,
                int32_t dtype) {
    // A step of a panel is four bytes a row: one float32 or two bfloat16.
    const int64_t bytes = in * static_cast<int64_t>(size_of(dtype)), steps = (bytes + 3) / 4;
    over_rows(rows, [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
            const int64_t place = ids[row] / kPanel * steps * kPanel + ids[row] % kPanel;
            const char* from = static_cast<const char*>(table) + place * 4;
            char* to = static_cast<char*>(out) + row * bytes;
            for (int64_t step = 0; step < bytes / 4; ++step)
                std::memcpy(to + step * 4, from + step * kPanel * 4, 4);
            if (bytes % 4 != 0) std::memcpy(to + bytes - 2, from + (steps - 1) * kPanel * 4, 2);
        }
    });
}

}  // namespace rs
