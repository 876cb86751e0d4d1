#include "pool.h"

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

namespace rs {
namespace {

constexpr int kSpins = 4000;  // tens of microseconds: the gap between two jobs of a step
constexpr int kScratchSlots = 4;
constexpr uint64_t kCountMask = 0xffffffffu;

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

struct Scratch {
    void* memory = nullptr;
    size_t bytes = 0;
    ~Scratch() { std::free(memory); }
};

class Pool {
public:
    explicit Pool(int count) : scratch_(static_cast<size_t>(count) * kScratchSlots), count_(count) {
        for (int worker = 1; worker < count; ++worker)
            threads_.emplace_back([this, worker] { work(worker); });
    }

    ~Pool() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stopping_.store(true);
        }
        wake_.notify_all();
        for (auto& thread : threads_) thread.join();
    }

    int count() const { return count_; }

    void run(int64_t chunks, ChunkFunction function, void* context) {
        if (threads_.empty() || chunks == 1) {
            for (int64_t chunk = 0; chunk < chunks; ++chunk) function(context, chunk, 0);
            return;
        }
        function_ = function;
        context_ = context;
        chunks_ = chunks;
        done_.store(0, std::memory_order_relaxed);
        // The ticket holds the job's number and the chunks left in one word: a worker that wakes
        // late fails its exchange instead of taking a chunk of another job.
        const uint64_t job = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
        ticket_.store(job << 32 | static_cast<uint64_t>(chunks));
        if (sleeping_.load() > 0) {
            { std::lock_guard<std::mutex> lock(mutex_); }
            wake_.notify_all();
        }
        while (take(0)) {
        }
        for (int spins = 0; done_.load(std::memory_order_acquire) < chunks; ++spins) {
            if (spins < kSpins)
                relax();
            else
                sched_yield();
        }
    }

    void* scratch(int worker, int slot, size_t bytes) {
        Scratch& own = scratch_[static_cast<size_t>(worker) * kScratchSlots + slot];
        if (own.bytes < bytes) {
            std::free(own.memory);
            const size_t size = (bytes + 63) / 64 * 64;
            own.memory = std::aligned_alloc(64, size);
            if (own.memory == nullptr) std::abort();
            own.bytes = size;
        }
        return own.memory;
    }

private:
    bool take(int worker) {
        uint64_t ticket = ticket_.load(std::memory_order_acquire);
        do {
            if ((ticket & kCountMask) == 0) return false;
        } while (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel,
                                                std::memory_order_acquire));
        // The job cannot end before this chunk has, so its fields stay as they are.
        const int64_t chunk = chunks_ - static_cast<int64_t>(ticket & kCountMask);
        function_(context_, chunk, worker);
        done_.fetch_add(1, std::memory_order_acq_rel);
        return true;
    }

    void work(int worker) {
        for (;;) {
            int spins = 0;
            while (spins < kSpins && !stopping_.load(std::memory_order_relaxed)) {
                if (take(worker)) {
                    spins = 0;
                } else {
                    ++spins;
                    relax();
                }
            }
            std::unique_lock<std::mutex> lock(mutex_);
            sleeping_.fetch_add(1);
            wake_.wait(lock, [this] { return stopping_ || (ticket_.load() & kCountMask) != 0; });
            sleeping_.fetch_sub(1);
            if (stopping_) return;
        }
    }

    alignas(64) std::atomic<uint64_t> ticket_{0};
    alignas(64) std::atomic<int64_t> done_{0};
    alignas(64) ChunkFunction function_ = nullptr;
    void* context_ = nullptr;
    int64_t chunks_ = 0;
    std::atomic<int> sleeping_{0};
    std::atomic<bool> stopping_{false};
    std::mutex mutex_;
    std::condition_variable wake_;
    std::vector<Scratch> scratch_;
    std::vector<std::thread> threads_;
    int count_;
};

// Never destroyed: at exit its threads may already be gone (a forked child has none of them).
Pool*& pool() {
    static Pool* instance = new Pool(1);
    return instance;
}

}  // namespace

std::mutex& running() {
    static std::mutex* mutex = new std::mutex;
    return *mutex;
}

void set_threads(int count) {
    if (count < 1) count = 1;
    if (pool()->count() == count) return;
    delete pool();
    pool() = new Pool(count);
}

int threads() { return pool()->count(); }

void parallel(int64_t chunks, ChunkFunction function, void* context) {
    if (chunks > 0) pool()->run(chunks, function, context);
}

void* scratch(int worker, int slot, size_t bytes) { return pool()->scratch(worker, slot, bytes); }

}  // namespace rs
