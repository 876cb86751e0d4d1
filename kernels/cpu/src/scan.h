// Passes over a row of logits; included inside the namespace of an instruction set.

RS_INLINE void mask_block(const Scan& a, int64_t begin, int64_t n, float* values) {
    const float none = -__builtin_inff();
    if (a.mask_bits != nullptr) {
        vi bit;
        for (int j = 0; j < kLanes; ++j) bit[j] = 1 << j;
        for (int64_t i = 0; i < n; i += kLanes) {
            const int64_t id = begin + i;
            const vi word = vi{} + static_cast<int32_t>(a.mask_bits[id / 32] >> (id % 32));
            const vf v = load_upto(values + i, n - i);
            store_upto(values + i, pick((word & bit) != 0, v, splat(none)), n - i);
        }
    } else if (a.mask_bytes != nullptr) {
        for (int64_t i = 0; i < n; ++i) values[i] = a.mask_bytes[begin + i] ? values[i] : none;
    }
}

RS_INLINE bool block_is_free(const Scan& a, int64_t begin, int64_t n) {
    if (a.mask_bytes != nullptr) return false;
    if (a.mask_bits == nullptr) return true;
    if (n < kScanBlock) return false;
    const uint32_t* words = a.mask_bits + begin / 32;
    return (words[0] & words[1] & words[2] & words[3]) == 0xffffffffu;
}

RS_INLINE bool block_is_masked_out(const Scan& a, int64_t begin, int64_t n) {
    if (a.mask_bits == nullptr || n < kScanBlock) return false;
    const uint32_t* words = a.mask_bits + begin / 32;  // kScanBlock is four words
    return (words[0] | words[1] | words[2] | words[3]) == 0;
}

RS_INLINE vf without_tail(vf v, int64_t n) {  // what load_upto filled up with is no logit
    if (n >= kLanes) return v;
    vi lane;
    for (int j = 0; j < kLanes; ++j) lane[j] = j;
    return pick(lane < static_cast<int32_t>(n), v, splat(-__builtin_inff()));
}

// The best of n values; NaNs are noted.
RS_INLINE vf best_of(const float* values, int64_t n, vu* nans) {
    vf top = splat(-__builtin_inff());
    for (int64_t i = 0; i < n; i += kLanes) {
        const vf v = load_upto(values + i, n - i);
        *nans |= (vu)(v != v);
        top = larger(without_tail(v, n - i), top);
    }
    return top;
}

RS_INLINE void divide(float* values, int64_t n, float by) {
    for (int64_t i = 0; i < n; i += kLanes)
        store_upto(values + i, load_upto(values + i, n - i) / by, n - i);
}

static Best scan(const Scan& a) {
    alignas(64) float room[kScanBlock];
    vu nans = {};
    float best = -__builtin_inff();
    int64_t best_block = 0;
    for (int64_t begin = 0; begin < a.n; begin += kScanBlock) {
        const int64_t n = a.n - begin < kScanBlock ? a.n - begin : kScanBlock;
        vf top = splat(-__builtin_inff());
        if (block_is_masked_out(a, begin, n)) {
            if (a.scaled != nullptr)
                for (int64_t i = 0; i < n; i += kLanes) store(a.scaled + begin + i, top);
        } else if (a.scaled == nullptr && block_is_free(a, begin, n)) {
            top = best_of(a.logits + begin, n, &nans);
        } else {
            float* values = a.scaled != nullptr ? a.scaled + begin : room;
            __builtin_memcpy(values, a.logits + begin, static_cast<size_t>(n) * sizeof(float));
            if (!block_is_free(a, begin, n)) mask_block(a, begin, n, values);
            if (a.temperature != 1.0f) divide(values, n, a.temperature);
            top = best_of(values, n, &nans);
        }
        const float block_best = largest_of(top);
        a.block_best[begin / kScanBlock] = block_best;
        if (block_best > best) {
            best = block_best;
            best_block = begin;
        }
    }
    Best result = {best, static_cast<int32_t>(best_block), false};
    for (int i = 0; i < kLanes; ++i) result.has_nan |= nans[i] != 0;
    return result;
}

static void weigh(const float* scaled, int64_t n, float best, float least, float* weights,
                  double* sums) {
    for (int64_t begin = 0; begin < n; begin += kScanBlock) {
        const int64_t end = begin + kScanBlock < n ? begin + kScanBlock : n;
        vf sum = {};
        for (int64_t i = begin; i < end; i += kLanes) {
            vf w = exp_of(load_upto(scaled + i, end - i) - best);
            w = pick(w < least, vf{}, w);
            store_upto(weights + i, w, end - i);
            sum += load_upto(weights + i, end - i);
        }
        sums[begin / kScanBlock] = static_cast<double>(sum_of(sum));
    }
}

static double exp_sum(const float* values, int64_t n, float best) {
    double total = 0.0;
    for (int64_t begin = 0; begin < n; begin += kScanBlock) {
        const int64_t end = begin + kScanBlock < n ? begin + kScanBlock : n;
        vf sum = {};
        int64_t i = begin;
        for (; i + kLanes <= end; i += kLanes) sum += exp_of(load(values + i) - best);
        double rest = 0.0;
        for (; i < end; ++i) rest += static_cast<double>(exp_of(splat(values[i] - best))[0]);
        total += static_cast<double>(sum_of(sum)) + rest;
    }
    return total;
}
