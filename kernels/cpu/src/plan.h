// One step's attention, cut into items. Owns: which query tokens attend to which KV together, and
// where partial results wait. Must not know: how an item is computed.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "types.h"

namespace rs {

struct Shape {
    int64_t num_qo_heads, num_kv_heads, head_dim, page_size;
    float scale;
    int32_t dtype;
};

// Rows as in AttentionInputs. Group g: rows group_rows[group_indptr[g] .. group_indptr[g + 1]), the
// same pages group_begin[g] .. group_end[g] - 1; a row's groups come in the order of their pages.
struct Rows {
    int64_t rows, groups;
    const int32_t* positions;
    const int32_t* lengths;
    const int32_t* page_indptr;
    const int32_t* page_indices;
    const int32_t* group_indptr;
    const int32_t* group_rows;
    const int32_t* group_begin;
    const int32_t* group_end;
};

// Tokens of a step, ascending; places are not read where these are all.
struct Tokens {
    const int64_t* places;
    int64_t count;
};

class AttentionPlan {
public:
    explicit AttentionPlan(const Shape& shape) : shape_(shape) {}

    void fill(const Rows& rows);
    // Which tokens a run computes that is asked for few.
    void choose(const Tokens& few);

    // q: [tokens] rows q_stride elements apart, [num_qo_heads, head_dim] each; out likewise. few:
    // what is not of the chosen tokens is neither read nor written.
    void run(const void* q, int64_t q_stride, const void* k_cache, const void* v_cache, void* out,
             int64_t out_stride, bool few = false);

    const Shape& shape() const { return shape_; }
    int64_t tokens() const { return static_cast<int64_t>(limits_.size()); }
    const int64_t* slots() const { return slots_.data(); }
    const int32_t* positions() const { return limits_.data(); }  // each token sees up to itself

private:
    struct Item {
        AttendItem item;
        int64_t tokens_at;  // in token_list_
        int64_t work() const {
            return int64_t{item.t1 - item.t0} * item.count * item.kv_heads;
        }
    };

    struct alignas(64) Line {
        float values[16];
    };

    // Levels come one after another, then what is each row's own. tokens: what items point into.
    struct Items {
        std::vector<std::vector<Item>> levels;
        std::vector<Item> own;
        std::vector<int32_t> tokens;

        void clear() {
            levels.clear();
            own.clear();
            tokens.clear();
        }
    };

    void place_tokens(const Rows& rows);
    void add_groups(const Rows& rows);
    void add_group(const Rows& rows, int64_t group);
    void add_own_parts(const Rows& rows);
    int64_t tile_tokens() const;
    int32_t heads_together(int64_t tokens, const Rows& rows) const;
    void place_states(const Rows& rows);
    static void finish(Items& items);
    void take_few(const std::vector<Item>& from, std::vector<Item>& to);
    void add_item(std::vector<Item>& to, AttendItem item, int64_t tokens_at);
    void run_items(const std::vector<Item>& items, const std::vector<Item>& after,
                   const Attend& with);

    Shape shape_;
    std::vector<int32_t> limits_, pages_;
    std::vector<int64_t> slots_, first_token_, state_place_;
    std::vector<int32_t> shared_to_, level_, split_;  // by row; split_: parts of its one query
    Items all_, few_;
    std::vector<char> is_few_;  // by token
    std::unique_ptr<std::atomic<int32_t>[]> left_;  // by row and KV head: parts still to come
    int64_t left_size_ = 0;
    std::vector<Line> states_;
    int32_t most_ = 1;  // tokens times KV heads of an item
};

}  // namespace rs
