// One block of KV for some queries; included inside the namespace of an instruction set. Each query's
// arithmetic in a block is its own: who is beside it does not change a bit.

constexpr int kBlockVectors = kBlock / kLanes;
static_assert(kBlockVectors % kScoreVectors == 0, "a half block is computed in whole halves");

// The tokens of a block: where their rows are, for the first of an item's heads. Those past the end
// are at a row of zeros.
struct Places {
    const char* k[kBlock];
    const char* v[kBlock];
    int32_t count;
    int32_t bytes;  // of a row, all heads of the item
};

// Rows of the next block that are asked for while products are done, `each` with a step. They are
// spread thinly, for a core has few requests open at a time, and taken in the order in which they
// lie in memory, for only then does the machine fetch ahead of what is asked.
struct NextRows {
    const char* const* rows;
    int count, each, bytes;

    // The share of part i of n.
    NextRows share(int i, int n) const {
        const int begin = count * i / n, some = count * (i + 1) / n - begin;
        return {rows + begin, some, (some + kBlock / 2 - 1) / (kBlock / 2), bytes};
    }
};

// A block on its way through the queries of an item's heads head .. head + heads - 1. next: what is
// asked for meanwhile.
struct Block {
    const Places& here;
    const Places& next;
    int32_t t0, head, heads;
    bool is_laid;  // of one head, for queries that come later
};

struct Work {
    uint32_t* q;                // [queries, padded_dim] floats, or pairs in its first half
    uint32_t* k;                // [steps, kBlock]
    uint32_t* v;                // [steps, padded_dim]
    const char* const* values;  // rows to use in place of v, where not null
    int64_t values_offset;      // into each of them, in bytes
    float* state;               // [queries, state_size]: of this segment
    float* total;               // as state, of the segments before
    char* zeros;                // what a token that is not there has
    int64_t q_stride;           // of q, in words
    int64_t dim;                // padded
    int64_t size;               // of a state
    int32_t group;              // query heads of one KV head
    int32_t queries;            // tokens times these
};

// The part of the work that is one head's.
static Work head_of(const Work& work, int32_t head) {
    Work w = work;
    const int64_t before = int64_t{head} * w.queries;
    w.state += before * w.size;
    w.total += before * w.size;
    w.q += before * w.q_stride;
    return w;
}

// Vectors of a block as products reads them: laid out before, `stride` words from step to step.
struct Laid {
    const uint32_t* from;
    int64_t stride;
    template <class Mode, int C, class Column>
    __attribute__((always_inline)) void read(int64_t step, Column* column) const {
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c)
            column[c] = Mode::read(from + step * stride + c * kLanes);
    }
};

constexpr int kFewQueries = 3 * kQueries;  // laying values out takes longer than these do

// Values where they are in the cache, `offset` bytes into each row.
struct InPlace {
    const char* const* rows;
    int64_t offset;
    template <class Mode, int C, class Column>
    __attribute__((always_inline)) void read(int64_t step, Column* column) const {
        Mode::template read_values<C>(rows + step * Mode::kPack, offset, column);
    }
};

// sum[q * C + c] += the products of Q rows of a with C vectors of b, step by step.
template <class Mode, int Q, int C, class Source>
RS_INLINE void products(const uint32_t* a, int64_t a_stride, const Source& b, int64_t steps,
                        NextRows ahead, vf* sum) {
    int next = 0;
    for (int64_t s = 0; s < steps; ++s) {
        for (int end = next + ahead.each; next < end && next < ahead.count; ++next)
            for (int line = 0; line < ahead.bytes; line += 64)
                __builtin_prefetch(ahead.rows[next] + line, 0, 2);
        typename Mode::Column column[C];
        b.template read<Mode, C>(s, column);
#pragma GCC unroll 8
        for (int q = 0; q < Q; ++q) {
            const auto row = Mode::spread(a + q * a_stride + s);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c)
                sum[q * C + c] = Mode::add(sum[q * C + c], row, column[c]);
        }
    }
}

// scores: [Q, V] vectors, of the first V of the block. at: the first query.
template <class Mode, int Q, int V>
RS_INLINE void score(const Work& w, int at, int64_t head_dim, NextRows ahead, vf* scores) {
    constexpr int C = V < kScoreVectors ? V : kScoreVectors;
#pragma GCC unroll 4
    for (int begin = 0; begin < V; begin += C) {
        vf sum[Q * C];
        clear<Q * C>(sum);
        products<Mode, Q, C>(w.q + at * w.q_stride, w.q_stride, Laid{w.k + begin * kLanes, kBlock},
                             head_dim / Mode::kPack, begin == 0 ? ahead : NextRows{}, sum);
#pragma GCC unroll 8
        for (int q = 0; q < Q; ++q)
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) scores[q * V + begin + c] = sum[q * C + c];
    }
}

// Hides what a query may not see. visible: tokens of the block that it sees, from the first on.
template <int V>
RS_INLINE void mask_scores(vf* scores, int32_t visible) {
    vi lane;
    for (int i = 0; i < kLanes; ++i) lane[i] = i;
    for (int c = 0; c < V; ++c, lane += kLanes)
        scores[c] = pick(lane < visible, scores[c], splat(-__builtin_inff()));
}

template <int V>
RS_INLINE vf best_of_lanes(const vf* scores) {
    vf best = scores[0];
#pragma GCC unroll 16
    for (int c = 1; c < V; ++c) best = larger(best, scores[c]);
    return best;
}

// State sums from column d on += weights * values.
template <class Mode, int Q, int C, class Source>
RS_INLINE void add_columns(const Work& w, const uint32_t* weights, int at, int64_t d,
                           const Source& values, int64_t steps, NextRows ahead) {
    vf sum[Q * C];
#pragma GCC unroll 8
    for (int q = 0; q < Q; ++q)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c)
            sum[q * C + c] = load(w.state + (at + q) * w.size + d + c * kLanes);
    products<Mode, Q, C>(weights, kBlock, values, steps, ahead, sum);
#pragma GCC unroll 8
    for (int q = 0; q < Q; ++q)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c)
            store(w.state + (at + q) * w.size + d + c * kLanes, sum[q * C + c]);
}

template <class Mode, int Q>
RS_INLINE void add_values(const Work& w, const uint32_t* weights, int at, int64_t steps,
                          NextRows ahead) {
    typedef typename Mode::Type T;
    constexpr int C = kValueVectors, kColumns = C * kLanes;
    int64_t d = 0;
    for (; d + kColumns <= w.dim; d += kColumns) {
        const NextRows now = d ? NextRows{} : ahead;
        if (w.values == nullptr) {
            add_columns<Mode, Q, C>(w, weights, at, d, Laid{w.v + d, w.dim}, steps, now);
        } else {
            const int64_t offset = w.values_offset + d * static_cast<int64_t>(sizeof(T));
            add_columns<Mode, Q, C>(w, weights, at, d, InPlace{w.values, offset}, steps, now);
        }
    }
    for (; d < w.dim; d += kLanes)
        add_columns<Mode, Q, 1>(w, weights, at, d, Laid{w.v + d, w.dim}, steps, NextRows{});
}

template <int Q, class Body>
RS_INLINE void with_queries(int count, int at, Body&& body) {
    if (count == Q) return body(std::integral_constant<int, Q>(), at);
    if constexpr (Q > 1) with_queries<Q - 1>(count, at, body);
}

// Calls body(queries as a constant, the first of them) for kQueries at a time, then for the rest.
template <class Body>
RS_INLINE void by_queries(int count, Body&& body) {
    int at = 0;
    for (; at + kQueries <= count; at += kQueries)
        body(std::integral_constant<int, kQueries>(), at);
    if constexpr (kQueries > 1) with_queries<kQueries - 1>(count - at, at, body);
}

// Queries whose scores are all computed before any is weighed: weighing is a long chain for one, and
// the machine works on those of several at a time.
constexpr int kTogether = 4 * kQueries;

// Rows that one head asks for while it computes: a share of the tokens, and all that these have.
RS_INLINE NextRows rows_ahead(const AttendItem& item, const Block& block, const char* const* rows,
                              int32_t head) {
    return NextRows{rows, block.next.count, 0, block.next.bytes}.share(head, item.kv_heads);
}

template <class Mode, int V>
RS_INLINE void score_queries(const Attend& a, const Work& w, int first, int count, NextRows ahead,
                             vf* scores) {
    const int parts = (w.queries + kQueries - 1) / kQueries;
    by_queries(count, [&](auto queries, int at) {
        score<Mode, decltype(queries)::value, V>(w, first + at, a.head_dim,
                                                 ahead.share((first + at) / kQueries, parts),
                                                 scores + at * V);
    });
}

// visible: tokens of the block that each query sees.
template <class Mode, int V>
RS_INLINE void weigh_queries(const Attend& a, const Work& w, int first, int count,
                             const int32_t* visible, vf* scores, uint32_t* weights) {
    const float scale = a.scale * kLog2E;
    for (int q = 0; q < count; ++q) {
        float* state = w.state + (first + q) * w.size;
        vf* row = scores + q * V;
        if (visible[q] <= 0) {  // all weights are 0 and nothing changes
            __builtin_memset(weights + q * kBlock, 0, V * kLanes * sizeof(uint32_t));
            continue;
        }
        if (visible[q] < V * kLanes) mask_scores<V>(row, visible[q]);
        const float top = raise_max(best_of_lanes<V>(row) * scale, state, w.dim);
        Mode::template weigh<V>(row, scale, top, state + w.dim, weights + q * kBlock);
    }
}

template <class Mode>
RS_INLINE void add_queries(const Work& w, int first, int count, int64_t steps, NextRows ahead,
                           const uint32_t* weights) {
    const int parts = (w.queries + kQueries - 1) / kQueries;
    by_queries(count, [&](auto queries, int at) {
        add_values<Mode, decltype(queries)::value>(w, weights + at * kBlock, first + at, steps,
                                                   ahead.share((first + at) / kQueries, parts));
    });
}

// `count` queries from `first` on of each of the block's heads, all of a head's where these are
// several, over the first V vectors of the block. most: the largest of visible.
template <class Mode, int V>
static void attend_part(const Attend& a, const AttendItem& item, const Work& all, int first,
                        int count, const int32_t* visible, int32_t most, const Block& block) {
    const int64_t bytes = a.head_dim * static_cast<int64_t>(sizeof(typename Mode::Type));
    const int laid = block.here.count > kBlock / 2 ? kBlock : kBlock / 2;
    const bool in_place =
        all.queries <= kFewQueries && a.head_dim % (kValueVectors * kLanes) == 0;
    alignas(64) uint32_t weights[kTogether * kBlock];
    vf scores[kTogether * V];
    for (int h = 0; h < block.heads; ++h) {
        const int32_t head = block.head + h;
        if (!block.is_laid) Mode::put_keys(all.k, block.here.k, head * bytes, a.head_dim, laid);
        score_queries<Mode, V>(a, head_of(all, head), first, count,
                               rows_ahead(item, block, block.next.k, head), scores + h * count * V);
    }
    for (int h = 0; h < block.heads; ++h)
        weigh_queries<Mode, V>(a, head_of(all, block.head + h), first, count, visible,
                               scores + h * count * V, weights + h * count * kBlock);
    for (int h = 0; h < block.heads; ++h) {
        const int32_t head = block.head + h;
        Work w = head_of(all, head);
        w.values = in_place ? block.here.v : nullptr;
        w.values_offset = head * bytes;
        if (!in_place && !block.is_laid)
            Mode::put_values(w.v, block.here.v, head * bytes, a.head_dim, w.dim, laid);
        add_queries<Mode>(w, first, count, (most + Mode::kPack - 1) / Mode::kPack,
                          rows_ahead(item, block, block.next.v, head), weights + h * count * kBlock);
    }
}

// Whether there was anything to see.
template <class Mode>
static bool attend_queries(const Attend& a, const AttendItem& item, const Work& w, int first,
                           int count, const Block& block) {
    int32_t visible[kTogether], most = 0;
    for (int q = 0; q < count; ++q) {
        const int32_t limit = a.limits[item.tokens[(first + q) / w.group]];
        visible[q] = (limit < item.t1 ? limit + 1 : item.t1) - block.t0;
        if (visible[q] > kBlock) visible[q] = kBlock;
        if (visible[q] > most) most = visible[q];
    }
    if (most <= 0) return false;
    if (most > kBlock / 2)
        attend_part<Mode, kBlockVectors>(a, item, w, first, count, visible, most, block);
    else
        attend_part<Mode, kBlockVectors / 2>(a, item, w, first, count, visible, most, block);
    return true;
}

template <class Mode>
static void attend_block(const Attend& a, const AttendItem& item, const Work& w, Block block) {
    for (int first = 0; first < w.queries; first += kTogether) {
        const int left = w.queries - first;
        const int count = left < kTogether ? left : kTogether;
        if (attend_queries<Mode>(a, item, w, first, count, block)) block.is_laid = true;
    }
}
