#include "types.h"

#if defined(__AVX2__) && defined(__FMA__)

namespace rs {
namespace {
constexpr int kLanes = 8;
constexpr int kTile = 3;
constexpr int kQueries = 2;
constexpr int kScoreVectors = 4;
constexpr int kValueVectors = 2;
#define RS_NAME "avx2"
#include "isa.h"
}  // namespace
const Kernels* avx2_kernels() { return &kTable; }
}  // namespace rs
#else
namespace rs {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace rs
#endif
