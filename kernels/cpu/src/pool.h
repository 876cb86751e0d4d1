// The thread pool. Owns: worker threads and the one job that runs at a time. Must not know: kernels.
//
// A job is a number of chunks taken one by one, so a thread that the machine has descheduled costs
// no more than the chunk it holds. The calling thread works too; nobody waits for a thread that has
// taken nothing. Workers spin briefly between jobs, because a decode step is a hundred jobs of some
// ten microseconds, and then sleep.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace rs {

using ChunkFunction = void (*)(void* context, int64_t chunk, int worker);

// Held by whoever computes: the pool runs one job at a time, and its scratch memory is shared.
std::mutex& running();

// Threads that work, the caller included; at least 1.
void set_threads(int count);
int threads();

// Call function(context, chunk, worker) once for each chunk in 0 .. chunks - 1, in any order;
// worker is 0 .. threads() - 1 and names the thread. Returns when all have been done.
void parallel(int64_t chunks, ChunkFunction function, void* context);

template <class Body>
void parallel_for(int64_t chunks, Body&& body) {
    parallel(
        chunks,
        [](void* context, int64_t chunk, int worker) {
            (*static_cast<Body*>(context))(chunk, worker);
        },
        &body);
}

// Scratch memory of one worker, 64-byte aligned, at least `bytes` long, valid until its next call
// with the same slot.
void* scratch(int worker, int slot, size_t bytes);

}  // namespace rs
