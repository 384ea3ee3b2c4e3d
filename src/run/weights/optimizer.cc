#include "src/run/weights/optimizer.h"

#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <stdexcept>

#include <c10/core/InferenceMode.h>

#include "paradyse/run/accountant.h"
#include "src/run/memory/host_store.h"

namespace paradyse {

double learning_rate(const RunConfig::Optimizer& options, std::int64_t step, std::int64_t steps) {
  if (step < options.warmup_steps) {
    return options.lr * static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
  }
  const auto done = static_cast<double>(step - options.warmup_steps);
  const auto all = static_cast<double>(std::max<std::int64_t>(1, steps - options.warmup_steps));
  const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * std::min(1.0, done / all)));
  return options.lr * (options.min_lr_ratio + (1 - options.min_lr_ratio) * cosine);
}

namespace {

// Elements of which a GPU has what waits on the host at once: at most 12 MiB.
constexpr std::int64_t kFetched = 1 << 20;

bool owns_stack(const PartParameters& part) {
  const auto& matrices = part.weights.matrices;
  return !matrices.empty() && !matrices.front().tied;
}

}  // namespace

at::Tensor gradient_norm(const Parameters& parameters, Communicator& domain) {
  const c10::InferenceMode no_autograd;
  const HostScope control;
  std::vector<at::Tensor> gradients;
  const auto add = [&](const at::Tensor& gradient) {
    if (gradient.defined() && gradient.numel() > 0) {
      gradients.push_back(gradient);
    }
  };
  for (const PartParameters& part : parameters.parts()) {
    if (owns_stack(part)) {
      add(part.stack_grad);
    }
    if (domain.rank() == 0) {
      for (const at::Tensor& gradient : part.vector_grads) {
        add(gradient);
      }
    }
  }
  const auto number = at::TensorOptions().dtype(at::kDouble).device(parameters.device());
  const at::Tensor norms = gradients.empty()
                               ? at::zeros({1}, number)
                               : at::stack(at::_foreach_norm(gradients)).to(at::kDouble);
  at::Tensor squares;
  if (norms.is_cpu()) {  // in the order of the parts
    const auto* const begin = norms.const_data_ptr<double>();
    const double sum = std::inner_product(begin, begin + norms.numel(), begin, 0.0);
    squares = at::full({1}, sum, number);
  } else {
    squares = norms.square_().sum(0, /*keepdim=*/true);
  }
  domain.all_reduce(squares, {.op = "gradient norm", .part = ""});
  return squares.sqrt_().squeeze(0);
}

at::Tensor gradient_factor(const at::Tensor& norm, double clip_norm, double loss_scale) {
  const c10::InferenceMode no_autograd;
  const HostScope control;
  // infinity / infinity is NaN, and clamping leaves it
  const double limit = clip_norm > 0 ? clip_norm : std::numeric_limits<double>::infinity();
  return at::full_like(norm, limit).div_(norm).clamp_max_(1.0).div_(loss_scale);
}

bool LossScale::update(bool overflow) {
  if (!dynamic_) {
    return !overflow;
  }
  if (overflow) {
    value_ = std::max(1.0, value_ / 2);
    steps_ = 0;
    return false;
  }
  if (++steps_ == kGrowthInterval) {
    value_ *= 2;
    steps_ = 0;
  }
  return true;
}

AdamW::AdamW(Parameters& parameters, const RunConfig::Optimizer& options)
    : parameters_(parameters), options_(options), groups_(2) {
  const c10::InferenceMode no_autograd;
  const MemoryScope scope(Category::optimizer, "optimizer state");
  groups_[0].weight_decay = options.weight_decay;
  const auto add = [&](Group& group,
                       const at::Tensor& master,
                       const at::Tensor& gradient,
                       const at::Tensor& weight) {
    if (!gradient.defined() || master.numel() == 0) {
      return;
    }
    group.masters.push_back(master);
    group.weights.push_back(weight);
    group.gradients.push_back(gradient);
    if (!options.offload) {
      group.means.push_back(at::zeros_like(gradient));
      group.variances.push_back(at::zeros_like(gradient));
    }
  };
  for (PartParameters& part : parameters.parts()) {
    if (owns_stack(part)) {
      add(groups_[0], part.stack_master, part.stack_grad, part.stack);
    }
    for (std::size_t v = 0; v < part.vectors.size(); ++v) {
      const bool decays = part.weights.vectors[v].of_adapter();  // it is a matrix
      add(groups_[decays ? 0 : 1], part.vector_masters[v], part.vector_grads[v], part.vectors[v]);
    }
  }
  if (options.offload) {
    const auto like =
        at::TensorOptions().dtype(parameters.types().gradient).device(parameters.device());
    for (Group& group : groups_) {
      for (std::vector<at::Tensor>* moments : {&group.means, &group.variances}) {
        *moments = host_zeros(group.gradients, like, "moments of the optimizer");
      }
    }
  }
}

AdamW::Moments AdamW::moments(const at::Tensor& master) const {
  for (const Group& group : groups_) {
    for (std::size_t i = 0; i < group.masters.size(); ++i) {
      if (group.masters[i].is_same(master)) {
        return {group.means[i], group.variances[i]};
      }
    }
  }
  throw std::logic_error("AdamW::moments: a tensor that is not trained");
}

void AdamW::step(double learning_rate, double factor) {
  const c10::InferenceMode no_autograd;
  const HostScope control;
  step(
      learning_rate,
      at::full({}, factor, at::TensorOptions().dtype(at::kDouble).device(parameters_.device())));
}

void AdamW::step(double learning_rate, const at::Tensor& factor) {
  const c10::InferenceMode no_autograd;
  ++steps_;
  const Kernels& kernels = kernels_for(parameters_.device());
  const kernels::AdamWStep how{
      .learning_rate = learning_rate,
      .beta1 = options_.beta1,
      .beta2 = options_.beta2,
      .eps = options_.eps,
      .number = steps_,
      .factor = factor};
  for (Group& group : groups_) {
    if (group.masters.empty()) {
      continue;
    }
    // of a tensor: parameters_.device() may have no index
    const c10::Device device = group.gradients.front().device();
    if (group.means.front().device() == device && group.masters.front().device() == device) {
      kernels.adamw(group, how);
      continue;
    }
    for (std::size_t i = 0; i < group.masters.size(); ++i) {
      for (std::int64_t begin = 0; begin < group.masters[i].numel(); begin += kFetched) {
        const MemoryScope scope(Category::optimizer, "fetched optimizer state");
        const auto slice = [&](const at::Tensor& whole) {
          return whole.view(-1).slice(0, begin, begin + kFetched);
        };
        const at::Tensor master = slice(group.masters[i]).to(device);  // a view where it is there
        const Group one{
            .weight_decay = group.weight_decay,
            .masters = {master},
            .gradients = {slice(group.gradients[i])},
            .means = {slice(group.means[i]).to(device)},
            .variances = {slice(group.variances[i]).to(device)},
            .weights = {
                group.weights[i].is_same(group.masters[i]) ? master : slice(group.weights[i])}};
        kernels.adamw(one, how);
        const auto put_back = [&](const at::Tensor& whole, const at::Tensor& fetched) {
          if (whole.device() != device) {
            slice(whole).copy_(fetched);
          }
        };
        put_back(group.masters[i], master);
        put_back(group.means[i], one.means.front());
        put_back(group.variances[i], one.variances.front());
      }
    }
  }
}

}  // namespace paradyse
