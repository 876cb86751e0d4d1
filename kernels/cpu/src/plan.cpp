#include "plan.h"

#include <algorithm>
#include <iterator>

#include "pool.h"

namespace rs {
namespace {

constexpr int64_t kTileQueries = 128;  // heads times tokens of an item: their states stay in cache
constexpr int64_t kItemsPerThread = 4;

int64_t round_down(int64_t value, int64_t step) { return value / step * step; }
int64_t ceil_div(int64_t value, int64_t by) { return (value + by - 1) / by; }

}  // namespace

void AttentionPlan::fill(const Rows& rows) {
    all_.clear();
    most_ = 1;
    pages_.assign(rows.page_indices, rows.page_indices + rows.page_indptr[rows.rows]);
    place_tokens(rows);
    add_groups(rows);
    add_own_parts(rows);
    place_states(rows);
    finish(all_);
}

void AttentionPlan::finish(Items& items) {
    const auto finish_list = [&](std::vector<Item>& list) {
        for (auto& each : list) each.item.tokens = items.tokens.data() + each.tokens_at;
        // The longest first, so that no thread is left with a long one at the end.
        std::stable_sort(list.begin(), list.end(),
                         [](const Item& a, const Item& b) { return a.work() > b.work(); });
    };
    finish_list(items.own);
    for (auto& level : items.levels) finish_list(level);
}

void AttentionPlan::choose(const Tokens& few) {
    is_few_.assign(static_cast<size_t>(tokens()), 0);
    for (int64_t i = 0; i < few.count; ++i) is_few_[few.places[i]] = 1;
    few_.clear();
    few_.levels.resize(all_.levels.size());
    for (size_t i = 0; i < all_.levels.size(); ++i) take_few(all_.levels[i], few_.levels[i]);
    take_few(all_.own, few_.own);
    finish(few_);
}

void AttentionPlan::take_few(const std::vector<Item>& from, std::vector<Item>& to) {
    for (Item each : from) {
        const int32_t* tokens = each.item.tokens;
        each.tokens_at = static_cast<int64_t>(few_.tokens.size());
        std::copy_if(tokens, tokens + each.item.count, std::back_inserter(few_.tokens),
                     [&](int32_t token) { return is_few_[token] != 0; });
        each.item.count = static_cast<int32_t>(few_.tokens.size() - each.tokens_at);
        if (each.item.count > 0) to.push_back(each);
    }
}

void AttentionPlan::place_tokens(const Rows& rows) {
    limits_.clear();
    slots_.clear();
    first_token_.assign(static_cast<size_t>(rows.rows), 0);
    for (int64_t row = 0; row < rows.rows; ++row) {
        first_token_[row] = tokens();
        const int32_t* table = rows.page_indices + rows.page_indptr[row];
        for (int32_t i = 0; i < rows.lengths[row]; ++i) {
            const int64_t place = rows.positions[row] + i;
            limits_.push_back(static_cast<int32_t>(place));
            slots_.push_back(table[place / shape_.page_size] * shape_.page_size +
                             place % shape_.page_size);
        }
    }
    for (int32_t token = 0; token < tokens(); ++token) all_.tokens.push_back(token);
}

void AttentionPlan::add_groups(const Rows& rows) {
    shared_to_.assign(static_cast<size_t>(rows.rows), 0);
    level_.assign(static_cast<size_t>(rows.rows), 0);
    for (int64_t group = 0; group < rows.groups; ++group) add_group(rows, group);
}

void AttentionPlan::add_group(const Rows& rows, int64_t group) {
    const int32_t* first = rows.group_rows + rows.group_indptr[group];
    const int32_t* last = rows.group_rows + rows.group_indptr[group + 1];
    int64_t end = rows.group_end[group] * shape_.page_size;
    int32_t level = 0;
    // A part ends on a block's border, and before the first query of any of its rows.
    for (const int32_t* row = first; row != last; ++row) {
        end = std::min<int64_t>(end, rows.positions[*row]);
        level = std::max(level, level_[*row]);
    }
    const int64_t begin = round_down(rows.group_begin[group] * shape_.page_size, kBlock);
    end = round_down(end, kBlock);
    for (const int32_t* row = first; row != last; ++row)
        if (shared_to_[*row] != begin) return;  // cut short before: the rows go on by themselves
    if (end <= begin || last - first < 2) return;
    const int64_t list_begin = static_cast<int64_t>(all_.tokens.size());
    for (const int32_t* row = first; row != last; ++row) {
        shared_to_[*row] = static_cast<int32_t>(end);
        level_[*row] = level + 1;
        for (int32_t i = 0; i < rows.lengths[*row]; ++i)
            all_.tokens.push_back(static_cast<int32_t>(first_token_[*row]) + i);
    }
    const int64_t list_end = static_cast<int64_t>(all_.tokens.size());
    if (static_cast<int32_t>(all_.levels.size()) <= level) all_.levels.resize(level + 1);
    const int64_t count = list_end - list_begin, tile = tile_tokens();
    const int64_t tiles = ceil_div(count, tile), step = ceil_div(count, tiles);
    const int32_t heads = heads_together(count, rows);
    const int32_t* pages = pages_.data() + rows.page_indptr[*first];
    for (int64_t t = begin; t < end; t = round_down(t, kSegment) + kSegment)
        for (int64_t at = list_begin; at < list_end; at += step)
            for (int32_t head = 0; head < shape_.num_kv_heads; head += heads)
                add_item(all_.levels[level],
                         {nullptr, pages, static_cast<int32_t>(std::min(step, list_end - at)), head,
                          heads, static_cast<int32_t>(t),
                          static_cast<int32_t>(
                              std::min(end, round_down(t, kSegment) + kSegment)),
                          -1, false},
                         at);
}

int64_t AttentionPlan::tile_tokens() const {
    const int64_t group_size = shape_.num_qo_heads / shape_.num_kv_heads;
    return std::max<int64_t>(1, kTileQueries / group_size);
}

// KV heads of an item for `tokens` tokens: with rows for every thread, those of few tokens stay
// together, as they lie in memory.
int32_t AttentionPlan::heads_together(int64_t tokens, const Rows& rows) const {
    const bool are_few = tokens * shape_.num_kv_heads <= tile_tokens();
    const bool is_one = are_few && rows.rows >= kItemsPerThread * threads();
    return is_one ? static_cast<int32_t>(shape_.num_kv_heads) : 1;
}

void AttentionPlan::add_own_parts(const Rows& rows) {
    split_.assign(static_cast<size_t>(rows.rows), 0);
    const int64_t tile = tile_tokens();
    const bool is_short = rows.rows * shape_.num_kv_heads < kItemsPerThread * threads();
    for (int64_t row = 0; row < rows.rows; ++row) {
        const int32_t start = shared_to_[row], length = rows.lengths[row];
        const int32_t kv_len = rows.positions[row] + length;
        const int32_t* pages = pages_.data() + rows.page_indptr[row];
        const bool is_split = is_short && length == 1 && kv_len - start > kSegment;
        const int32_t heads = heads_together(length, rows);
        for (int32_t head = 0; head < shape_.num_kv_heads; head += heads) {
            if (!is_split) {
                for (int64_t i = 0; i < length; i += tile) {
                    const int32_t n = static_cast<int32_t>(std::min<int64_t>(tile, length - i));
                    const int32_t end = rows.positions[row] + static_cast<int32_t>(i) + n;
                    add_item(all_.own, {nullptr, pages, n, head, heads, start, end, -1, true},
                             first_token_[row] + i);
                }
                continue;
            }
            split_[row] = 0;
            for (int32_t t = start; t < kv_len; t = t / kSegment * kSegment + kSegment) {
                const int32_t end = std::min(kv_len, t / kSegment * kSegment + kSegment);
                add_item(all_.own, {nullptr, pages, 1, head, 1, t, end, static_cast<int32_t>(row), false},
                         first_token_[row]);
                ++split_[row];
            }
        }
    }
}

void AttentionPlan::place_states(const Rows& rows) {
    state_place_.assign(static_cast<size_t>(tokens()), -1);
    int64_t place = 0;
    for (int64_t row = 0; row < rows.rows; ++row) {
        const int64_t kv_len = rows.positions[row] + rows.lengths[row];
        if (split_[row] == 0 && shared_to_[row] == 0) continue;
        const int64_t kept = split_[row] ? kv_len : shared_to_[row];
        for (int32_t i = 0; i < rows.lengths[row]; ++i) {
            state_place_[first_token_[row] + i] = place;
            place += ceil_div(kept, kSegment);
        }
    }
    const int64_t lines = ceil_div(shape_.head_dim, 16) + kStateExtra / 16;
    const size_t needed = static_cast<size_t>(place * shape_.num_qo_heads * lines);
    if (states_.size() < needed) states_.resize(needed);
    const int64_t size = rows.rows * shape_.num_kv_heads;
    if (left_size_ < size) {
        left_.reset(new std::atomic<int32_t>[size]);
        left_size_ = size;
    }
    for (int64_t i = 0; i < size; ++i) left_[i].store(split_[i / shape_.num_kv_heads]);
}

void AttentionPlan::add_item(std::vector<Item>& to, AttendItem item, int64_t tokens_at) {
    most_ = std::max(most_, item.count * item.kv_heads);
    to.push_back({item, tokens_at});
}

void AttentionPlan::run(const void* q, int64_t q_stride, const void* k_cache, const void* v_cache,
                        void* out, int64_t out_stride, bool few) {
    Attend with;
    with.q = q;
    with.k_cache = k_cache;
    with.v_cache = v_cache;
    with.out = out;
    with.limits = limits_.data();
    with.state_place = state_place_.data();
    with.states = states_.empty() ? nullptr : states_[0].values;
    with.q_stride = q_stride;
    with.out_stride = out_stride;
    with.num_qo_heads = shape_.num_qo_heads;
    with.num_kv_heads = shape_.num_kv_heads;
    with.head_dim = shape_.head_dim;
    with.page_size = shape_.page_size;
    with.scale = shape_.scale;
    with.dtype = shape_.dtype;
    const Items& items = few ? few_ : all_;
    const auto& levels = items.levels;
    for (size_t i = 0; i < levels.size(); ++i)
        run_items(levels[i], i + 1 < levels.size() ? levels[i + 1] : items.own, with);
    run_items(items.own, {}, with);
}

void AttentionPlan::run_items(const std::vector<Item>& items, const std::vector<Item>& after,
                              const Attend& with) {
    const Kernels& use = kernels();
    const size_t bytes = static_cast<size_t>(use.attend_scratch(with, most_));
    const auto count = static_cast<int64_t>(items.size());
    // While one is computed, what its thread will probably take next is asked for.
    const auto later = [&, among = threads()](int64_t index) {
        index += among;
        if (index < count) return &items[index].item;
        return index - count < static_cast<int64_t>(after.size()) ? &after[index - count].item
                                                                  : nullptr;
    };
    parallel_for(count, [&](int64_t index, int worker) {
        const AttendItem& item = items[index].item;
        void* room = scratch(worker, 1, bytes);
        use.attend(with, item, later(index), room);
        if (item.row < 0) return;
        const int64_t counter = item.row * shape_.num_kv_heads + item.kv_head;
        if (left_[counter].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
        left_[counter].store(split_[item.row]);  // for the next layer
        AttendItem all = item;
        all.t1 = limits_[item.tokens[0]] + 1;
        use.finish(with, all, room);
    });
}

}  // namespace rs
