// What an op's forward and adjoint see: the values and gradients of one part on one rank.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "paradyse/plan/detail/schedule.h"
#include "paradyse/run/weights.h"
#include "src/run/data/batch_numbers.h"
#include "src/run/data/micro_batch.h"
#include "src/run/ops/rank_context.h"

namespace paradyse {

// cos and sin of every position's angles, [positions, D/2].
struct RopeTable {
  at::Tensor cosines;
  at::Tensor sines;
};
RopeTable rope_table(
    const Rope& rope,
    std::int64_t head_dim,
    std::int64_t positions,
    at::ScalarType type,
    const Kernels& kernels = cpu_kernels(),
    c10::Device device = c10::Device(c10::kCPU));

struct Frame {
  const ScheduledPart* part = nullptr;
  const RankContext* rank = nullptr;
  const MicroBatch* batch = nullptr;
  BatchNumbers* numbers = nullptr;
  const RopeTable* rope = nullptr;
  PartParameters* parameters = nullptr;
  MicroBatchResult* result = nullptr;
  double loss_scale = 0;
  at::ScalarType activation = at::kFloat;
  at::ScalarType statistic = at::kFloat;
  c10::Device device = c10::Device(c10::kCPU);

  std::vector<at::Tensor> values;     // by ValueId; undefined: not there
  std::vector<at::Tensor> gradients;  // by ValueId
  // Messages under way, by the ValueId that they make, or whose gradient they send on.
  std::vector<std::unique_ptr<Pending>> pending;

  [[nodiscard]] const Program& program() const { return part->program(); }
  [[nodiscard]] Call call(const char* op, bool stable = false) const {
    return {.op = op, .part = program().part, .layer = part->layer, .stable_source = stable};
  }

  // The stack stays as it is until ranks meet again (Call::stable_source): else it is whole,
  // perhaps of this step alone.
  [[nodiscard]] bool stack_lasts() const { return program().domain > 1; }

  // Waits for the message of this value.
  void await(ValueId id);

  // The value, which must be there (a schedule that frees too early is our mistake).
  at::Tensor& value(ValueId id);
  at::Tensor& gradient(ValueId id);

  // The kernels of the rank's device.
  [[nodiscard]] const Kernels& kernels() const { return *rank->kernels; }

  // to = a b, or to += a b (Kernels::product), in the plan's tiles.
  void product(
      const at::Tensor& a, const at::Tensor& b, const at::Tensor& to, bool accumulate) const {
    kernels().product(a, b, to, accumulate, program().shape.tiles.product_rows(to.size(1)));
  }

  // [row] On the device: what is known of each token, for the rows of a value; `mine` of the rank's
  // own tokens, `all` of the packed ones.
  at::Tensor of_rows(
      ValueId id,
      BatchNumbers::Kind kind,
      const std::vector<std::int64_t>& mine,
      const std::vector<std::int64_t>& all) const;

  // [row] The place of each row of a value in a row dim of its own.
  [[nodiscard]] at::Tensor places(ValueId id, const std::string& dim) const;

  // [row] Of samples: a number that each row of a value has wherever it lies, rows that differ in
  // the place in `shared` alone the same one.  Its sample's number in the global batch, then its
  // place among the rows of that, dims in the order of their names.
  [[nodiscard]] at::Tensor numbered_rows(ValueId id, const std::string& shared) const;

  // Makes room for a value: uninitialised, of this rank's extent.
  at::Tensor& make(ValueId id);
  // Where the gradient of `id` goes: fresh, or to be added to (second: true).
  std::pair<at::Tensor, bool> gradient_target(ValueId id);
  // The same for an adjoint that cannot add: the value must have one reader.
  at::Tensor only_gradient_target(ValueId id);
  // Where the gradient of weights `id` goes: this rank's own gradient for held weights, else that
  // of gathered ones.  Second: false where a term's elements are to be written, not added to.
  std::pair<at::Tensor, bool> weight_gradient_target(ValueId id);
  // What an op adds a vector's gradient to: that of the part, or, of a vector that is not trained,
  // room for one that is let go.
  [[nodiscard]] at::Tensor vector_gradient(std::int64_t vector) const;

  // Uninitialised.
  at::Tensor empty(std::int64_t rows, std::int64_t cols, at::ScalarType type) const {
    return at::empty({rows, cols}, at::TensorOptions().dtype(type).device(device));
  }
};

}  // namespace paradyse
