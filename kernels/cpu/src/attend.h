// Attention of a few queries over paged KV; included inside the namespace of an instruction set.
//
// KV is taken in blocks of kBlock tokens that start at multiples of kBlock, folded in ascending
// order into the state of its segment, and segments in ascending order into the result. Every
// query's arithmetic in a block is its own, so a row has the same result to the bit alone, beside
// others, with its prefix computed for many rows at once, and split over threads.
#include "attend_state.h"
#include "attend_modes.h"
#include "attend_block.h"

// The block from t0 on, up to the item's end.
static void locate_block(const Attend& a, const AttendItem& item, const char* zeros, int32_t t0,
                         Places* places) {
    int64_t page = t0 / a.page_size, offset = t0 % a.page_size;
    const int64_t token_bytes =
        a.num_kv_heads * a.head_dim * static_cast<int64_t>(size_of(a.dtype));
    const int64_t left = item.t1 - t0;
    const int32_t count = static_cast<int32_t>(left < 0 ? 0 : left < kBlock ? left : kBlock);
    const int64_t begin = token_bytes / a.num_kv_heads * item.kv_head;
    for (int32_t i = 0; i < count; ++i) {
        const int64_t place = (item.pages[page] * a.page_size + offset) * token_bytes + begin;
        places->k[i] = static_cast<const char*>(a.k_cache) + place;
        places->v[i] = static_cast<const char*>(a.v_cache) + place;
        if (++offset == a.page_size) {
            offset = 0;
            ++page;
        }
    }
    // What is past the end may be anything: never read.
    for (int32_t i = count; i < kBlock; ++i) places->k[i] = places->v[i] = zeros;
    places->count = count;
    places->bytes = static_cast<int32_t>(token_bytes / a.num_kv_heads * item.kv_heads);
}

static Work work_in(const Attend& a, const AttendItem& item, void* scratch) {
    Work w;
    w.group = static_cast<int32_t>(a.num_qo_heads / a.num_kv_heads);
    w.dim = padded_dim(a.head_dim);
    w.size = state_size(a.head_dim);
    w.queries = item.count * w.group;
    const int64_t queries = int64_t{w.queries} * item.kv_heads;
    w.state = static_cast<float*>(scratch);
    w.total = w.state + queries * w.size;
    w.k = reinterpret_cast<uint32_t*>(w.total + queries * w.size);
    w.v = w.k + w.dim * kBlock;
    w.q = w.v + w.dim * kBlock;
    w.q_stride = w.dim;
    w.zeros = reinterpret_cast<char*>(w.q + queries * w.q_stride);
    __builtin_memset(w.zeros, 0, static_cast<size_t>(item.kv_heads * w.dim) * sizeof(float));
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
    return (queries * (2 * state_size(a.head_dim) + dim) + 2 * dim * kBlock + a.num_kv_heads * dim) *
           4;
}

static float* kept_state(const Attend& a, const AttendItem& item, const Work& w, int query,
                         int64_t segment) {
    const int64_t place = a.state_place[item.tokens[query / w.group]];
    const int64_t head = item.kv_head * w.group + query % w.group;
    return a.states + ((place + segment) * a.num_qo_heads + head) * w.size;
}

template <class T>
static void write_out(const Attend& a, const AttendItem& item, const Work& w) {
    for (int query = 0; query < w.queries; ++query) {
        const int64_t head = item.kv_head * w.group + query % w.group;
        T* out = static_cast<T*>(a.out) + item.tokens[query / w.group] * a.out_stride +
                 head * a.head_dim;
        const float* total = w.total + query * w.size;
        const float divisor = 1.0f / sum_of(load(total + w.dim));
        for (int64_t d = 0; d < a.head_dim; d += kLanes)
            store_upto(out + d, load(total + d) * divisor, a.head_dim - d);
    }
}

// What a whole item sees of its first segment goes straight into the total: there is nothing yet to
// merge it with.
static Work in_segment(const AttendItem& item, Work w, int64_t segment) {
    if (item.is_whole && segment == 0) w.state = w.total;
    return w;
}

static void begin_states(const Attend& a, const AttendItem& item, const Work& w) {
    const int64_t segment = item.t0 / kSegment;
    for (int query = 0; query < w.queries; ++query) {
        float* state = w.state + query * w.size;
        if (item.t0 % kSegment != 0)
            copy_state(state, kept_state(a, item, w, query, segment), w.dim);
        else
            clear_state(state, w.dim);
        if (!item.is_whole || segment == 0) continue;
        float* total = w.total + query * w.size;
        copy_state(total, kept_state(a, item, w, query, 0), w.dim);
        for (int64_t s = 1; s < segment; ++s)
            merge_state(total, kept_state(a, item, w, query, s), w.dim);
    }
}

static void end_segment(const Attend& a, const AttendItem& item, const Work& w, int64_t segment) {
    for (int query = 0; query < w.queries; ++query) {
        float* state = w.state + query * w.size;
        if (!item.is_whole)
            copy_state(kept_state(a, item, w, query, segment), state, w.dim);
        else if (segment > 0)
            merge_state(w.total + query * w.size, state, w.dim);
    }
}

template <class Mode>
static void take_queries(const Attend& a, const AttendItem& item, const Work& w) {
    typedef typename Mode::Type T;
    for (int query = 0; query < w.queries; ++query) {
        const int64_t head = item.kv_head * w.group + query % w.group;
        const T* q = static_cast<const T*>(a.q) +
                     item.tokens[query / w.group] * a.q_stride + head * a.head_dim;
        Mode::put_query(w.q + query * w.q_stride, q, a.head_dim);
    }
}

// The block from t on, of heads head .. head + heads - 1.
template <class Mode>
static void attend_heads(const Attend& a, const AttendItem& item, const Work& work,
                         const Block& block) {
    const int64_t segment = block.t0 / kSegment;
    const Work w = in_segment(item, work, segment);
    const int32_t end = block.head + block.heads;
    for (int32_t h = block.head; h < end; ++h) {
        const Work own = head_of(w, h);
        if (block.t0 == item.t0) {
            take_queries<Mode>(a, head_of(item, h), own);
            begin_states(a, head_of(item, h), own);
        } else if (block.t0 % kSegment == 0) {
            for (int query = 0; query < w.queries; ++query)
                clear_state(own.state + query * w.size, w.dim);
        }
    }
    attend_block<Mode>(a, item, w, block);
    if (block.t0 + kBlock < item.t1 && (block.t0 + kBlock) % kSegment != 0) return;
    for (int32_t h = block.head; h < end; ++h)
        end_segment(a, head_of(item, h), head_of(w, h), segment);
}

// Heads take turns block by block, those of few queries together: their rows of K and V are
// neighbours in memory. What comes next is asked for while a block is computed: its pages lie
// anywhere.
template <class Mode>
static void attend_in(const Attend& a, const AttendItem& item, const AttendItem* after,
                      void* scratch) {
    const Work w = work_in(a, item, scratch);
    const int32_t together = w.queries < kTogether ? kTogether / w.queries : 1;
    Places places[2];
    locate_block(a, item, w.zeros, item.t0, &places[0]);
    for (int32_t t = item.t0, turn = 0; t < item.t1; t += kBlock, turn ^= 1) {
        Places& next = places[turn ^ 1];
        if (t + kBlock < item.t1)
            locate_block(a, item, w.zeros, t + kBlock, &next);
        else if (after != nullptr)
            locate_block(a, *after, w.zeros, after->t0, &next);
        else
            next.count = 0;
        for (int32_t h = 0; h < item.kv_heads; h += together) {
            const int32_t left = item.kv_heads - h;
            const int32_t heads = left < together ? left : together;
            attend_heads<Mode>(a, item, w, {places[turn], next, t, h, heads, false});
        }
    }
    if (!item.is_whole) return;
    for (int32_t h = 0; h < item.kv_heads; ++h)
        write_out<typename Mode::Type>(a, head_of(item, h), head_of(w, h));
}

static void attend(const Attend& a, const AttendItem& item, const AttendItem* next,
                   void* scratch) {
#ifdef __AVX512BF16__
    if (a.dtype == kBFloat16) return attend_in<PairMode>(a, item, next, scratch);
#endif
    if (a.dtype == kBFloat16)
        attend_in<WideMode<uint16_t>>(a, item, next, scratch);
    else
        attend_in<WideMode<float>>(a, item, next, scratch);
}

// The kept states of all segments up to item.t1, folded as a whole item folds them.
static void finish(const Attend& a, const AttendItem& item, void* scratch) {
    const Work w = work_in(a, item, scratch);
    for (int query = 0; query < w.queries; ++query) {
        float* total = w.total + query * w.size;
        copy_state(total, kept_state(a, item, w, query, 0), w.dim);
        for (int64_t s = 1; s * kSegment < item.t1; ++s)
            merge_state(total, kept_state(a, item, w, query, s), w.dim);
    }
    if (a.dtype == kBFloat16)
        write_out<uint16_t>(a, item, w);
    else
        write_out<float>(a, item, w);
}
