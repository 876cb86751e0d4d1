#include "types.h"

#if defined(__aarch64__)

namespace rs {
namespace {
constexpr int kLanes = 4;
constexpr int kTile = 3;
constexpr int kQueries = 2;
constexpr int kScoreVectors = 8;
constexpr int kValueVectors = 4;
#define RS_NAME "neon"
#include "isa.h"
}  // namespace
const Kernels* neon_kernels() { return &kTable; }
}  // namespace rs
#else
namespace rs {
const Kernels* neon_kernels() { return nullptr; }
}  // namespace rs
#endif
