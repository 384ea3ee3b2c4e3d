// Adds up what the blocks of norm_adjoint.cu left (norm_parts.h).
#include "src/run/cuda/norm_parts.h"

namespace paradyse::PARADYSE_KERNELS {

// 32 slots a block, of which 8 threads each take every eighth part.
template <typename S>
struct AddParts {
  static constexpr int kThreads = 256;
  struct Shared {
    S sums[kThreads];
  };
  NormAdjoint adjoint;
  Parts<S> parts;
  NormTeams teams;
  int pack;

  PARADYSE_DEVICE void run(const Block<kThreads>& block, Shared& shared, void*) const {
    const std::int64_t first = block.index * 32;
    block.each([&](int t) {
      const std::int64_t i = first + t % 32;
      S sum = 0;
      for (std::int64_t b = t / 32; i < parts.numbers && b < parts.blocks; b += kThreads / 32) {
        sum += static_cast<const S*>(adjoint.scratch)[b * parts.numbers + i];
      }
      shared.sums[t] = sum;
    });
    block.each([&](int t) {
      const std::int64_t i = first + t;
      const std::int64_t slot = i % parts.slots;
      const int lot = pack << teams.shift;  // slots of a team's packs
      const int within = static_cast<int>(slot % lot);
      const std::int64_t column =
          slot - within + teams.lane(within) * pack + (within >> teams.shift);
      if (t < 32 && i < parts.numbers && column < teams.width) {
        S sum = 0;
        for (int k = t; k < kThreads; k += 32) {
          sum += shared.sums[k];
        }
        if (S* const to = static_cast<S*>(i < parts.slots ? adjoint.grad_w : adjoint.grad_b)) {
          to[column] += sum;
        }
      }
    });
  }
};

std::size_t norm_scratch_bytes(const Norm& norm) {
  std::size_t bytes = 0;
  with_type(norm.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Parts<Sum<T>> parts(norm, NormTeams(norm.width, kPack<T>), kPack<T>);
    bytes = static_cast<std::size_t>(parts.blocks * parts.numbers) * sizeof(Sum<T>);
  });
  return bytes;
}

void add_parts(const Norm& norm, const NormAdjoint& adjoint, Stream stream) {
  with_type(norm.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const NormTeams teams(norm.width, kPack<T>);
    const Parts<Sum<T>> parts(norm, teams, kPack<T>);
    const std::int64_t blocks = parts.blocks > 0 ? ceil_div(parts.numbers, 32) : 0;
    launch(AddParts<Sum<T>>{adjoint, parts, teams, kPack<T>}, blocks, 0, stream);
  });
}

}  // namespace paradyse::PARADYSE_KERNELS
