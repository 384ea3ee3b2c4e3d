#include "src/run/kernels/aten/aten_kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <vector>

#include "paradyse/plan/program.h"
#include "paradyse/run/accountant.h"
#include "src/run/device/host_copies.h"
#include "src/run/kernels/aten/aten_attention.h"

namespace paradyse::aten {
namespace {

// Calls body(first, count) for stretches of `rows` rows whose temporaries stay small.
template <typename Body>
void for_rows(std::int64_t rows, std::int64_t cols, Body body) {
  const std::int64_t most = std::max<std::int64_t>(1, kScratch / std::max<std::int64_t>(1, cols));
  for (std::int64_t first = 0; first < rows; first += most) {
    body(first, std::min(most, rows - first));
  }
}

// Rows [first, first + count) in the type of sums, each row as runs of `width` columns.
at::Tensor runs(const at::Tensor& x, std::int64_t first, std::int64_t count, std::int64_t width) {
  const std::int64_t n = x.size(1) / width;
  return x.narrow(0, first, count).unflatten(1, {n, width});
}
at::Tensor wide(const at::Tensor& x) { return x.to(sum_type(x.scalar_type())); }

// to = own, or to += own; rounded once.
void put(at::Tensor to, const at::Tensor& own, bool accumulate) {
  to.copy_(accumulate ? own + to : own);
}

// Without an offset no call is made for it.
at::Tensor factor_of(const at::Tensor& w, const kernels::RmsNorm& norm) {
  return norm.offset == 0 ? w : wide(w) + norm.offset;
}

void rms_norm(
    const at::Tensor& x, const at::Tensor& w, const kernels::RmsNorm& norm, const at::Tensor& y) {
  const HostScope library_memory;
  const at::Tensor factor = factor_of(w, norm);
  for_rows(x.size(0), x.size(1), [&](std::int64_t first, std::int64_t count) {
    const at::Tensor in = wide(runs(x, first, count, w.size(0)));
    const at::Tensor inverse = in.square().mean({-1}, true).add_(norm.eps).rsqrt_();
    runs(y, first, count, w.size(0)).copy_((in * inverse).mul_(factor));
  });
}

void rms_norm_adjoint(
    const at::Tensor& x,
    const at::Tensor& w,
    const kernels::RmsNorm& norm,
    const kernels::NormGradients& gradients) {
  const HostScope library_memory;
  const at::Tensor factor = wide(factor_of(w, norm));
  for_rows(x.size(0), x.size(1), [&](std::int64_t first, std::int64_t count) {
    const at::Tensor in = wide(runs(x, first, count, w.size(0)));
    const at::Tensor g = wide(runs(gradients.y, first, count, w.size(0)));
    const at::Tensor s = in.square().mean({-1}, true).add_(norm.eps).rsqrt_();
    const at::Tensor wg = g * factor;
    const at::Tensor c = (in * wg).mean({-1}, true) * s * s;
    put(runs(gradients.x, first, count, w.size(0)), s * (wg - in * c), gradients.accumulate);
    at::Tensor(gradients.w).add_((g * in * s).flatten(0, 1).sum({0}));
  });
}

void layer_norm(
    const at::Tensor& x,
    const at::Tensor& w,
    const at::Tensor& b,
    double eps,
    const at::Tensor& y) {
  const HostScope library_memory;
  for_rows(x.size(0), x.size(1), [&](std::int64_t first, std::int64_t count) {
    const at::Tensor in = wide(x.narrow(0, first, count));
    const at::Tensor centred = in - in.mean({1}, true);
    const at::Tensor inverse = centred.square().mean({1}, true).add_(eps).rsqrt_();
    at::Tensor out = (centred * inverse).mul_(w);
    if (b.defined()) {
      out.add_(b);
    }
    y.narrow(0, first, count).copy_(out);
  });
}

void layer_norm_adjoint(
    const at::Tensor& x, const at::Tensor& w, double eps, const kernels::NormGradients& gradients) {
  const HostScope library_memory;
  const at::Tensor factor = wide(w);
  for_rows(x.size(0), x.size(1), [&](std::int64_t first, std::int64_t count) {
    const at::Tensor in = wide(x.narrow(0, first, count));
    const at::Tensor g = wide(gradients.y.narrow(0, first, count));
    const at::Tensor centred = in - in.mean({1}, true);
    const at::Tensor s = centred.square().mean({1}, true).add_(eps).rsqrt_();
    const at::Tensor n = centred * s;
    const at::Tensor wg = g * factor;
    const at::Tensor own = s * (wg - wg.mean({1}, true) - n * (wg * n).mean({1}, true));
    put(gradients.x.narrow(0, first, count), own, gradients.accumulate);
    at::Tensor(gradients.w).add_((g * n).sum({0}));
    if (gradients.b.defined()) {
      at::Tensor(gradients.b).add_(g.sum({0}));
    }
  });
}

void add_to_rows(const at::Tensor& y, const at::Tensor& b, double scale) {
  at::Tensor(y).add_(b, scale);
}

void add_sum_of_rows(const at::Tensor& y, const at::Tensor& sums, double scale) {
  const HostScope library_memory;
  at::Tensor(sums).add_(y.sum({0}, false, sums.scalar_type()), scale);
}

void add_sum_of_products(const at::Tensor& a, const at::Tensor& b, const at::Tensor& sums) {
  const HostScope library_memory;
  at::Tensor(sums).add_((a.to(sums.scalar_type()) * b.to(sums.scalar_type())).sum(0));
}

void add_numbers(const at::Tensor& to, const at::Tensor& numbers) {
  const HostScope library_memory;
  to.copy_(to.to(numbers.scalar_type()) + numbers);
}

// Where elements are dropped: of rows that count as these tokens [rows, 1], columns [first, first +
// count).  Philox4x32-10 in 64-bit integers, whose products wrap: what is shifted down is cut to 32
// bits.
at::Tensor dropped(
    const kernels::Dropout& dropout,
    const at::Tensor& tokens,
    std::int64_t first,
    std::int64_t count) {
  constexpr std::int64_t kLow = 0xFFFFFFFF;
  const auto high = [](const at::Tensor& x) {
    return at::bitwise_and(at::bitwise_right_shift(x, 32), kLow);
  };
  const auto low = [](const at::Tensor& x) { return at::bitwise_and(x, kLow); };
  const std::int64_t rows = tokens.size(0);
  const std::int64_t draws = (first + count + 3) / 4 - first / 4;
  const at::Tensor draw = at::arange(first / 4, first / 4 + draws, tokens.options()).unsqueeze(0);
  std::array<at::Tensor, 4> c = {
      draw.expand({rows, draws}),
      at::full({rows, draws}, static_cast<std::int64_t>(dropout.site), draw.options()),
      low(tokens).expand({rows, draws}),
      high(tokens).expand({rows, draws})};
  auto key0 = static_cast<std::uint32_t>(dropout.seed);
  auto key1 = static_cast<std::uint32_t>(dropout.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const at::Tensor a = c[0] * std::int64_t{0xD2511F53};
    const at::Tensor b = c[2] * std::int64_t{0xCD9E8D57};
    c = {
        at::bitwise_xor(at::bitwise_xor(high(b), c[1]), static_cast<std::int64_t>(key0)),
        low(b),
        at::bitwise_xor(at::bitwise_xor(high(a), c[3]), static_cast<std::int64_t>(key1)),
        low(a)};
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  const auto threshold = static_cast<std::int64_t>(dropout.probability * 4294967296.0);
  return at::stack({c[0], c[1], c[2], c[3]}, 2).flatten(1).narrow(1, first % 4, count) < threshold;
}

void dropout(
    const kernels::Dropout& dropout,
    const at::Tensor& tokens,
    const at::Tensor& from,
    const at::Tensor& to) {
  const HostScope library_memory;
  const std::int64_t H = from.size(1);
  for_rows(from.size(0), 2 * H, [&](std::int64_t first, std::int64_t count) {
    const at::Tensor mine = tokens.narrow(0, first, count).unsqueeze(1);
    at::Tensor kept = wide(from.narrow(0, first, count)) * (1 / (1 - dropout.probability));
    to.narrow(0, first, count).copy_(kept.masked_fill_(dropped(dropout, mine, 0, H), 0));
  });
}

void rotations(
    const at::Tensor& frequencies,
    double factor,
    const at::Tensor& cosines,
    const at::Tensor& sines) {
  const HostScope library_memory;
  const at::Tensor positions = at::arange(cosines.size(0), frequencies.options());
  const at::Tensor angles = positions.unsqueeze(1) * frequencies;
  cosines.copy_(angles.cos().mul_(factor));
  sines.copy_(angles.sin().mul_(factor));
}

void rotate(const at::Tensor& x, const kernels::Rotation& rotation) {
  const auto& [heads, head_dim, cosines, sines, positions, inverse, interleaved] = rotation;
  if (x.size(0) == 0 || heads == 0) {
    return;
  }
  const HostScope library_memory;
  for_rows(x.size(0), heads * head_dim, [&](std::int64_t first, std::int64_t count) {
    const at::Tensor which = positions.narrow(0, first, count);
    const at::Tensor c = cosines.index_select(0, which).unsqueeze(1);
    const at::Tensor s = sines.index_select(0, which).unsqueeze(1) * (inverse ? -1 : 1);
    const at::Tensor turned =
        x.narrow(0, first, count).narrow(1, 0, heads * head_dim).unflatten(1, {heads, head_dim});
    const at::Tensor pairs = interleaved ? turned.unflatten(2, {head_dim / 2, 2})
                                         : turned.unflatten(2, {2, head_dim / 2}).transpose(2, 3);
    const at::Tensor low = pairs.select(3, 0);
    const at::Tensor high = pairs.select(3, 1);
    const at::Tensor a = wide(low);
    const at::Tensor b = wide(high);
    const at::Tensor new_low = a * c - b * s;
    const at::Tensor new_high = b * c + a * s;
    low.copy_(new_low);
    high.copy_(new_high);
  });
}

void swiglu(const at::Tensor& h, const at::Tensor& a) {
  const std::int64_t F = a.size(1);
  at::Tensor to = a;
  at::silu_out(to, h.narrow(1, 0, F));
  to.mul_(h.narrow(1, F, F));
}

// Each result's place serves as the other's scratch.
void swiglu_adjoint(const at::Tensor& h, const at::Tensor& grad_a, const at::Tensor& grad_h) {
  const std::int64_t F = grad_a.size(1);
  const at::Tensor gate = h.narrow(1, 0, F);
  at::Tensor grad_gate = grad_h.narrow(1, 0, F);
  at::Tensor grad_up = grad_h.narrow(1, F, F);
  at::mul_out(grad_up, grad_a, h.narrow(1, F, F));
  at::silu_backward_out(grad_gate, grad_up, gate);
  at::silu_out(grad_up, gate);
  grad_up.mul_(grad_a);
}

// The CPU's products make no float32 of narrow factors.
bool widens(const at::Tensor& a) { return !a.is_cpu(); }

// a b in the type of its sums.
at::Tensor wide_product(const at::Tensor& a, const at::Tensor& b) {
  const at::ScalarType sums = sum_type(a.scalar_type());
  if (a.scalar_type() != sums && widens(a)) {
    return at::mm(a, b, sums);
  }
  return at::mm(a.to(sums), b.to(sums));
}

// Where narrow factors meet in one call a GPU needs no room; `rows` is for the others.
void product(
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Tensor& to,
    bool accumulate,
    std::int64_t /*rows*/) {
  at::Tensor out = to;
  if (out.numel() == 0) {
    return;
  }
  if (a.size(1) == 0) {
    if (!accumulate) {
      out.zero_();
    }
    return;
  }
  const HostScope library_memory;
  const bool same = a.scalar_type() == out.scalar_type();
  if (same && (widens(a) || a.scalar_type() == sum_type(a.scalar_type()))) {
    if (accumulate) {
      out.addmm_(a, b);
    } else {
      at::mm_out(out, a, b);
    }
  } else if (!same && widens(a)) {
    if (accumulate) {
      at::addmm_out(out, out, a, b, out.scalar_type());
    } else {
      at::mm_out(out, a, b, out.scalar_type());
    }
  } else {
    for_rows(out.size(0), out.size(1), [&](std::int64_t first, std::int64_t count) {
      put(out.narrow(0, first, count), wide_product(a.narrow(0, first, count), b), accumulate);
    });
  }
}

void softmax(const at::Tensor& scores, const kernels::ScoreRows& rows) {
  const HostScope library_memory;
  const std::int64_t row = rows.heads * rows.keys;  // scores of a token
  for_rows(rows.tokens, row, [&](std::int64_t first, std::int64_t count) {
    at::Tensor part =
        scores.narrow(0, first * row, count * row).view({count, rows.heads, rows.keys});
    if (rows.cap > 0) {
      const double cap = rows.cap * std::numbers::log2e;
      part.div_(cap).tanh_().mul_(cap);
    }
    if (rows.masked) {
      const auto options = scores.options().dtype(at::kLong);
      const std::int64_t seen = rows.seen + first;
      const at::Tensor i = at::arange(seen, seen + count, options).view({count, 1, 1});
      const at::Tensor keys = at::arange(rows.keys, options);
      part.masked_fill_(keys >= i, -std::numeric_limits<double>::infinity());
      if (rows.window > 0) {
        part.masked_fill_(keys < i - rows.window, -std::numeric_limits<double>::infinity());
      }
    }
    part.sub_(part.amax({2}, true)).exp2_();
    part.div_(part.sum({2}, true));
  });
}

void score_gradient(
    const at::Tensor& p,
    const at::Tensor& o,
    const at::Tensor& grad_o,
    const at::Tensor& d,
    const at::Tensor& narrow) {
  const HostScope library_memory;
  const at::ScalarType sums = d.scalar_type();
  at::Tensor(d).sub_((o.to(sums) * grad_o.to(sums)).sum({1}, true)).mul_(p);
  if (!narrow.is_same(d)) {
    narrow.copy_(d);
  }
}

void look_up(
    const at::Tensor& x,
    const at::Tensor& table,
    const at::Tensor& tokens,
    const at::Tensor& rows,
    bool add) {
  const HostScope library_memory;
  for_rows(tokens.size(0), x.size(1), [&](std::int64_t first, std::int64_t count) {
    const at::Tensor to = tokens.narrow(0, first, count);
    const at::Tensor found = table.index_select(0, rows.narrow(0, first, count));
    if (add) {
      at::Tensor(x).index_add_(0, to, found);
    } else {
      at::Tensor(x).index_copy_(0, to, found);
    }
  });
}

void add_looked_up(
    const at::Tensor& grad_table,
    const at::Tensor& grad_x,
    const at::Tensor& tokens,
    const at::Tensor& rows) {
  const HostScope library_memory;
  for_rows(tokens.size(0), grad_x.size(1), [&](std::int64_t first, std::int64_t count) {
    // Sorts by row where that is needed to add in a fixed order, as index_add_ does not.
    at::Tensor(grad_table)
        .index_put_(
            {rows.narrow(0, first, count)},
            grad_x.index_select(0, tokens.narrow(0, first, count)).to(grad_table.scalar_type()),
            /*accumulate=*/true);
  });
}

void squared_error(
    const at::Tensor& y,
    const at::Tensor& v,
    double scale,
    const at::Tensor& d,
    const at::Tensor& sums) {
  const HostScope library_memory;
  for_rows(y.size(0), y.size(1), [&](std::int64_t first, std::int64_t count) {
    const at::Tensor difference =
        (y.narrow(0, first, count).to(at::kDouble) - v.narrow(0, first, count).to(at::kDouble))
            .masked_fill_(v.narrow(0, first, count).isnan(), 0);
    if (d.defined()) {
      d.narrow(0, first, count).copy_(difference * scale);
    }
    sums.narrow(0, first, count).copy_(difference.square().sum(1));
  });
}

void adamw(const kernels::AdamWTensors& tensors, const kernels::AdamWStep& step) {
  const HostScope library_memory;
  std::optional<at::Tensor> overflow;  // 1, or 0: torch takes it as a float
  if (step.factor.is_cpu()) {
    const double factor = *step.factor.const_data_ptr<double>();
    if (!(factor > 0 && std::isfinite(factor))) {
      return;
    }
    if (factor != 1) {
      at::_foreach_mul_(tensors.gradients, factor);
    }
  } else {
    overflow = step.factor.gt(0)
                   .logical_and_(step.factor.lt(std::numeric_limits<double>::infinity()))
                   .logical_not_()
                   .to(at::kFloat);
    at::_foreach_mul_(tensors.gradients, step.factor.to(tensors.gradients.front().scalar_type()));
  }
  // A counter a tensor is what torch wants.
  const at::Tensor updates = at::full(
      {static_cast<std::int64_t>(tensors.masters.size())},
      step.number,
      tensors.masters.front().options().dtype(at::kFloat));
  at::_fused_adamw_(
      tensors.masters,
      tensors.gradients,
      tensors.means,
      tensors.variances,
      {},
      updates.unbind(),
      step.learning_rate,
      step.beta1,
      step.beta2,
      tensors.weight_decay,
      step.eps,
      /*amsgrad=*/false,
      /*maximize=*/false,
      /*grad_scale=*/{},
      overflow);
  std::vector<at::Tensor> narrow;
  std::vector<at::Tensor> masters;
  for (std::size_t i = 0; i < tensors.weights.size(); ++i) {
    if (!tensors.weights[i].is_same(tensors.masters[i])) {
      narrow.push_back(tensors.weights[i]);
      masters.push_back(tensors.masters[i]);
    }
  }
  if (!narrow.empty()) {
    at::_foreach_copy_(narrow, masters);
  }
}

void copy_region(
    const at::Tensor& to, const Region& to_region, const at::Tensor& from, const Region& region) {
  region_of(to, to_region).copy_(region_of(from, region));
}

void sum_regions(
    const at::Tensor& to,
    const Region& region,
    const std::vector<kernels::Summand>& sources,
    bool accumulate) {
  const HostScope library_memory;
  const at::Tensor whole = region_of(to, region);
  const at::Tensor all = whole.dim() > 1 ? whole[0] : whole;  // else a single element
  std::vector<at::Tensor> parts;
  parts.reserve(sources.size());
  for (const auto& [tensor, at] : sources) {
    parts.push_back(region_of(tensor, at).reshape(all.sizes()));
  }
  const at::ScalarType type = to.scalar_type();
  const at::ScalarType sums = at::isIntegralType(type, false) ? type : sum_type(type);
  if (type == sums && !parts.empty()) {  // nothing is rounded: in place
    if (!accumulate) {
      all.copy_(parts.front());
    }
    for (std::size_t i = accumulate ? 0 : 1; i < parts.size(); ++i) {
      at::Tensor(all).add_(parts[i]);
    }
    return;
  }
  const std::int64_t rows = all.size(0);
  for_rows(rows, rows == 0 ? 0 : all.numel() / rows, [&](std::int64_t first, std::int64_t count) {
    at::Tensor mine = all.narrow(0, first, count);
    at::Tensor sum = accumulate ? mine.to(sums, /*non_blocking=*/false, /*copy=*/true)
                                : at::zeros(mine.sizes(), mine.options().dtype(sums));
    for (const at::Tensor& part : parts) {
      sum.add_(part.narrow(0, first, count));
    }
    mine.copy_(sum);
  });
}

// --- cross-entropy of tiles of logits; beside these are a few numbers a token --------------------

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

}  // namespace

at::Tensor indices(std::span<const std::int64_t> numbers, c10::Device device) {
  const HostScope library_memory;
  const auto count = static_cast<std::int64_t>(numbers.size());
  auto* data = const_cast<std::int64_t*>(numbers.data());
  const at::Tensor here = at::from_blob(data, {count}, at::kLong);
  return device.is_cpu() ? here.clone() : to_device(here, device);
}

void scaled_product(
    double alpha, const at::Tensor& a, const at::Tensor& b, double beta, const at::Tensor& c) {
  const HostScope library_memory;
  at::Tensor to = c;
  const at::Tensor own = wide_product(a, b);
  if (beta == 0) {
    to.copy_(own).mul_(alpha);
  } else {
    to.mul_(beta).add_(own, alpha);
  }
}

void drop_probabilities(
    const kernels::AttentionDropout& dropout, const at::Tensor& from, const at::Tensor& to) {
  const HostScope library_memory;
  const std::int64_t keys = from.size(1);
  const double scale = 1 / (1 - dropout.drawn.probability);
  for_rows(from.size(0), 2 * keys, [&](std::int64_t first, std::int64_t count) {
    const auto begin = static_cast<std::int64_t>(dropout.counted(first));
    const at::Tensor queries =
        at::arange(begin, begin + count, from.options().dtype(at::kLong)).unsqueeze(1);
    at::Tensor kept = wide(from.narrow(0, first, count)) * scale;
    kept.masked_fill_(dropped(dropout.drawn, queries, dropout.key, keys), 0);
    to.narrow(0, first, count).copy_(kept);
  });
}

at::Tensor region_of(const at::Tensor& contiguous, const Region& region) {
  std::vector<std::int64_t> sizes = {1};
  std::vector<std::int64_t> strides = {1};
  for (const Region::Loop& loop : region.loops) {
    sizes.push_back(loop.count);
    strides.push_back(loop.stride);
  }
  return contiguous.as_strided(sizes, strides, contiguous.storage_offset() + region.offset);
}

}  // namespace paradyse::aten

namespace paradyse {

const Kernels& aten_kernels() {
  static const Kernels table = {
      .name = "aten",
      .rms_norm = aten::rms_norm,
      .rms_norm_adjoint = aten::rms_norm_adjoint,
      .layer_norm = aten::layer_norm,
      .layer_norm_adjoint = aten::layer_norm_adjoint,
      .add_to_rows = aten::add_to_rows,
      .add_sum_of_rows = aten::add_sum_of_rows,
      .add_sum_of_products = aten::add_sum_of_products,
      .add_numbers = aten::add_numbers,
      .dropout = aten::dropout,
      .rotations = aten::rotations,
      .rotate = aten::rotate,
      .swiglu = aten::swiglu,
      .swiglu_adjoint = aten::swiglu_adjoint,
      .product = aten::product,
      .scaled_product = aten::scaled_product,
      .attend = aten::attend_blocks,
      .attend_adjoint = aten::attend_blocks_adjoint,
      .drop_probabilities = aten::drop_probabilities,
      .softmax = aten::softmax,
      .score_gradient = aten::score_gradient,
      .look_up = aten::look_up,
      .add_looked_up = aten::add_looked_up,
      .loss_statistics = aten::loss_statistics,
      .loss_gradient = aten::loss_gradient,
      .loss_and_gradient = aten::loss_and_gradient,
      .squared_error = aten::squared_error,
      .adamw = aten::adamw,
      .copy_region = aten::copy_region,
      .sum_regions = aten::sum_regions};
  return table;
}

}  // namespace paradyse
