#include "src/run/execute/whole_weights.h"

#include <deque>
#include <memory>
#include <utility>

#include <c10/core/InferenceMode.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/run/accountant.h"
#include "src/plan/cost/whole_weights.h"

namespace paradyse {
namespace {

// So many exchanges are under way at once.
constexpr std::size_t kUnderWay = 2;

// Calls begin(part, its stack), which begins an exchange or gives none, for each.
template <typename Begin>
void exchange_all(const WholeStacks& stacks, Begin begin) {
  std::deque<std::unique_ptr<Pending>> under_way;
  const auto end = [&] {
    under_way.front()->wait();
    under_way.pop_front();
  };
  for (const auto& [part, stack] : stacks) {
    if (under_way.size() == kUnderWay) {
      end();
    }
    if (std::unique_ptr<Pending> begun = begin(part, stack.table())) {
      under_way.push_back(std::move(begun));
    }
  }
  while (!under_way.empty()) {
    end();
  }
}

Call call(const char* op, const PartParameters& part, bool stable_source) {
  return {.op = op, .part = part.weights.part, .layer = part.layer, .stable_source = stable_source};
}

}  // namespace

WholeStacks whole_stacks(const Model& model, int domain) {
  std::map<const Part*, Redistribution> of_part;  // layers are alike
  WholeStacks stacks;
  for (std::size_t i = 0; i < model.parts.size(); ++i) {
    const Part* part = model.parts[i].part.get();
    const PartWeights weights = part->weights(domain);
    if (!weights.matrices.empty() && !weights.matrices.front().tied) {
      stacks.emplace(i, of_part.try_emplace(part, whole_stack(weights, domain)).first->second);
    }
  }
  return stacks;
}

WholeWeights::WholeWeights(
    Parameters& sharded, const WholeStacks& stacks, bool gradients, Communicator& domain)
    : sharded_(sharded), stacks_(stacks), parts_(sharded.parts()) {
  const c10::InferenceMode no_autograd;
  for (const auto& [i, stack] : stacks) {
    const auto make = [&](at::ScalarType type) {
      return at::empty(
          {stack.to().elements(domain.rank())},
          at::TensorOptions().dtype(type).device(sharded.device()));
    };
    {
      const MemoryScope scope(Category::parameters, "weights of a step");
      parts_[i].stack = make(sharded.types().weight);
    }
    if (gradients && !parts_[i].weights.frozen) {
      const MemoryScope scope(Category::gradients, "gradients of a step");
      parts_[i].stack_grad = make(sharded.types().gradient).zero_();
    }
  }
  for (PartParameters& part : parts_) {
    if (!part.weights.matrices.empty() && part.weights.matrices.front().tied) {
      part.stack = parts_.front().stack;
      part.stack_grad = parts_.front().stack_grad;
    }
  }
  exchange_all(stacks, [&](std::size_t i, const Transfer& table) {
    const PartParameters& from = sharded.parts()[i];
    return domain.exchange(
        from.stack, parts_[i].stack, table, call("gather weights", from, /*stable_source=*/true));
  });
}

void WholeWeights::sum_gradients(Communicator& domain) {
  const c10::InferenceMode no_autograd;
  exchange_all(stacks_, [&](std::size_t i, const Transfer& table) {
    const PartParameters& to = sharded_.parts()[i];
    if (to.weights.frozen) {
      return std::unique_ptr<Pending>();
    }
    return domain.exchange_sum(
        parts_[i].stack_grad,
        to.stack_grad,
        table,
        /*accumulate=*/true,
        call("sum gradients", to, /*stable_source=*/false));
  });
}

}  // namespace paradyse
