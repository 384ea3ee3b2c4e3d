#include "src/plan/cost/whole_weights.h"

#include <map>

#include "paradyse/plan/index.h"

namespace paradyse {

Redistribution whole_stack(const PartWeights& weights, int domain) {
  const Layout stack = weights.stack();
  Piece all;
  append(all, {0, stack.elements()});
  return {stack, stack.cut("elements", Cuts(idx(domain), all)), domain};
}

Exchange StepExchanges::weights(Precision precision) const {
  return {.copy = &copy, .element_bytes = precision.activation};
}

Exchange StepExchanges::gradients(Precision precision) const {
  return {.copy = &copy, .transposed = true, .element_bytes = precision.statistic};
}

std::vector<StepExchanges> step_exchanges(const Model& model, int domain) {
  std::vector<StepExchanges> all;
  std::map<const Part*, std::size_t> places;  // layers are alike
  for (const ModelPart& one : model.parts) {
    const auto known = places.find(one.part.get());
    if (known != places.end()) {
      ++all[known->second].parts;
      continue;
    }
    const PartWeights weights = one.part->weights(domain);
    if (!weights.matrices.empty() && !weights.matrices.front().tied) {
      places.emplace(one.part.get(), all.size());
      all.push_back({.copy = whole_stack(weights, domain), .parts = 1});
    }
  }
  return all;
}

Traffic step_traffic(const Model& model, int domain, int rank, Precision precision, Keeps keeps) {
  Traffic sum;
  const auto add = [&](const Exchange& exchange, std::int64_t times) {
    const Sent sent = exchange.copy->sent(exchange.transposed)[idx(rank)];
    sum +=
        {.bytes = times * sent.elements * exchange.element_bytes,
         .messages = times * sent.messages,
         .collectives = times};
  };
  for (const StepExchanges& part : step_exchanges(model, domain)) {
    add(part.weights(precision), part.parts);
    if (keeps != Keeps::weights) {
      add(part.gradients(precision), part.parts);
    }
  }
  return sum;
}

}  // namespace paradyse
