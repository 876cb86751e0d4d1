// The running result of attention; included inside the namespace of an instruction set.
//
// A state is what a query has seen so far: sums of weighted values, [padded_dim]; the divisor, 16
// lanes to be added up; the maximum that weights are relative to, in powers of two.

RS_INLINE int64_t padded_dim(int64_t dim) { return (dim + 15) / 16 * 16; }
RS_INLINE int64_t state_size(int64_t dim) { return padded_dim(dim) + kStateExtra; }

RS_INLINE float& state_max(float* state, int64_t dim) { return state[dim + 16]; }

// Lane by lane, not with memset and memcpy: so few bytes take longer to call for than to move.
RS_INLINE void clear_state(float* state, int64_t dim) {
#pragma GCC unroll 2
    for (int64_t i = 0; i < dim + 16; i += kLanes) store(state + i, vf{});
    state_max(state, dim) = -__builtin_inff();
}

RS_INLINE void copy_state(float* to, float* from, int64_t dim) {
#pragma GCC unroll 2
    for (int64_t i = 0; i < dim + 16; i += kLanes) store(to + i, load(from + i));
    state_max(to, dim) = state_max(from, dim);
}

RS_INLINE void scale_state(float* state, int64_t dim, float factor) {
    for (int64_t i = 0; i < dim + 16; i += kLanes) store(state + i, load(state + i) * factor);
}

RS_INLINE void merge_state(float* total, float* state, int64_t dim) {
    const float a = state_max(total, dim), b = state_max(state, dim);
    if (b == -__builtin_inff()) return;
    if (a == -__builtin_inff()) return copy_state(total, state, dim);
    const float best = a > b ? a : b;
    vf factors = {};
    factors[0] = a - best;
    factors[1] = b - best;
    factors = exp2_of(factors);
    const float keep = factors[0], take = factors[1];
    for (int64_t i = 0; i < dim + 16; i += kLanes) {
        const vf kept = load(total + i) * keep;
        store(total + i, load(state + i) * take + kept);
    }
    state_max(total, dim) = best;
}

// How far above 1 weights may get before they are taken relative to a larger score, in powers of
// two: far less than a float holds, and a state is hardly ever scaled.
constexpr float kSlack = 8.0f;

// Takes a block's scores, of which `best` has the largest in one of its lanes, into the state; returns
// what weights are relative to now.
RS_INLINE float raise_max(vf best, float* state, int64_t dim) {
    const float before = state_max(state, dim);
    if (__builtin_expect(!any_above(best, before + kSlack), 1)) return before;
    const float here = largest_of(best);
    scale_state(state, dim, exp2_of(before - here));
    state_max(state, dim) = here;
    return here;
}
