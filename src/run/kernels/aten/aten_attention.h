// Attention as ATen's operations (through_aten.h): the tiles of tile_attention.h, and, where
// torch's flash kernel takes them, many blocks in one call.
#pragma once

#include <span>
#include <vector>

#include "src/run/kernels/cpu/tile_attention.h"

namespace paradyse::aten {

// As ops::attend and ops::attend_adjoint.
void attend(const ops::Attention& attention, const ops::AttentionTensors& tensors, bool merge);
void attend_adjoint(
    const ops::Attention& attention,
    const ops::AttentionTensors& tensors,
    const ops::AttentionGradients& gradients);

// Blocks that one call takes.  `plain`: by cumulative lengths; queries and keys of each follow
// those of the one before it, and all are whole, or all causal with the last query seeing the last
// key. Else a single block, for tiles.
struct Pack {
  std::vector<AttentionBlock> blocks;
  bool plain = true;
  bool causal = false;
  bool onto = false;  // earlier blocks had these queries

  [[nodiscard]] Interval queries() const;
  [[nodiscard]] Interval keys() const;
};
// All blocks in their order.
std::vector<Pack> packs(std::span<const AttentionBlock> blocks, bool causal);

// Whether torch's flash kernel takes tensors like `q` with heads this wide: bfloat16 or float16.
bool flash_takes(const at::Tensor& q, std::int64_t head_dim);

// As many heads of `q` as `heads` says, in equal runs for each of `key_heads` of k and v.
struct FlashHeads {
  std::int64_t heads = 1;
  std::int64_t key_heads = 1;
  std::int64_t head_dim = 0;
  double scale = 1;
};
// Rows pack.queries() of o and l, as ops::attend has them.
void flash_attend(
    const Pack& pack, const FlashHeads& heads, const ops::AttentionTensors& tensors, bool merge);
void flash_attend_adjoint(
    const Pack& pack,
    const FlashHeads& heads,
    const ops::AttentionTensors& tensors,
    const ops::AttentionGradients& gradients);

}  // namespace paradyse::aten
