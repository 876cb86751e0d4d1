#include "types.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
namespace rs {
namespace {
constexpr int kLanes = 16;
constexpr int kTile = 8;
constexpr int kQueries = 4;
constexpr int kScoreVectors = 4;
constexpr int kValueVectors = 4;
#define RS_NAME "avx512_bf16"
#include "isa.h"
}  // namespace
const Kernels* avx512_kernels() { return &kTable; }
}  // namespace rs
#else
namespace rs {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace rs
#endif
