// Matrix products on packed weights; included inside the namespace of an instruction set.
//
// A weight lies in panels of kPanel rows, a step of the inputs after another: a vector holds the
// same inputs of neighbouring outputs, so an output is one lane, one chain of additions along the
// inputs, and nothing is summed across lanes. The blocking decides how many rows share a load and
// never what is in a chain: a row's result does not depend on how many rows there are.

constexpr int kVectors = kPanel / kLanes;  // of a panel's outputs

#define RS_UNROLL _Pragma("GCC unroll 16")

// float32 weights. kDepth: inputs of a step; kStride: elements of weight of a step.
template <class W>
struct FloatChain {
    typedef float Weight;
    typedef float Input;
    static constexpr int kDepth = 1, kStride = kPanel;

    template <int M>
    RS_INLINE void step(vf* sum, const Weight* w, const Input* x, int64_t in) {
        RS_UNROLL
        for (int v = 0; v < kVectors; ++v) {
            const vf row = load(w + v * kLanes);
            RS_UNROLL
            for (int j = 0; j < M; ++j)
                sum[j * kVectors + v] = row * x[j * in] + sum[j * kVectors + v];
        }
    }
    template <int M>
    RS_INLINE void last(vf*, const Weight*, const Input*, int64_t) {}
};

// bfloat16 weights in pairs of inputs, widened where they are used; inputs already wide.
template <>
struct FloatChain<uint16_t> {
    typedef uint16_t Weight;
    typedef float Input;
    static constexpr int kDepth = 2, kStride = 2 * kPanel;

    RS_INLINE vu pairs(const Weight* w, int v) {
        vu both;
        __builtin_memcpy(&both, w + v * 2 * kLanes, sizeof both);
        return both;
    }
    template <int M>
    RS_INLINE void step(vf* sum, const Weight* w, const Input* x, int64_t in) {
        last<M>(sum, w, x, in);
        RS_UNROLL
        for (int v = 0; v < kVectors; ++v) {
            const vf row = (vf)(pairs(w, v) & 0xffff0000u);
            RS_UNROLL
            for (int j = 0; j < M; ++j)
                sum[j * kVectors + v] = row * x[j * in + 1] + sum[j * kVectors + v];
        }
    }
    template <int M>
    RS_INLINE void last(vf* sum, const Weight* w, const Input* x, int64_t in) {
        RS_UNROLL
        for (int v = 0; v < kVectors; ++v) {
            const vf row = (vf)(pairs(w, v) << 16);
            RS_UNROLL
            for (int j = 0; j < M; ++j)
                sum[j * kVectors + v] = row * x[j * in] + sum[j * kVectors + v];
        }
    }
};

#ifdef __AVX512BF16__
struct PairChain {  // both bfloat16: two products a lane and step
    typedef uint16_t Weight;
    typedef uint16_t Input;
    static constexpr int kDepth = 2, kStride = 2 * kPanel;

    RS_INLINE void add(vf* sum, const __m512i* rows, int32_t pair) {
        const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
        RS_UNROLL
        for (int v = 0; v < kVectors; ++v)
            sum[v] = (vf)_mm512_dpbf16_ps((__m512)sum[v], (__m512bh)rows[v], both);
    }
    template <int M>
    RS_INLINE void step(vf* sum, const Weight* w, const Input* x, int64_t in) {
        __m512i rows[kVectors];
        RS_UNROLL
        for (int v = 0; v < kVectors; ++v) rows[v] = _mm512_loadu_si512(w + v * 2 * kLanes);
        RS_UNROLL
        for (int j = 0; j < M; ++j) {
            int32_t pair;
            __builtin_memcpy(&pair, x + j * in, sizeof pair);
            add(sum + j * kVectors, rows, pair);
        }
    }
    template <int M>
    RS_INLINE void last(vf* sum, const Weight* w, const Input* x, int64_t in) {
        __m512i rows[kVectors];
        for (int v = 0; v < kVectors; ++v) rows[v] = _mm512_loadu_si512(w + v * 2 * kLanes);
        RS_UNROLL
        for (int j = 0; j < M; ++j) add(sum + j * kVectors, rows, x[j * in]);
    }
};
#endif

// Memory asked for while a tile computes: `step` bytes for each step of the inputs.
struct Ahead {
    const char* from;
    int64_t step;
};

// sums[j * kPanel + i]: output i of the panel w for input j of M.
template <class Chain, int M>
static void tile(const typename Chain::Weight* w, const typename Chain::Input* x, int64_t in,
                 Ahead ahead, float* sums) {
    vf sum[M * kVectors];
    clear<M * kVectors>(sum);
    const int64_t steps = in / Chain::kDepth;
    for (int64_t k = 0; k < steps; ++k) {
        __builtin_prefetch(ahead.from, 0, 2);
        __builtin_prefetch(ahead.from + ahead.step / 2, 0, 2);
        ahead.from += ahead.step;
        Chain::template step<M>(sum, w, x, in);
        w += Chain::kStride;
        x += Chain::kDepth;
    }
    if (in % Chain::kDepth != 0) Chain::template last<M>(sum, w, x, in);
    RS_UNROLL
    for (int i = 0; i < M * kVectors; ++i) store(sums + i * kLanes, sum[i]);
}

template <class Chain, int M>
static void some_rows(int64_t m, const typename Chain::Weight* w, const typename Chain::Input* x,
                      int64_t in, Ahead ahead, float* sums) {
    if constexpr (M > 1) {
        if (m < M) return some_rows<Chain, M - 1>(m, w, x, in, ahead, sums);
    }
    tile<Chain, M>(w, x, in, ahead, sums);
}

RS_INLINE vf biased(vf value, const Linear& a, int64_t place, int64_t n) {
    if (a.bias == nullptr) return value;
    return value + (a.weight_type == kBFloat16
                        ? load_upto(static_cast<const uint16_t*>(a.bias) + place, n)
                        : load_upto(static_cast<const float*>(a.bias) + place, n));
}

// sums: of one row and panel, whose first output is `first`.
template <class Y>
static void finish_row(const Linear& a, const float* sums, int64_t row, int64_t first, int64_t n) {
    Y* y = static_cast<Y*>(a.y) + row * a.out + first;
    const Y* residual =
        a.residual ? static_cast<const Y*>(a.residual) + row * a.out + first : nullptr;
    for (int64_t i = 0; i < n; i += kLanes) {
        vf value = biased(load(sums + i), a, first + i, n - i);
        if (a.gated) {
            const vf up = biased(load(sums + kPanel / 2 + i), a, a.out + first + i, n - i);
            // Rounded as the two halves would be if they were stored.
            value = silu(kept_as(value, y)) * kept_as(up, y);
        }
        if (residual != nullptr) value = kept_as(value, y) + load_upto(residual + i, n - i);
        store_upto(y + i, value, n - i);
    }
}

// With one tile of rows memory is the limit, and what is about to be used is asked for; with more,
// the next panel is, spread over the tiles of this one, so that none of them waits.
constexpr int64_t kAhead = 8192;

template <class Chain>
static void linear_in(const Linear& a, const LinearPart& part) {
    const auto* x = static_cast<const typename Chain::Input*>(a.x);
    const int64_t steps = (a.in + Chain::kDepth - 1) / Chain::kDepth;
    const int64_t size = steps * Chain::kStride, width = panel_width(a);
    const int64_t bytes = size * static_cast<int64_t>(sizeof(typename Chain::Weight));
    const int64_t tiles = (part.last_row - part.first_row + kTile - 1) / kTile;
    alignas(64) float sums[kTile * kPanel];
    for (int64_t panel = part.first_panel; panel < part.last_panel; ++panel) {
        const auto* w = static_cast<const typename Chain::Weight*>(a.weight) + panel * size;
        const char* begin = reinterpret_cast<const char*>(w);
        const int64_t first = panel * width, n = a.out - first < width ? a.out - first : width;
        int64_t row = part.first_row;
        for (int64_t left = tiles; left > 0; --left) {
            const int64_t m = (part.last_row - row + left - 1) / left;
            Ahead ahead{begin + kAhead, bytes / steps};
            if (tiles > 1) {
                const bool is_last = panel + 1 == part.last_panel;
                const char* next = is_last ? part.next : begin + bytes;
                const int64_t share = (is_last ? part.next_bytes : bytes) / tiles;
                ahead = next == nullptr ? Ahead{begin, 0}
                                        : Ahead{next + (tiles - left) * share, share / steps};
            }
            some_rows<Chain, kTile>(m, w, x + row * a.in, a.in, ahead, sums);
            for (int64_t j = 0; j < m; ++j, ++row) {
                if (a.y_type == kBFloat16)
                    finish_row<uint16_t>(a, sums + j * kPanel, row, first, n);
                else
                    finish_row<float>(a, sums + j * kPanel, row, first, n);
            }
        }
    }
    if (tiles == 1 && part.next != nullptr)
        for (int64_t line = 0; line < kAhead && line < part.next_bytes; line += 64)
            __builtin_prefetch(part.next + line, 0, 2);
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

static void linear(const Linear& a, const LinearPart& part) {
#ifdef __AVX512BF16__
    if (takes_pairs(a)) return linear_in<PairChain>(a, part);
#endif
    if (a.weight_type == kBFloat16)
        linear_in<FloatChain<uint16_t>>(a, part);
    else
        linear_in<FloatChain<float>>(a, part);
}
