#include "src/run/weights/optimizer.h"

#include <cmath>
#include <numbers>
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

// Elements of which a GPU has the moments at once: 8 MiB.
constexpr std::int64_t kFetched = 1 << 20;

bool owns_stack(const PartParameters& part) {
  const auto& matrices = part.weights.matrices;
  return !matrices.empty() && !matrices.front().tied;
}

double square_sum(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return 0;
  }
  const double norm = at::linalg_vector_norm(tensor).item<double>();
  return norm * norm;
}

}  // namespace

double gradient_norm(const Parameters& parameters, Communicator& domain) {
  const c10::InferenceMode no_autograd;
  const HostScope control;
  double squares = 0;
  for (const PartParameters& part : parameters.parts()) {
    if (owns_stack(part)) {
      squares += square_sum(part.stack_grad);
    }
    if (domain.rank() == 0) {
      for (const at::Tensor& grad : part.vector_grads) {
        squares += square_sum(grad);
      }
    }
  }
  const at::Tensor sum = at::full({1}, squares, at::kDouble);
  domain.all_reduce(sum, {.op = "gradient norm", .part = ""});
  return std::sqrt(*sum.const_data_ptr<double>());
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
  const auto add = [&](Group& group, const at::Tensor& weight, const at::Tensor& gradient) {
    if (weight.numel() == 0) {
      return;
    }
    group.weights.push_back(weight);
    group.gradients.push_back(gradient);
    if (!options.offload) {
      group.means.push_back(at::zeros_like(gradient));
      group.variances.push_back(at::zeros_like(gradient));
    }
  };
  for (PartParameters& part : parameters.parts()) {
    if (owns_stack(part)) {
      add(groups_[0], part.stack_master, part.stack_grad);
    }
    for (std::size_t v = 0; v < part.vectors.size(); ++v) {
      add(groups_[1], part.vector_masters[v], part.vector_grads[v]);
    }
  }
  if (options.offload) {
    for (Group& group : groups_) {
      leave_moments_on_host(group);
    }
  }
  const HostScope control;
  for (Group& group : groups_) {  // one counter a tensor, beside it, is what torch wants
    const at::Tensor counters = at::zeros(
        {static_cast<std::int64_t>(group.weights.size())},
        at::TensorOptions().dtype(at::kFloat).device(parameters.device()));
    for (std::size_t i = 0; i < group.weights.size(); ++i) {
      group.steps.push_back(counters.select(0, static_cast<std::int64_t>(i)));
    }
  }
}

// All of a group in one place, and the tensors' own pieces of it.
void AdamW::leave_moments_on_host(Group& group) {
  std::int64_t elements = 0;
  for (const at::Tensor& gradient : group.gradients) {
    elements += gradient.numel();
  }
  for (std::vector<at::Tensor>* moments : {&group.means, &group.variances}) {
    if (elements == 0) {
      continue;
    }
    const at::Tensor all =
        host_zeros(elements, group.gradients.front().options(), "moments of the optimizer");
    std::int64_t begin = 0;
    for (const at::Tensor& gradient : group.gradients) {
      moments->push_back(all.narrow(0, begin, gradient.numel()).view(gradient.sizes()));
      begin += gradient.numel();
    }
  }
}

AdamW::Moments AdamW::moments(const at::Tensor& master) const {
  for (const Group& group : groups_) {
    for (std::size_t i = 0; i < group.weights.size(); ++i) {
      if (group.weights[i].is_same(master)) {
        return {group.means[i], group.variances[i]};
      }
    }
  }
  throw std::logic_error("AdamW::moments: a tensor that is not trained");
}

void AdamW::set_steps(std::int64_t steps) {
  const c10::InferenceMode no_autograd;
  steps_ = steps;
  for (Group& group : groups_) {
    for (const at::Tensor& counter : group.steps) {
      counter.fill_(steps);
    }
  }
}

void AdamW::step(double learning_rate, double gradient_scale) {
  const c10::InferenceMode no_autograd;
  ++steps_;
  for (Group& group : groups_) {
    if (group.weights.empty()) {
      continue;
    }
    for (std::size_t i = 0; i < group.gradients.size(); ++i) {
      if (gradient_scale != 1.0) {
        group.gradients[i].mul_(gradient_scale);
      }
      group.steps[i].add_(1);
    }
    if (group.means.front().device() == group.weights.front().device()) {
      update(group, learning_rate);
      continue;
    }
    for (std::size_t i = 0; i < group.weights.size(); ++i) {
      for (std::int64_t begin = 0; begin < group.weights[i].numel(); begin += kFetched) {
        const MemoryScope scope(Category::optimizer, "fetched moments");
        const auto slice = [&](const at::Tensor& whole) {
          return whole.view(-1).slice(0, begin, begin + kFetched);
        };
        const c10::Device device = group.weights[i].device();
        const Group one{
            .weight_decay = group.weight_decay,
            .weights = {slice(group.weights[i])},
            .gradients = {slice(group.gradients[i])},
            .means = {slice(group.means[i]).to(device)},
            .variances = {slice(group.variances[i]).to(device)},
            .steps = {group.steps[i]}};
        update(one, learning_rate);
        slice(group.means[i]).copy_(one.means.front());
        slice(group.variances[i]).copy_(one.variances.front());
      }
    }
  }
  parameters_.round_masters();
}

void AdamW::update(const Group& group, double learning_rate) const {
  at::_fused_adamw_(
      group.weights,
      group.gradients,
      group.means,
      group.variances,
      {},
      group.steps,
      learning_rate,
      options_.beta1,
      options_.beta2,
      group.weight_decay,
      options_.eps,
      /*amsgrad=*/false,
      /*maximize=*/false);
}

}  // namespace paradyse
