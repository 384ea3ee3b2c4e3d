#include "src/run/kernels/aten/loss.h"

#include "paradyse/run/accountant.h"

namespace paradyse::aten {
namespace {

using kernels::LogitsTile;
using kernels::LossStatistics;

// Where the labels of the tile's tokens stand in it: a column for each, the first or the last one
// for a label outside, which is not `inside`.
struct Labels {
  at::Tensor column;  // [tokens, 1]
  at::Tensor inside;
};
Labels labels_in(const LogitsTile& tile) {
  const std::int64_t ids = tile.logits.size(1);
  const at::Tensor column = tile.labels - tile.first_id;
  return {column.clamp(0, ids - 1).unsqueeze(1), column.ge(0).logical_and_(column.lt(ids))};
}

at::Tensor of_rows(const at::Tensor& numbers, const at::Tensor& logits) {
  return numbers.to(logits.scalar_type()).unsqueeze(1);
}

// Probabilities, in the tile's place, become the gradient.
void to_gradient(const LogitsTile& tile, double scale, const at::Tensor& gradient) {
  at::Tensor p = tile.logits;
  {
    const HostScope library_memory;
    const Labels labels = labels_in(tile);
    p.scatter_add_(1, labels.column, of_rows(labels.inside, p).neg_());
    p.mul_(of_rows(tile.labels >= 0, p).mul_(scale));
  }
  if (!gradient.is_same(p)) {
    gradient.copy_(p);
  }
}

}  // namespace

// Leaves exp(logits - maximum) in the tile, the maximum that of the tile.
void loss_statistics(const LogitsTile& tile, const LossStatistics& statistics) {
  at::Tensor logits = tile.logits;
  const at::Tensor maximum_here = logits.amax(1);
  {
    const HostScope library_memory;
    const Labels labels = labels_in(tile);
    const at::Tensor found = logits.gather(1, labels.column).squeeze(1).to(at::kDouble);
    statistics.label.copy_(at::where(labels.inside, found, statistics.label));
  }
  logits.sub_(maximum_here.unsqueeze(1)).exp_();
  const at::Tensor sum_here = logits.sum(1);
  const HostScope library_memory;
  const at::Tensor m = maximum_here.to(at::kDouble);
  const at::Tensor both = at::maximum(m, statistics.maximum);
  const at::Tensor before = (statistics.maximum - both).exp_();
  at::Tensor(statistics.sum).mul_(before).add_(sum_here.to(at::kDouble).mul_((m - both).exp_()));
  statistics.maximum.copy_(both);
}

void loss_gradient(
    const LogitsTile& tile,
    const LossStatistics& statistics,
    double scale,
    const at::Tensor& gradient) {
  {
    const HostScope library_memory;
    at::Tensor logits = tile.logits;
    logits.sub_(of_rows(statistics.log_sum_exp(), logits)).exp_();
  }
  to_gradient(tile, scale, gradient);
}

void loss_and_gradient(
    const LogitsTile& tile,
    const LossStatistics& statistics,
    double scale,
    const at::Tensor& gradient) {
  loss_statistics(tile, statistics);
  {
    const HostScope library_memory;
    at::Tensor exponentials = tile.logits;
    exponentials.mul_(of_rows(statistics.sum.reciprocal(), exponentials));
  }
  to_gradient(tile, scale, gradient);
}

}  // namespace paradyse::aten
