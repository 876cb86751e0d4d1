// Tokens from logits. Owns: the filters and the draw, with the meaning of radixserve.sampling.
// Must not know: vectors, requests.
#pragma once
#include <cstdint>

namespace rs {

// logits: [rows, stride] float32, ids 0 .. valid - 1 may be drawn. Mask: bits (token 32 i + j in bit
// j of word i of a row of mask_stride words), or bytes, or neither. The parameters and out: [rows].
struct Sampling {
    const float* logits;
    const uint32_t* mask_bits;
    const uint8_t* mask_bytes;
    const float* temperature;
    const int64_t* top_k;  // 0: off
    const double* top_p;
    const double* min_p;
    const double* uniform;
    const uint8_t* is_greedy;
    int32_t* ids;  // -1: the row has no finite best logit
    int64_t rows, stride, valid, mask_stride;
};

void run_sample(const Sampling& a);

// out[row] = log-softmax of the row at targets[row].
void run_logprobs(const float* logits, int64_t rows, int64_t vocab, const int32_t* targets,
                  float* out);

}  // namespace rs
