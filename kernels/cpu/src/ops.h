// Whole operations, split over the threads of the pool. Owns: how work is cut. Must not know:
// vectors, Python. The caller holds running().
#pragma once
#include <cstdint>

#include "types.h"

namespace rs {

// after: what will be computed next and is asked for at the end; null: nobody knows.
void run_linear(const Linear& a, const Linear* after = nullptr);
void run_norm(const Norm& a, int64_t rows);
void run_rotary(const Rotary& a, int64_t tokens);
// out: [rows, in], the rows `ids` of a packed table of [.., in].
void run_gather(const void* table, const int64_t* ids, void* out, int64_t rows, int64_t in,
                int32_t dtype);

}  // namespace rs
