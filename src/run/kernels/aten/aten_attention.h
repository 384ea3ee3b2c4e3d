// Attention as ATen's operations: the tiles of cpu/tile_attention.h, and, where
// torch's kernels take them, many blocks in one call of flash by cumulative lengths, and long ones
// each in a call of cuDNN.
#pragma once

#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "src/run/kernels/attention.h"

namespace paradyse::aten {

// Which of torch's attention kernels tensors may take.  Set at the start by PARADYSE_FLASH=0
// (neither: tiles) and PARADYSE_CUDNN_ATTENTION=0 (flash alone) in the environment.
struct AttentionKernels {
  bool flash = true;
  bool cudnn = true;  // for long documents

  // By the two variables' values; null: not set.  Throws std::invalid_argument for one that is
  // neither 0 nor 1.
  static AttentionKernels from(const char* flash, const char* cudnn);
  friend bool operator==(const AttentionKernels&, const AttentionKernels&) = default;
};
AttentionKernels attention_kernels();
void use_attention_kernels(AttentionKernels kernels);  // for tests

// As ops::attend and ops::attend_adjoint.
void attend(const ops::Attention& attention, const ops::AttentionTensors& tensors, bool merge);
void attend_adjoint(
    const ops::Attention& attention,
    const ops::AttentionTensors& tensors,
    const ops::AttentionGradients& gradients);

// Blocks that one call takes.  `plain`: by cumulative lengths; queries and keys of each follow
// those of the one before it, and all are whole, or all masked, with the same window, and the last
// query seeing the last key and, in a window, as many more as would be `behind` it (to both sides,
// at a document's end).  `dense`: a single block, for cuDNN.  Else a single block, for tiles.
struct Pack {
  std::vector<AttentionBlock> blocks;
  bool plain = true;
  bool masked = false;
  std::int64_t window = 0;  // AttentionBlock::window
  std::int64_t behind = 0;  // keys behind a query's own, where the last query's is the last
  bool onto = false;        // earlier blocks had these queries
  bool dense = false;

  [[nodiscard]] Interval queries() const;
  [[nodiscard]] Interval keys() const;
};
// All blocks in their order.  Dense are those of at least `dense_from` queries and keys that are
// causal with as many queries as keys, or whole and of sizes that dense_rows() leaves as they are.
// A flash call launches a tile for each stretch of 128 rows of its longest block, for every block:
// at most twice as many as there is work for, and 64 more.
constexpr std::int64_t kNeverDense = std::numeric_limits<std::int64_t>::max();
std::vector<Pack> packs(
    std::span<const AttentionBlock> blocks, bool masked, std::int64_t dense_from = kNeverDense);

// Rows that cuDNN is given for so many.  It builds a graph for each size, which takes it some 40 ms
// (E), so sizes are few: multiples of 128 up to 1,024 rows, then of a quarter of the power of two
// below, from 4,096 on of 1,024.  From 512 on that is at most 1.25 times the rows, 1.56 times the
// pairs, by which flash is slower (E).
std::int64_t dense_rows(std::int64_t tokens);

// Whether torch's flash kernel takes tensors like `q` with heads this wide: bfloat16 or float16.
bool flash_takes(const at::Tensor& q, std::int64_t head_dim);
// The same of cuDNN's: heads at most 128 wide, and nobody asks for the same bits in each run, which
// its backward does not give.
bool dense_takes(const at::Tensor& q, std::int64_t head_dim);

// As many heads of `q` as `heads` says, in equal runs for each of `key_heads` of k and v.
struct FlashHeads {
  std::int64_t heads = 1;
  std::int64_t key_heads = 1;
  std::int64_t head_dim = 0;
  double scale = 1;
  // As in BlockAttention.
  std::function<at::Tensor(const std::vector<std::int64_t>& list)> on_device = {};
};
// Rows pack.queries() of o and l, as ops::attend has them; by flash, or by cuDNN where it is dense.
void flash_attend(
    const Pack& pack, const FlashHeads& heads, const ops::AttentionTensors& tensors, bool merge);
// Adds to rows of the gradients of q, k and v what comes from these blocks.  `fresh`: writes them.
void flash_attend_adjoint(
    const Pack& pack,
    const FlashHeads& heads,
    const ops::AttentionTensors& tensors,
    const ops::AttentionGradients& gradients,
    bool fresh = false);

// Those of the table (kernels.h).
void attend_blocks(
    const ops::BlockAttention& attention, const ops::AttentionMatrices& in, bool merge);
void attend_blocks_adjoint(
    const ops::BlockAttention& attention,
    const ops::AttentionMatrices& in,
    const ops::AttentionMatrices& gradients,
    bool fresh);

}  // namespace paradyse::aten
