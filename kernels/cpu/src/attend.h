// Attention of a few queries over paged KV; included inside the namespace of an instruction set.
//
// KV is taken in blocks of kBlock tokens that start at multiples of kBlock, folded in ascending
// order into the state of its segment, and segments in ascending order into the result. Every
// query's arithmetic in a block is its own, so a row has the same result to the bit alone, beside
// others, with its prefix computed for many rows at once, and split over threads.
//
// A block's K is transposed, so that scores are sums over registers of tokens without a horizontal
// step; bfloat16 pairs stay pairs where the machine multiplies them. Weights are then rounded to
// bfloat16 and the divisor adds up what was rounded.

constexpr int kBlockVectors = kBlock / kLanes;

RS_INLINE int64_t padded_dim(int64_t dim) { return (dim + 15) / 16 * 16; }
RS_INLINE int64_t state_size(int64_t dim) { return padded_dim(dim) + kStateExtra; }

struct Work {
    uint32_t* q;        // [queries, head_dim] floats or [queries, head_dim / 2] pairs
    uint32_t* k;        // [steps, kBlock]
    uint32_t* v;        // [steps, padded_dim]
    float* state;       // [queries, state_size]: sums, divisor by lanes, then the maximum
    float* total;       // as state, of the segments before
    int64_t q_stride;   // of q, in words
    int64_t dim;        // padded
    int64_t size;       // of a state
    int32_t group;      // query heads of one KV head
};

RS_INLINE float& state_max(float* state, int64_t dim) { return state[dim + 16]; }

RS_INLINE void clear_state(float* state, int64_t size, int64_t dim) {
    for (int64_t i = 0; i < size; ++i) state[i] = 0.0f;
    state_max(state, dim) = -__builtin_inff();
}

RS_INLINE void scale_state(float* state, int64_t dim, float factor) {
    for (int64_t i = 0; i < dim + 16; i += kLanes) store(state + i, load(state + i) * factor);
}

static void merge_state(float* total, const float* state, int64_t size, int64_t dim) {
    const float a = total[dim + 16], b = state[dim + 16];
    if (b == -__builtin_inff()) return;
    if (a == -__builtin_inff()) {
        __builtin_memcpy(total, state, static_cast<size_t>(size) * sizeof(float));
        return;
    }
    const float best = a > b ? a : b;
    const float keep = exp2_of(a - best), take = exp2_of(b - best);
    for (int64_t i = 0; i < dim + 16; i += kLanes) {
        const vf kept = load(total + i) * keep;
        store(total + i, load(state + i) * take + kept);
    }
    state_max(total, dim) = best;
}

template <class T>
struct WideMode {
    typedef T Type;
    static constexpr int kPack = 1;  // values in a word
    RS_INLINE vf read(const uint32_t* from) { return load(reinterpret_cast<const float*>(from)); }
    RS_INLINE vf spread(const uint32_t* from) {
        float value;
        __builtin_memcpy(&value, from, sizeof value);
        return splat(value);
    }
    RS_INLINE vf add(vf sum, vf a, vf b) { return a * b + sum; }
    RS_INLINE vf put_weights(uint32_t* to, int vector, vf weights) {
        store(reinterpret_cast<float*>(to) + vector * kLanes, weights);
        return weights;
    }
    RS_INLINE void put_query(uint32_t* to, const T* from, int64_t dim) {
        for (int64_t i = 0; i < dim; i += kLanes)
            store_upto(reinterpret_cast<float*>(to) + i, load_upto(from + i, dim - i), dim - i);
    }
    static void put_keys(uint32_t* to, const T* const* rows, int64_t dim) {
        for (int64_t d = 0; d < dim; d += kLanes) {
            const int64_t n = dim - d < kLanes ? dim - d : kLanes;
            for (int t = 0; t < kBlock; t += kLanes) {
                vf part[kLanes];
                for (int i = 0; i < kLanes; ++i)
                    part[i] = rows[t + i] != nullptr ? load_upto(rows[t + i] + d, n) : vf{};
                Butterfly<kLanes / 2>::transpose(part);
                for (int64_t i = 0; i < n; ++i)
                    store(reinterpret_cast<float*>(to) + (d + i) * kBlock + t, part[i]);
            }
        }
    }
    static void put_values(uint32_t* to, const T* const* rows, int64_t dim, int64_t padded) {
        for (int t = 0; t < kBlock; ++t)
            for (int64_t d = 0; d < padded; d += kLanes)
                store(reinterpret_cast<float*>(to) + t * padded + d,
                      rows[t] != nullptr && d < dim ? load_upto(rows[t] + d, dim - d) : vf{});
    }
};

#ifdef __AVX512BF16__
struct PairMode {
    typedef uint16_t Type;
    static constexpr int kPack = 2;
    RS_INLINE __m512i read(const uint32_t* from) { return _mm512_loadu_si512(from); }
    RS_INLINE __m512i spread(const uint32_t* from) {
        return _mm512_set1_epi32(static_cast<int>(*from));
    }
    RS_INLINE vf add(vf sum, __m512i a, __m512i b) {
        return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
    }
    RS_INLINE vf put_weights(uint32_t* to, int vector, vf weights) {
        const vh half = (vh)_mm512_cvtneps_pbh((__m512)weights);
        __builtin_memcpy(reinterpret_cast<char*>(to) + vector * sizeof half, &half, sizeof half);
        return (vf)(__builtin_convertvector(half, vu) << 16);
    }
    RS_INLINE void put_query(uint32_t* to, const uint16_t* from, int64_t dim) {
        __builtin_memcpy(to, from, static_cast<size_t>(dim) * sizeof(uint16_t));
    }
    static void put_keys(uint32_t* to, const uint16_t* const* rows, int64_t dim) {
        const int64_t words = dim / 2;
        for (int64_t d = 0; d < words; d += kLanes) {
            const int64_t n = words - d < kLanes ? words - d : kLanes;
            const __mmask16 some = static_cast<__mmask16>((1u << n) - 1);
            for (int t = 0; t < kBlock; t += kLanes) {
                vf part[kLanes];
#pragma GCC unroll 16
                for (int i = 0; i < kLanes; ++i)
                    part[i] = rows[t + i] != nullptr
                                  ? (vf)_mm512_maskz_loadu_epi32(some, rows[t + i] + 2 * d)
                                  : vf{};
                Butterfly<kLanes / 2>::transpose(part);
                for (int64_t i = 0; i < n; ++i)
                    _mm512_storeu_si512(to + (d + i) * kBlock + t, (__m512i)part[i]);
            }
        }
    }
    // Words of one register and of another taken in turn, from `first` on.
    RS_INLINE __m512i interleaving(int first) {
        alignas(64) uint16_t place[32];
        for (int i = 0; i < 32; ++i)
            place[i] = static_cast<uint16_t>(first + i / 2 + (i % 2 ? 32 : 0));
        return _mm512_load_si512(place);
    }
    static void put_values(uint32_t* to, const uint16_t* const* rows, int64_t dim,
                           int64_t padded) {
        // The low half of a word is the token with the even number.
        const __m512i low = interleaving(0), high = interleaving(16);
        for (int t = 0; t < kBlock; t += 2) {
            uint32_t* row = to + t / 2 * padded;
            int64_t d = 0;
            for (; d + 32 <= dim && rows[t + 1] != nullptr; d += 32) {
                const __m512i even = _mm512_loadu_si512(rows[t] + d);
                const __m512i odd = _mm512_loadu_si512(rows[t + 1] + d);
                _mm512_storeu_si512(row + d, _mm512_permutex2var_epi16(even, low, odd));
                _mm512_storeu_si512(row + d + 16, _mm512_permutex2var_epi16(even, high, odd));
            }
            for (; d < padded; d += kLanes) {
                const auto half = [&](const uint16_t* from) {
                    return from != nullptr ? (vu)load_upto(from + d, dim - d) : vu{};
                };
                const vu pair = half(rows[t]) >> 16 | half(rows[t + 1]);
                __builtin_memcpy(row + d, &pair, sizeof pair);
            }
        }
    }
};
#endif

// sum[q * C + c] += the products of Q rows of a with C vectors of b, step by step.
template <class Mode, int Q, int C>
RS_INLINE void products(const uint32_t* a, int64_t a_stride, const uint32_t* b, int64_t b_stride,
                        int64_t steps, vf* sum) {
    for (int64_t s = 0; s < steps; ++s) {
        decltype(Mode::read(b)) column[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) column[c] = Mode::read(b + s * b_stride + c * kLanes);
#pragma GCC unroll 4
        for (int q = 0; q < Q; ++q) {
            const auto row = Mode::spread(a + q * a_stride + s);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c)
                sum[q * C + c] = Mode::add(sum[q * C + c], row, column[c]);
        }
    }
}

// Hides what a query may not see. visible: tokens of the block that it sees, from the first on.
RS_INLINE void mask_scores(vf* scores, int32_t visible) {
    vi lane;
    for (int i = 0; i < kLanes; ++i) lane[i] = i;
    for (int c = 0; c < kBlockVectors; ++c, lane += kLanes)
        scores[c] = pick(lane < visible, scores[c], splat(-__builtin_inff()));
}

// Takes the block's maximum into the state; returns the new one.
RS_INLINE float raise_max(const vf* scores, float* state, int64_t dim) {
    vf best = scores[0];
#pragma GCC unroll 8
    for (int c = 1; c < kBlockVectors; ++c) best = larger(best, scores[c]);
    const float before = state_max(state, dim), here = largest_of(best);
    if (!(here > before)) return before;
    scale_state(state, dim, exp2_of(before - here));
    state_max(state, dim) = here;
    return here;
}

// The weights of one query over the block; the divisor grows by them.
template <class Mode>
RS_INLINE void weigh_scores(const vf* scores, float top, float* state, int64_t dim,
                            uint32_t* weights) {
    vf divisor = load(state + dim);
#pragma GCC unroll 8
    for (int c = 0; c < kBlockVectors; ++c)
        divisor += Mode::put_weights(weights, c, exp2_of(scores[c] - splat(top)));
    store(state + dim, divisor);
}

template <class Mode, int Q, int C>
RS_INLINE void add_values(const Work& w, const uint32_t* weights, int first, int64_t d) {
    vf sum[Q * C];
#pragma GCC unroll 4
    for (int q = 0; q < Q; ++q)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c)
            sum[q * C + c] = load(w.state + (first + q) * w.size + d + c * kLanes);
    products<Mode, Q, C>(weights, kBlock, w.v + d, w.dim, kBlock / Mode::kPack, sum);
#pragma GCC unroll 4
    for (int q = 0; q < Q; ++q)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c)
            store(w.state + (first + q) * w.size + d + c * kLanes, sum[q * C + c]);
}

template <class Mode, int Q>
static void attend_queries(const Attend& a, const AttendItem& item, const Work& w, int first,
                           int32_t t0) {
    alignas(64) uint32_t weights[Q * kBlock];
    vf scores[Q * kBlockVectors];
    clear<Q * kBlockVectors>(scores);
    products<Mode, Q, kBlockVectors>(w.q + first * w.q_stride, w.q_stride, w.k, kBlock,
                                     a.head_dim / Mode::kPack, scores);
    float* states = w.state + first * w.size;
    float tops[Q];
    bool sees[Q];
#pragma GCC unroll 4
    for (int q = 0; q < Q; ++q) {
        vf* row = scores + q * kBlockVectors;
#pragma GCC unroll 8
        for (int c = 0; c < kBlockVectors; ++c) row[c] *= a.scale * kLog2E;
        const int32_t limit = a.limits[item.tokens[(first + q) / w.group]];
        const int32_t visible = (limit < item.t1 ? limit + 1 : item.t1) - t0;
        if (visible < kBlock) mask_scores(row, visible);
        sees[q] = visible > 0;
        tops[q] = sees[q] ? raise_max(row, states + q * w.size, w.dim) : 0.0f;
    }
#pragma GCC unroll 4
    for (int q = 0; q < Q; ++q) {
        // Of one that sees nothing all weights are 0 and nothing changes.
        if (sees[q])
            weigh_scores<Mode>(scores + q * kBlockVectors, tops[q], states + q * w.size, w.dim,
                               weights + q * kBlock);
        else
            __builtin_memset(weights + q * kBlock, 0, kBlock * sizeof(uint32_t));
    }
    int64_t d = 0;
    for (; d + kValueVectors * kLanes <= w.dim; d += kValueVectors * kLanes)
        add_values<Mode, Q, kValueVectors>(w, weights, first, d);
    for (; d < w.dim; d += kLanes) add_values<Mode, Q, 1>(w, weights, first, d);
}

// Where in the caches the tokens of a block are, for the first of the item's heads; -1 past t1. An
// offset is in elements.
static void locate_block(const Attend& a, const AttendItem& item, int32_t t0, int64_t* places) {
    int64_t page = t0 / a.page_size, offset = t0 % a.page_size;
    const int64_t token_size = a.num_kv_heads * a.head_dim;
    for (int32_t i = 0; i < kBlock; ++i) {
        places[i] = -1;
        if (t0 + i >= item.t1) continue;
        places[i] = (item.pages[page] * a.page_size + offset) * token_size +
                    item.kv_head * a.head_dim;
        if (++offset == a.page_size) {
            offset = 0;
            ++page;
        }
    }
}

// Reads a line of everything there is of a block. In their order, and not by prefetching: only then
// does the machine see a stream and fetch ahead of it (measured: 18 GB/s beside 9, which is what the
// requests that a core may have open give when each is asked for by itself). Worth it where an item
// takes all of what it passes.
static void touch_block(const Attend& a, const AttendItem& item, const int64_t* places) {
    const int64_t bytes = item.kv_heads * a.head_dim * static_cast<int64_t>(size_of(a.dtype));
    if (item.kv_heads != a.num_kv_heads) return;
    const void* const caches[] = {a.k_cache, a.v_cache};
    for (const void* cache : caches)
        for (int32_t i = 0; i < kBlock && places[i] >= 0; ++i) {
            const volatile char* row = static_cast<const char*>(at(cache, places[i], a.dtype));
            for (int64_t line = 0; line < bytes; line += 64) (void)row[line];
        }
}

// head: of the item's.
template <class Mode>
static void attend_block(const Attend& a, const AttendItem& item, const Work& w, int32_t t0,
                         const int64_t* places, int32_t head) {
    typedef typename Mode::Type T;
    const T* k_rows[kBlock];
    const T* v_rows[kBlock];
    for (int32_t i = 0; i < kBlock; ++i) {  // what is past the end may be anything: never read
        const bool is_there = places[i] >= 0;
        const int64_t place = places[i] + head * a.head_dim;
        k_rows[i] = is_there ? static_cast<const T*>(a.k_cache) + place : nullptr;
        v_rows[i] = is_there ? static_cast<const T*>(a.v_cache) + place : nullptr;
    }
    Mode::put_keys(w.k, k_rows, a.head_dim);
    Mode::put_values(w.v, v_rows, a.head_dim, w.dim);
    const int queries = item.count * w.group;
    int first = 0;
    for (; first + kQueries <= queries; first += kQueries)
        attend_queries<Mode, kQueries>(a, item, w, first, t0);
    switch (queries - first) {
        case 3:
            attend_queries<Mode, 3>(a, item, w, first, t0);
            break;
        case 2:
            attend_queries<Mode, 2>(a, item, w, first, t0);
            break;
        case 1:
            attend_queries<Mode, 1>(a, item, w, first, t0);
            break;
        default:
            break;
    }
}

static Work work_in(const Attend& a, const AttendItem& item, void* scratch) {
    Work w;
    w.group = static_cast<int32_t>(a.num_qo_heads / a.num_kv_heads);
    w.dim = padded_dim(a.head_dim);
    w.size = state_size(a.head_dim);
    const int64_t queries = int64_t{item.count} * item.kv_heads * w.group;
    w.state = static_cast<float*>(scratch);
    w.total = w.state + queries * w.size;
    w.k = reinterpret_cast<uint32_t*>(w.total + queries * w.size);
    w.v = w.k + w.dim * kBlock;
    w.q = w.v + w.dim * kBlock;
    w.q_stride = w.dim;
    return w;
}

// The part of the work, and of the item, that is one KV head's.
static Work head_of(const Work& work, const AttendItem& item, int32_t head) {
    Work w = work;
    const int64_t before = int64_t{head} * item.count * w.group;
    w.state += before * w.size;
    w.total += before * w.size;
    w.q += before * w.q_stride;
    return w;
}

static AttendItem head_of(const AttendItem& all, int32_t head) {
    AttendItem item = all;
    item.kv_head += head;
    return item;
}

static int64_t attend_scratch(const Attend& a, int32_t most) {
    const int64_t queries = most * (a.num_qo_heads / a.num_kv_heads);
    const int64_t dim = padded_dim(a.head_dim);
    return (queries * (2 * state_size(a.head_dim) + dim) + 2 * dim * kBlock) * 4;
}

static float* kept_state(const Attend& a, const AttendItem& item, const Work& w, int query,
                         int64_t segment) {
    const int64_t place = a.state_place[item.tokens[query / w.group]];
    const int64_t head = item.kv_head * w.group + query % w.group;
    return a.states + ((place + segment) * a.num_qo_heads + head) * w.size;
}

template <class T>
static void write_out(const Attend& a, const AttendItem& item, const Work& w) {
    for (int query = 0; query < item.count * w.group; ++query) {
        const int64_t head = item.kv_head * w.group + query % w.group;
        T* out = static_cast<T*>(a.out) + item.tokens[query / w.group] * a.out_stride +
                 head * a.head_dim;
        const float* total = w.total + query * w.size;
        const float divisor = 1.0f / sum_of(load(total + w.dim));
        for (int64_t d = 0; d < a.head_dim; d += kLanes)
            store_upto(out + d, load(total + d) * divisor, a.head_dim - d);
    }
}

static void begin_states(const Attend& a, const AttendItem& item, const Work& w) {
    const int64_t segment = item.t0 / kSegment;
    const size_t bytes = static_cast<size_t>(w.size) * sizeof(float);
    for (int query = 0; query < item.count * w.group; ++query) {
        float* state = w.state + query * w.size;
        float* total = w.total + query * w.size;
        if (item.t0 % kSegment != 0)
            __builtin_memcpy(state, kept_state(a, item, w, query, segment), bytes);
        else
            clear_state(state, w.size, w.dim);
        if (!item.is_whole) continue;
        clear_state(total, w.size, w.dim);
        for (int64_t s = 0; s < segment; ++s)
            merge_state(total, kept_state(a, item, w, query, s), w.size, w.dim);
    }
}

static void end_segment(const Attend& a, const AttendItem& item, const Work& w, int64_t segment) {
    const size_t bytes = static_cast<size_t>(w.size) * sizeof(float);
    for (int query = 0; query < item.count * w.group; ++query) {
        float* state = w.state + query * w.size;
        if (item.is_whole)
            merge_state(w.total + query * w.size, state, w.size, w.dim);
        else
            __builtin_memcpy(kept_state(a, item, w, query, segment), state, bytes);
        clear_state(state, w.size, w.dim);
    }
}

template <class Mode>
static void take_queries(const Attend& a, const AttendItem& item, const Work& w) {
    typedef typename Mode::Type T;
    for (int query = 0; query < item.count * w.group; ++query) {
        const int64_t head = item.kv_head * w.group + query % w.group;
        const T* q = static_cast<const T*>(a.q) +
                     item.tokens[query / w.group] * a.q_stride + head * a.head_dim;
        Mode::put_query(w.q + query * w.q_stride, q, a.head_dim);
    }
}

// Heads take turns block by block: their rows of K and V are neighbours in memory. The next block
// is read before this one is computed: its pages lie anywhere.
template <class Mode>
static void attend_in(const Attend& a, const AttendItem& item, void* scratch) {
    const Work w = work_in(a, item, scratch);
    for (int32_t h = 0; h < item.kv_heads; ++h) {
        take_queries<Mode>(a, head_of(item, h), head_of(w, item, h));
        begin_states(a, head_of(item, h), head_of(w, item, h));
    }
    int64_t places[2][kBlock];
    locate_block(a, item, item.t0, places[0]);
    for (int32_t t = item.t0, turn = 0; t < item.t1; t += kBlock, turn ^= 1) {
        locate_block(a, item, t + kBlock, places[turn ^ 1]);
        touch_block(a, item, places[turn ^ 1]);
        const bool is_end = t + kBlock >= item.t1 || (t + kBlock) % kSegment == 0;
        for (int32_t h = 0; h < item.kv_heads; ++h) {
            attend_block<Mode>(a, item, head_of(w, item, h), t, places[turn], h);
            if (is_end) end_segment(a, head_of(item, h), head_of(w, item, h), t / kSegment);
        }
    }
    if (!item.is_whole) return;
    for (int32_t h = 0; h < item.kv_heads; ++h)
        write_out<typename Mode::Type>(a, head_of(item, h), head_of(w, item, h));
}

static void attend(const Attend& a, const AttendItem& item, void* scratch) {
#ifdef __AVX512BF16__
    if (a.dtype == kBFloat16) return attend_in<PairMode>(a, item, scratch);
#endif
    if (a.dtype == kBFloat16)
        attend_in<WideMode<uint16_t>>(a, item, scratch);
    else
        attend_in<WideMode<float>>(a, item, scratch);
}

// The kept states of all segments up to item.t1, folded as a whole item folds them.
static void finish(const Attend& a, const AttendItem& item, void* scratch) {
    const Work w = work_in(a, item, scratch);
    for (int query = 0; query < item.count * w.group; ++query) {
        float* total = w.total + query * w.size;
        clear_state(total, w.size, w.dim);
        for (int64_t s = 0; s * kSegment < item.t1; ++s)
            merge_state(total, kept_state(a, item, w, query, s), w.size, w.dim);
    }
    if (a.dtype == kBFloat16)
        write_out<uint16_t>(a, item, w);
    else
        write_out<float>(a, item, w);
}
