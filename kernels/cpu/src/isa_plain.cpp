// For any machine: the compiler lowers the vectors to what its baseline has.
#include "types.h"

namespace rs {
namespace {
constexpr int kLanes = 4;
constexpr int kTile = 1;
constexpr int kQueries = 2;
constexpr int kScoreVectors = 8;
constexpr int kValueVectors = 4;
#define RS_NAME "plain"
#include "isa.h"
}  // namespace
const Kernels* plain_kernels() { return &kTable; }
}  // namespace rs
