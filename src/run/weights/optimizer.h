// Sharded AdamW: each rank updates what it stores.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/config.h"
#include "paradyse/run/communicator.h"
#include "paradyse/run/weights.h"
#include "src/run/kernels/kernels.h"

namespace paradyse {

// Learning rate of step `step` (from 0) of `steps`: linear from 0 over the warm-up, then half a
// cosine from lr to lr * min_lr_ratio (Loshchilov & Hutter 2017).
double learning_rate(const RunConfig::Optimizer& options, std::int64_t step, std::int64_t steps);

// [] Euclidean norm of all gradients, each counted once: matrices over the weight domain, vectors
// (the same on all ranks) on one.  float64 on the parameters' device: the host waits for nothing.
at::Tensor gradient_norm(const Parameters& parameters, Communicator& domain);

// [] What gradients of this norm, that are `loss_scale` times too large, are multiplied by: within
// `clip_norm` (0: any norm will do), as torch.nn.utils.clip_grad_norm_ does.  Of a norm that is not
// finite it is no number that AdamW takes.
at::Tensor gradient_factor(const at::Tensor& norm, double clip_norm, double loss_scale);

// What the loss is multiplied with, so that its gradients are no float16 zeros (Micikevicius et al.
// 2018): halved at each overflow, doubled after 2000 steps without one, as torch.amp.GradScaler
// does.  All ranks see the same overflows, so they agree.
class LossScale {
 public:
  static constexpr double kInitial = 65536;
  static constexpr std::int64_t kGrowthInterval = 2000;

  // Not `dynamic`: always 1.
  explicit LossScale(bool dynamic) : dynamic_(dynamic), value_(dynamic ? kInitial : 1) {}
  // As one that stood at `value` for `steps`.
  LossScale(bool dynamic, double value, std::int64_t steps)
      : dynamic_(dynamic), value_(value), steps_(steps) {}

  [[nodiscard]] double value() const { return value_; }
  [[nodiscard]] std::int64_t steps() const { return steps_; }
  // Whether the step counts: its gradients are numbers.
  bool update(bool overflow);

 private:
  bool dynamic_;
  double value_;
  std::int64_t steps_ = 0;  // since it changed
};

// AdamW with decoupled decay (Loshchilov & Hutter 2019) on matrices and adapters; other vectors are
// not decayed, and what is frozen is neither.
// Narrow weights are rounded from their updated masters.  With `options.offload` the moments wait
// in host memory (host_store.h), as masters of parameters with Masters::on_host do: a CPU rank
// updates them where they lie, a GPU fetches a few at a time (ZeRO-Offload, Ren et al. 2021, keeps
// them there and computes there).
class AdamW {
 public:
  AdamW(Parameters& parameters, const RunConfig::Optimizer& options);

  // Multiplies the gradients by `factor` [], float64 on the parameters' device, and updates the
  // weights.  Where the factor is not above 0 and finite, nothing changes but the count of steps,
  // which the host gives back by `uncount` when it has read as much.
  void step(double learning_rate, const at::Tensor& factor);
  void step(double learning_rate, double factor);
  void uncount() { --steps_; }

  // What is kept beside a master, of its shape.
  struct Moments {
    at::Tensor mean;
    at::Tensor variance;
  };
  [[nodiscard]] Moments moments(const at::Tensor& master) const;
  // Whether they wait in host memory.
  [[nodiscard]] bool on_host() const { return options_.offload; }
  // Steps that counted.
  [[nodiscard]] std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

 private:
  using Group = kernels::AdamWTensors;  // alike in their decay
  Parameters& parameters_;

  RunConfig::Optimizer options_;
  std::vector<Group> groups_;
  std::int64_t steps_ = 0;
};

}  // namespace paradyse
