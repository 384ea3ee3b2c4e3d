// How a kernel's body is written and run.  A body is a struct with
//   using Shared = ...;                 what the threads of a block share
//   static constexpr int kThreads;      of a block
//   void run(const Block<kThreads>& block, Shared& shared, void* room) const;
// whose work is a list of phases, block.each([&](int t) {...}): what thread t does up to the next
// barrier.  On a GPU all threads of a block do a phase at once and wait for one another at its end;
// a host's compiler makes a loop of it.  What a thread keeps from phase to phase is `Own`.  Nothing
// is exchanged but through what is shared, and nothing is added but in a written order, so that
// both give the same sums.
#pragma once

#include "src/run/cuda/numbers.h"

#ifndef __CUDACC__
#include <cstring>
#include <vector>
#endif

namespace paradyse::PARADYSE_KERNELS {

#ifdef __CUDACC__

template <int kThreads>
struct Block {
  std::int64_t index;
  std::int64_t count;  // of blocks

  template <typename Phase>
  PARADYSE_DEVICE void each(Phase phase) const {
    phase(static_cast<int>(threadIdx.x));
    __syncthreads();
  }
};

template <typename T, int kThreads>
struct Own {
  T value;
  PARADYSE_DEVICE T& operator[](int) { return value; }
};

// At most 64 registers a thread: so many blocks are on a multiprocessor at once.
template <typename Body>
__global__ void __launch_bounds__(Body::kThreads, 1024 / Body::kThreads)
    run_body(const __grid_constant__ Body body) {
  extern __shared__ double room[];
  __shared__ typename Body::Shared shared;
  body.run(Block<Body::kThreads>{blockIdx.x, gridDim.x}, shared, room);
}

// Runs `blocks` blocks, each with `room_bytes` beside what Shared has.
template <typename Body>
void launch(const Body& body, std::int64_t blocks, std::size_t room_bytes, Stream stream) {
  if (blocks > 0) {
    run_body<<<
        static_cast<unsigned>(blocks),
        Body::kThreads,
        room_bytes,
        static_cast<cudaStream_t>(stream)>>>(body);
  }
}

#else

// The last block or thread is the first to come: results must not tell.
inline bool backwards = false;

template <int kThreads>
struct Block {
  std::int64_t index;
  std::int64_t count;

  template <typename Phase>
  void each(Phase phase) const {
    for (int t = 0; t < kThreads; ++t) {
      phase(backwards ? kThreads - 1 - t : t);
    }
  }
};

template <typename T, int kThreads>
struct Own {
  T values[kThreads];
  T& operator[](int t) { return values[t]; }
};

template <typename Body>
void launch(const Body& body, std::int64_t blocks, std::size_t room_bytes, Stream) {
  typename Body::Shared shared;
  std::vector<double> room(room_bytes / sizeof(double) + 1);
  for (std::int64_t b = 0; b < blocks; ++b) {
    std::memset(static_cast<void*>(&shared), 0xFF, sizeof(shared));  // NaN
    std::memset(room.data(), 0xFF, room.size() * sizeof(double));
    body.run(Block<Body::kThreads>{backwards ? blocks - 1 - b : b, blocks}, shared, room.data());
  }
}

#endif

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// For bodies whose threads have nothing to share.
struct Nothing {};

}  // namespace paradyse::PARADYSE_KERNELS
