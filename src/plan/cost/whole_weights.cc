#include "src/plan/cost/whole_weights.h"

#include <map>

#include "paradyse/plan/detail/index.h"

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
      all.push_back({.copy = whole_stack(weights, domain), .parts = 1, .frozen = weights.frozen});
    }
  }
  return all;
}

std::vector<SentOnce> sent_once(
    const Model& model, int ranks, int domain, int ranks_per_node, Precision precision) {
  const int copies = ranks / domain;
  const std::vector<StepExchanges> parts = step_exchanges(model, domain);
  std::vector<SentOnce> all(idx(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    // Of those that it meets, the share on other nodes.
    const auto away = [&](int first, int stride, int count) {
      int others = 0;
      for (int i = 0; i < count; ++i) {
        others += (first + i * stride) / ranks_per_node != rank / ranks_per_node ? 1 : 0;
      }
      return count > 1 ? static_cast<double>(others) / (count - 1) : 0.0;
    };
    const int mine = rank % domain;
    const double in_group = away(rank - mine, 1, domain);
    const double in_copies = away(mine, domain, copies);
    const auto add = [](SentOnce::Phase& phase, double bytes, double share, double collectives) {
      phase.bytes += bytes;
      phase.between_nodes += share * bytes;
      phase.collectives += collectives;
    };
    for (const StepExchanges& part : parts) {
      const auto times = static_cast<double>(part.parts);
      const auto sent = [&](const Exchange& exchange) {
        return static_cast<double>(
            exchange.copy->sent(exchange.transposed)[idx(mine)].elements * exchange.element_bytes);
      };
      add(all[idx(rank)].weights, times * sent(part.weights(precision)), in_group, times);
      if (part.frozen) {
        continue;
      }
      add(all[idx(rank)].gradients, times * sent(part.gradients(precision)), in_group, times);
      if (copies > 1) {  // scattered and gathered
        const auto shard = static_cast<double>(part.copy.from().elements(mine));
        const double bytes = 2 * shard * static_cast<double>(precision.statistic) * (copies - 1) /
                             static_cast<double>(copies);
        add(all[idx(rank)].gradients, times * bytes, in_copies, 2 * times);
      }
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
    if (keeps != Keeps::weights && !part.frozen) {
      add(part.gradients(precision), part.parts);
    }
  }
  return sum;
}

}  // namespace paradyse
