// Matrix products for few rows; included inside the namespace of an instruction set.
//
// An output is one chain of fused multiply-adds along the inputs, kLanes of them side by side, then
// one tree of additions. The blocking below decides how many chains run at once and never what is
// in one, so a row's result does not depend on how many rows there are.

template <class W, class X>
struct FloatChain {  // weights and inputs widened to float32
    typedef W Weight;
    typedef X Input;
    static constexpr int kStep = kLanes;
    typedef vf Part;
    RS_INLINE Part read(const float* from) { return load(from); }
    RS_INLINE Part read(const uint16_t* from) { return load(from); }
    template <class T>
    RS_INLINE Part read_some(const T* from, int64_t n) {
        return load_some(from, n);
    }
    RS_INLINE vf add(vf sum, Part a, Part b) { return a * b + sum; }
};

#ifdef __AVX512BF16__
struct PairChain {  // both bfloat16: two products a lane and step
    typedef uint16_t Weight;
    typedef uint16_t Input;
    static constexpr int kStep = 32;
    typedef __m512i Part;
    RS_INLINE Part read(const uint16_t* from) { return _mm512_loadu_si512(from); }
    RS_INLINE Part read_some(const uint16_t* from, int64_t n) {
        return _mm512_maskz_loadu_epi16(static_cast<__mmask32>((1u << n) - 1), from);
    }
    RS_INLINE vf add(vf sum, Part a, Part b) {
        return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
    }
};
#endif

// out[j * kOutChunk + i] for R weight rows i and M inputs j.
template <class Chain, int R, int M>
RS_INLINE void tile(const typename Chain::Weight* w, const typename Chain::Input* x, int64_t in,
                    float* out) {
    constexpr int kChains = R * M;
    constexpr int kPadded = (kChains + kLanes - 1) / kLanes * kLanes;
    vf sum[kPadded];
    clear<kPadded>(sum);
    int64_t k = 0;
    for (; k + Chain::kStep <= in; k += Chain::kStep) {
        typename Chain::Part part[M];
#pragma GCC unroll 16
        for (int j = 0; j < M; ++j) part[j] = Chain::read(x + j * in + k);
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) {
            const typename Chain::Part row = Chain::read(w + i * in + k);
#pragma GCC unroll 16
            for (int j = 0; j < M; ++j) sum[j * R + i] = Chain::add(sum[j * R + i], row, part[j]);
        }
    }
    if (k < in) {
        for (int i = 0; i < R; ++i) {
            const typename Chain::Part row = Chain::read_some(w + i * in + k, in - k);
            for (int j = 0; j < M; ++j)
                sum[j * R + i] =
                    Chain::add(sum[j * R + i], row, Chain::read_some(x + j * in + k, in - k));
        }
    }
    float room[kPadded];
#pragma GCC unroll 16
    for (int i = 0; i < kPadded; i += kLanes) {
        Butterfly<kLanes / 2>::sum(sum + i);
        store(room + i, sum[i]);
    }
    for (int j = 0; j < M; ++j)
        __builtin_memcpy(out + j * kOutChunk, room + j * R, sizeof(float) * R);
}

// Few rows at once and asking ahead reads weights as fast as memory gives them (measured with one
// input: 24 GB/s of a core's 24; 16 rows at once without asking 17, 4 rows without asking 12).
constexpr int64_t kAhead = 4096;

// As tile for any number of inputs m, R weight rows at a time: they stay in the nearest cache while
// the inputs go by.
template <class Chain, int R>
static void strip(const typename Chain::Weight* w, const typename Chain::Input* x, int64_t in,
                  int64_t m, float* out) {
    const char* ahead = reinterpret_cast<const char*>(w) + kAhead;
    const int64_t bytes = R * in * static_cast<int64_t>(sizeof *w);
    for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(ahead + line);
    int64_t j = 0;
    for (; j + kTile <= m; j += kTile) tile<Chain, R, kTile>(w, x + j * in, in, out + j * kOutChunk);
    const auto* rest = x + j * in;
    float* to = out + j * kOutChunk;
    switch (m - j) {
        case 3:
            tile<Chain, R, 3>(w, rest, in, to);
            break;
        case 2:
            tile<Chain, R, 2>(w, rest, in, to);
            break;
        case 1:
            tile<Chain, R, 1>(w, rest, in, to);
            break;
        default:
            break;
    }
}

template <class Chain>
static void panel(const typename Chain::Weight* w, const typename Chain::Input* x, int64_t in,
                  int64_t outs, int64_t m, float* out) {
    int64_t i = 0;
    for (; i + 4 <= outs; i += 4) strip<Chain, 4>(w + i * in, x, in, m, out + i);
    for (; i < outs; ++i) strip<Chain, 1>(w + i * in, x, in, m, out + i);
}

constexpr int64_t kInputBlock = 64;

template <class Y>
static void finish_row(const Linear& a, const float* sums, const float* up_sums, int64_t row,
                       int64_t first, int64_t n) {
    Y* y = static_cast<Y*>(a.y) + row * a.out + first;
    const Y* residual =
        a.residual ? static_cast<const Y*>(a.residual) + row * a.out + first : nullptr;
    for (int64_t i = 0; i < n; i += kLanes) {
        vf value = load(sums + i);
        if (a.bias != nullptr) {
            const int64_t place = first + i;
            value += a.weight_type == kBFloat16
                         ? load_upto(static_cast<const uint16_t*>(a.bias) + place, n - i)
                         : load_upto(static_cast<const float*>(a.bias) + place, n - i);
        }
        if (a.gated) {
            vf up = load(up_sums + i);
            if (a.bias != nullptr) {
                const int64_t place = a.out + first + i;
                up += a.weight_type == kBFloat16
                          ? load_upto(static_cast<const uint16_t*>(a.bias) + place, n - i)
                          : load_upto(static_cast<const float*>(a.bias) + place, n - i);
            }
            // Rounded as the two halves would be if they were stored.
            value = silu(kept_as(value, y)) * kept_as(up, y);
        }
        if (residual != nullptr) value = kept_as(value, y) + load_upto(residual + i, n - i);
        store_upto(y + i, value, n - i);
    }
}

template <class Chain>
static void linear_in(const Linear& a, int64_t first, int64_t last) {
    const auto* w = static_cast<const typename Chain::Weight*>(a.weight);
    const auto* x = static_cast<const typename Chain::Input*>(a.x);
    const int64_t n = last - first;
    alignas(64) float sums[kInputBlock * kOutChunk];
    alignas(64) float up_sums[kInputBlock * kOutChunk];
    for (int64_t begin = 0; begin < a.m; begin += kInputBlock) {
        const int64_t m = a.m - begin < kInputBlock ? a.m - begin : kInputBlock;
        panel<Chain>(w + first * a.in, x + begin * a.in, a.in, n, m, sums);
        if (a.gated)
            panel<Chain>(w + (a.out + first) * a.in, x + begin * a.in, a.in, n, m, up_sums);
        for (int64_t row = 0; row < m; ++row) {
            const float* from = sums + row * kOutChunk;
            const float* up_from = up_sums + row * kOutChunk;
            if (a.y_type == kBFloat16)
                finish_row<uint16_t>(a, from, up_from, begin + row, first, n);
            else
                finish_row<float>(a, from, up_from, begin + row, first, n);
        }
    }
}

static bool takes_pairs(const Linear& a) {
#ifdef __AVX512BF16__
    return a.weight_type == kBFloat16 && a.x_type == kBFloat16;
#else
    (void)a;
    return false;
#endif
}

// A bfloat16 x is widened once, where the products need it wide.
static const void* prepare(const Linear& a, float* room) {
    if (a.x_type == kFloat32 || takes_pairs(a)) return a.x;
    const uint16_t* x = static_cast<const uint16_t*>(a.x);
    const int64_t n = a.m * a.in;
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(room + i, load(x + i));
    if (i < n) store_some(room + i, load_some(x + i, n - i), n - i);
    return room;
}

static void linear(const Linear& a, int64_t first, int64_t last) {
#ifdef __AVX512BF16__
    if (takes_pairs(a)) return linear_in<PairChain>(a, first, last);
#endif
    if (a.weight_type == kBFloat16)
        linear_in<FloatChain<uint16_t, float>>(a, first, last);
    else
        linear_in<FloatChain<float, float>>(a, first, last);
}
