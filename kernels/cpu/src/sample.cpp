#include "sample.h"

#include <algorithm>
#include <cmath>

#include "pool.h"
#include "types.h"

namespace rs {
namespace {

constexpr float kBinsPerNat = 32.0f;  // of the histogram of logits below the best
constexpr int kBins = 1024;
constexpr int64_t kSorted = 64;  // candidates left when a selection ends in a sort

bool ranks_before(const Candidate& a, const Candidate& b) {
    return a.value > b.value || (a.value == b.value && a.id < b.id);
}

// One row and the memory its work needs.
class Row {
public:
    Row(const Sampling& a, int64_t row, int worker) : a_(a), row_(row), n_(a.valid) {
        blocks_ = (n_ + kScanBlock - 1) / kScanBlock;
        const size_t floats = static_cast<size_t>(2 * n_ + 2 * blocks_);
        const size_t bytes = floats * sizeof(float) + blocks_ * sizeof(double) +
                             2 * n_ * sizeof(Candidate);
        sums_ = static_cast<double*>(scratch(worker, 3, bytes));
        found_ = reinterpret_cast<Candidate*>(sums_ + blocks_);
        order_ = found_ + n_;
        scaled_ = reinterpret_cast<float*>(order_ + n_);
        weights_ = scaled_ + n_;
        block_best_ = weights_ + n_;
        sorted_best_ = block_best_ + blocks_;
    }

    int32_t token() {
        const bool greedy = a_.is_greedy[row_] != 0;
        const Scan scan = {
            a_.logits + row_ * a_.stride,
            a_.mask_bits ? a_.mask_bits + row_ * a_.mask_stride : nullptr,
            a_.mask_bytes ? a_.mask_bytes + row_ * a_.mask_stride : nullptr,
            n_,
            greedy ? 1.0f : a_.temperature[row_],
            greedy ? nullptr : scaled_,
            block_best_,
        };
        const Best best = kernels().scan(scan);
        if (best.has_nan || !std::isfinite(best.value)) return -1;
        best_ = best.value;
        if (greedy) return first_of(scan, best);
        if (a_.top_k[row_] > 0) return draw_top_k();
        if (a_.top_p[row_] < 1.0) return draw_top_p();
        return draw_whole();
    }

private:
    static int32_t first_of(const Scan& scan, const Best& best) {
        for (int64_t id = best.block;; ++id) {
            if (scan.logits[id] != best.value) continue;
            if (scan.mask_bits && !((scan.mask_bits[id / 32] >> (id % 32)) & 1u)) continue;
            if (scan.mask_bytes && !scan.mask_bytes[id]) continue;
            return static_cast<int32_t>(id);
        }
    }

    double weight(const Candidate& c) const {
        return std::exp(static_cast<double>(c.value) - static_cast<double>(best_));
    }

    // Fills found_, by id, with at least the k best: the k-th best of the blocks' bests bounds them.
    int64_t find_best(int64_t k) {
        float least = -INFINITY;
        if (k < blocks_) {
            std::copy(block_best_, block_best_ + blocks_, sorted_best_);
            std::nth_element(sorted_best_, sorted_best_ + k - 1, sorted_best_ + blocks_,
                             [](float a, float b) { return a > b; });
            least = sorted_best_[k - 1];
        }
        int64_t count = 0;
        for (int64_t block = 0; block < blocks_; ++block) {
            if (block_best_[block] < least) continue;
            const int64_t end = std::min(n_, (block + 1) * kScanBlock);
            for (int64_t i = block * kScanBlock; i < end; ++i)
                if (scaled_[i] >= least && scaled_[i] > -INFINITY)
                    found_[count++] = {scaled_[i], static_cast<int32_t>(i)};
        }
        return count;
    }

    int32_t draw_top_k() {
        const int64_t k = a_.top_k[row_];
        const int64_t count = find_best(k);
        const int64_t keep = std::min(k, count);
        std::copy(found_, found_ + count, order_);
        std::nth_element(order_, order_ + keep - 1, order_ + count, ranks_before);
        Candidate last = order_[keep - 1];
        if (a_.top_p[row_] < 1.0) {
            std::sort(order_, order_ + keep, ranks_before);
            double mass = 0.0;
            for (int64_t i = 0; i < keep; ++i) mass += weight(order_[i]);
            last = nucleus_end(order_, order_ + keep, 0.0, a_.top_p[row_] * mass);
        }
        return draw_found(count, last, false);
    }

    // The last of the sorted candidates before which the mass is less than wanted.
    Candidate nucleus_end(const Candidate* first, const Candidate* end, double before,
                          double wanted) const {
        Candidate last = *first;
        for (; first != end; ++first) {
            if (before >= wanted) break;
            last = *first;
            before += weight(last);
        }
        return last;
    }

    int32_t draw_top_p() {
        kernels().weigh(scaled_, n_, best_, 0.0f, weights_, sums_);
        double total = 0.0;
        for (int64_t block = 0; block < blocks_; ++block) total += sums_[block];
        const double wanted = a_.top_p[row_] * total;
        for (const int64_t k : {int64_t{16}, int64_t{128}}) {
            if (k >= blocks_) break;  // nothing would be left out
            const int64_t count = find_best(k);
            double mass = 0.0;
            for (int64_t i = 0; i < count; ++i) mass += weights_[found_[i].id];
            if (mass < wanted) continue;
            std::copy(found_, found_ + count, order_);
            return draw_found(count, select(order_, order_ + count, 0.0, wanted), false);
        }
        return draw_flat(wanted);
    }

    int bin_of(float value) const {
        const float below = (best_ - value) * kBinsPerNat;
        return below < static_cast<float>(kBins - 1) ? static_cast<int>(below) : kBins - 1;
    }

    // Where the nucleus is large: a histogram finds the bin in which it ends, and that one is ranked.
    int32_t draw_flat(double wanted) {
        double mass[kBins] = {};
        for (int64_t i = 0; i < n_; ++i) mass[bin_of(scaled_[i])] += weights_[i];
        double before = 0.0;
        int last_bin = 0;
        while (last_bin < kBins - 1 && before + mass[last_bin] < wanted)
            before += mass[last_bin++];
        int64_t count = 0;
        Candidate* end = order_;  // of those in the last bin
        for (int64_t i = 0; i < n_; ++i) {
            const int bin = bin_of(scaled_[i]);
            if (bin > last_bin || scaled_[i] == -INFINITY) continue;
            const Candidate here = {scaled_[i], static_cast<int32_t>(i)};
            found_[count++] = here;
            if (bin == last_bin) *end++ = here;
        }
        // Rounding may leave the sum short of what is wanted: then everything stays.
        if (end == order_) return draw_found(count, {-INFINITY, INT32_MAX}, true);
        return draw_found(count, select(order_, end, before, wanted), true);
    }

    // nucleus_end of [low, high) without sorting it all; changes their order.
    Candidate select(Candidate* low, Candidate* high, double before, double wanted) const {
        while (high - low > kSorted) {
            Candidate* middle = low + (high - low) / 2;
            std::nth_element(low, middle, high, ranks_before);
            double upper = 0.0;
            for (const Candidate* c = low; c != middle; ++c) upper += weights_[c->id];
            if (before + upper >= wanted) {
                high = middle;
            } else {
                before += upper;
                low = middle;
            }
        }
        std::sort(low, high, ranks_before);
        return nucleus_end(low, high, before, wanted);
    }

    // Draw, in id order, from the found candidates up to `last` in rank that min_p leaves.
    // is_wide: the weights of the whole row are there and good enough.
    int32_t draw_found(int64_t count, const Candidate& last, bool is_wide) {
        int64_t kept = 0;
        double total = 0.0;
        double* cumulated = reinterpret_cast<double*>(order_);  // its candidates are done with
        for (int64_t i = 0; i < count; ++i) {
            if (ranks_before(last, found_[i])) continue;
            const double w = is_wide ? static_cast<double>(weights_[found_[i].id])
                                     : weight(found_[i]);
            if (w < a_.min_p[row_] || w == 0.0) continue;
            total += w;
            cumulated[kept] = total;
            found_[kept++] = found_[i];
        }
        const double target = below(a_.uniform[row_] * total, total);
        const int64_t place = std::upper_bound(cumulated, cumulated + kept, target) - cumulated;
        return found_[place].id;
    }

    static double below(double target, double total) {
        return std::min(target, std::nextafter(total, 0.0));
    }

    int32_t draw_whole() {
        const float least = static_cast<float>(a_.min_p[row_]);
        kernels().weigh(scaled_, n_, best_, least, weights_, sums_);
        double total = 0.0;
        for (int64_t block = 0; block < blocks_; ++block) total += sums_[block];
        const double target = below(a_.uniform[row_] * total, total);
        double before = 0.0;
        int64_t block = 0;
        while (before + sums_[block] <= target) before += sums_[block++];
        const int64_t end = std::min(n_, (block + 1) * kScanBlock);
        int64_t last = block * kScanBlock;
        for (int64_t i = last; i < end; ++i) {
            if (weights_[i] == 0.0f) continue;
            last = i;
            before += static_cast<double>(weights_[i]);
            if (before > target) break;
        }
        return static_cast<int32_t>(last);
    }

    const Sampling& a_;
    int64_t row_, n_, blocks_;
    float best_ = 0.0f;
    double* sums_;
    Candidate *found_, *order_;
    float *scaled_, *weights_, *block_best_, *sorted_best_;
};

}  // namespace

void run_sample(const Sampling& a) {
    parallel_for(a.rows, [&](int64_t row, int worker) { a.ids[row] = Row(a, row, worker).token(); });
}

void run_logprobs(const float* logits, int64_t rows, int64_t vocab, const int32_t* targets,
                  float* out) {
    const int64_t blocks = (vocab + kScanBlock - 1) / kScanBlock;
    parallel_for(rows, [&](int64_t row, int worker) {
        const float* from = logits + row * vocab;
        float* best_of = static_cast<float*>(scratch(worker, 3, blocks * sizeof(float)));
        const Best best = kernels().scan({from, nullptr, nullptr, vocab, 1.0f, nullptr, best_of});
        const double sum = kernels().exp_sum(from, vocab, best.value);
        out[row] = (from[targets[row]] - best.value) - static_cast<float>(std::log(sum));
    });
}

}  // namespace rs
