// The end of a model: (xn) -> d, the gradient of the loss to xn, both [T, H]; without a backward
// pass it makes nothing but the loss.
//
//   z = xn w^T + b [T, vocabulary], perhaps capped: cap tanh(z / cap)
//
//   loss = sum over tokens of log(sum(exp(z))) - z[label]
//
// z exists in tiles only: of some rows of w, gathered from the weight domain (a *tile* here), and
// of some tokens.  With one tile gradients are made at once, in 3 products; with several, a first
// pass finds each token's sum and a second one, which gathers again, makes the logits anew: 4
// products; one less where w is frozen.  The adjoint hands d on.
#include <algorithm>

#include "src/plan/ops/products.h"

namespace paradyse {
namespace {

bool makes_gradient(const Op& op) { return !op.out.empty(); }

std::vector<ValueId> cross_entropy_needs(const Op& op) { return op.out; }

std::vector<Exchange> cross_entropy_exchanges(const OpView& view) {
  const Op& op = view.op;
  std::vector<Exchange> all;
  if (!view.forward()) {
    return all;
  }
  const int passes = op.copies.size() > 1 && makes_gradient(op) ? 2 : 1;
  for (const Redistribution& tile : op.copies) {
    for (int pass = 0; pass < passes; ++pass) {
      all.push_back({.copy = &tile, .element_bytes = view.precision.activation});
    }
    if (makes_gradient(op) && !op.frozen) {
      all.push_back({.copy = &tile, .transposed = true, .element_bytes = view.precision.statistic});
    }
  }
  return all;
}

Work cross_entropy_work(const OpView& view) {
  const Op& op = view.op;
  Work work{.calls = 1, .launches = 1};
  if (!view.forward()) {
    return work;
  }
  const Extent x = view.extent(op.in[0]);
  const double of_gradients = op.frozen ? 1.0 : 2.0;
  const double of_logits = op.copies.size() > 1 ? 2.0 : 1.0;
  const double products = !makes_gradient(op) ? 1.0 : of_logits + of_gradients;
  for (const Redistribution& tile : op.copies) {
    const std::int64_t rows = tile.to().elements(place_in_domain(view.program, view.seat)) / x.cols;
    work.matmul_flops +=
        2.0 * static_cast<double>(x.elements()) * static_cast<double>(rows) * products;
    work.touched_bytes +=
        3.0 * static_cast<double>(view.precision.activation) * static_cast<double>(x.rows * rows);
    ++work.calls;
    ++work.launches;
  }
  return work;
}

std::int64_t workspace(const OpView& view) {
  if (!view.forward()) {
    return 0;
  }
  const std::int64_t activation = view.precision.activation;
  const std::int64_t statistic = view.precision.statistic;
  const Extent x = view.extent(view.op.in[0]);
  const std::int64_t tile = largest_tile(view.op) / x.cols;
  const std::int64_t tokens = std::min(view.program.shape.tiles.logits_tokens(tile), x.rows);
  const std::int64_t weights = tile * x.cols * activation;
  const std::int64_t logits = tokens * tile * statistic;
  const std::int64_t statistics = 2 * tokens * statistic;  // a maximum and a sum a row
  if (!makes_gradient(view.op)) {
    return weights + logits + statistics;
  }
  const std::int64_t weights_gradient = view.op.frozen ? 0 : tile * x.cols * statistic;
  const std::int64_t slopes = view.program.shape.logit_cap > 0 ? logits : 0;  // of the cap
  const std::int64_t rounded = view.precision.narrow() ? tokens * tile * activation : 0;
  return weights + logits + slopes + weights_gradient +
         std::max(statistics, rounded + product_bytes(view, tokens, x.cols));
}

}  // namespace

extern const OpTraits kCrossEntropy = {
    .name = "cross_entropy",
    .meets = OpTraits::Meets::domain,
    .receives_first = true,
    .loss = true,
    .products = true,
    .needs = cross_entropy_needs,
    .exchanges = cross_entropy_exchanges,
    .work = cross_entropy_work,
    .workspace = workspace};

}  // namespace paradyse
