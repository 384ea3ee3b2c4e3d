#include "src/run/kernels/aten/aten_kernels.h"

#include "paradyse/plan/program.h"
#include "paradyse/run/accountant.h"

namespace paradyse::aten {
namespace {

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

}  // namespace

at::Tensor indices(std::span<const std::int64_t> numbers, c10::Device device) {
  const HostScope library_memory;
  const auto count = static_cast<std::int64_t>(numbers.size());
  auto* data = const_cast<std::int64_t*>(numbers.data());
  const at::Tensor here = at::from_blob(data, {count}, at::kLong);
  if (device.is_cpu()) {
    return here.to(device, at::kLong, /*non_blocking=*/false, /*copy=*/true);
  }
  // A pinned copy, which lives until the device has read it: the host does not wait.
  const at::Tensor pinned = at::empty({count}, here.options().pinned_memory(true));
  return pinned.copy_(here).to(device, at::kLong, /*non_blocking=*/true);
}

void rms_norm(const at::Tensor& x, const at::Tensor& w, double eps, const at::Tensor& y) {
  const HostScope library_memory;
  for_rows(x.size(0), x.size(1), [&](std::int64_t first, std::int64_t count) {
    const at::Tensor in = wide(runs(x, first, count, w.size(0)));
    const at::Tensor inverse = in.square().mean({-1}, true).add_(eps).rsqrt_();
    runs(y, first, count, w.size(0)).copy_((in * inverse).mul_(w));
  });
}

void rms_norm_adjoint(
    const at::Tensor& x, const at::Tensor& w, double eps, const kernels::NormGradients& gradients) {
  const HostScope library_memory;
  const at::Tensor factor = wide(w);
  for_rows(x.size(0), x.size(1), [&](std::int64_t first, std::int64_t count) {
    const at::Tensor in = wide(runs(x, first, count, w.size(0)));
    const at::Tensor g = wide(runs(gradients.y, first, count, w.size(0)));
    const at::Tensor s = in.square().mean({-1}, true).add_(eps).rsqrt_();
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
    y.narrow(0, first, count).copy_((centred * inverse).mul_(w).add_(b));
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
    at::Tensor(gradients.b).add_(g.sum({0}));
  });
}

void add_to_rows(const at::Tensor& y, const at::Tensor& b) { at::Tensor(y).add_(b); }

void add_sum_of_rows(const at::Tensor& y, const at::Tensor& sums) {
  const HostScope library_memory;
  at::Tensor(sums).add_(y.sum({0}, false, sums.scalar_type()));
}

void add_sum_of_products(const at::Tensor& a, const at::Tensor& b, const at::Tensor& sums) {
  const HostScope library_memory;
  at::Tensor(sums).add_((a.to(sums.scalar_type()) * b.to(sums.scalar_type())).sum(0));
}

void add_numbers(const at::Tensor& to, const at::Tensor& numbers) {
  const HostScope library_memory;
  to.copy_(to.to(numbers.scalar_type()) + numbers);
}

// Philox4x32-10 in 64-bit integers, whose products wrap: what is shifted down is cut to 32 bits.
void dropout(
    const kernels::Dropout& dropout,
    std::span<const std::int64_t> tokens,
    const at::Tensor& from,
    const at::Tensor& to) {
  const HostScope library_memory;
  constexpr std::int64_t kLow = 0xFFFFFFFF;
  const auto high = [](const at::Tensor& x) {
    return at::bitwise_and(at::bitwise_right_shift(x, 32), kLow);
  };
  const auto low = [](const at::Tensor& x) { return at::bitwise_and(x, kLow); };
  const std::int64_t H = from.size(1);
  const std::int64_t draws = (H + 3) / 4;
  const at::Tensor draw = at::arange(draws, from.options().dtype(at::kLong)).unsqueeze(0);
  const at::Tensor token = indices(tokens, from.device()).unsqueeze(1);
  const auto threshold = static_cast<std::int64_t>(dropout.probability * 4294967296.0);
  for_rows(from.size(0), 8 * draws, [&](std::int64_t first, std::int64_t count) {
    const at::Tensor mine = token.narrow(0, first, count);
    std::array<at::Tensor, 4> c = {
        draw.expand({count, draws}),
        at::full({count, draws}, static_cast<std::int64_t>(dropout.site), draw.options()),
        low(mine).expand({count, draws}),
        high(mine).expand({count, draws})};
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
    const at::Tensor words = at::stack({c[0], c[1], c[2], c[3]}, 2).flatten(1).narrow(1, 0, H);
    at::Tensor kept = wide(from.narrow(0, first, count)) * (1 / (1 - dropout.probability));
    to.narrow(0, first, count).copy_(kept.masked_fill_(words < threshold, 0));
  });
}

void rotate(const at::Tensor& x, const kernels::Rotation& rotation) {
  const auto& [heads, head_dim, cosines, sines, positions, inverse] = rotation;
  if (x.size(0) == 0 || heads == 0) {
    return;
  }
  const HostScope library_memory;
  const at::Tensor at_positions = indices(positions, x.device());
  for_rows(x.size(0), heads * head_dim, [&](std::int64_t first, std::int64_t count) {
    const at::Tensor which = at_positions.narrow(0, first, count);
    const at::Tensor c = cosines.index_select(0, which).unsqueeze(1);
    const at::Tensor s = sines.index_select(0, which).unsqueeze(1) * (inverse ? -1 : 1);
    const at::Tensor turned =
        x.narrow(0, first, count).narrow(1, 0, heads * head_dim).unflatten(1, {heads, head_dim});
    const at::Tensor low = turned.narrow(2, 0, head_dim / 2);
    const at::Tensor high = turned.narrow(2, head_dim / 2, head_dim / 2);
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

at::Tensor wide_product(const at::Tensor& a, const at::Tensor& b) {
  const at::ScalarType sums = sum_type(a.scalar_type());
  if (a.scalar_type() != sums && a.is_cuda()) {
    return at::mm(a, b, sums);  // sums kept as cuBLAS makes them; the CPU has no such product
  }
  return at::mm(a.to(sums), b.to(sums));
}

void product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& to, bool accumulate) {
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
  if (a.scalar_type() == out.scalar_type() &&
      (a.is_cuda() || a.scalar_type() == sum_type(a.scalar_type()))) {
    const HostScope library_memory;
    if (accumulate) {
      out.addmm_(a, b);
    } else {
      at::mm_out(out, a, b);
    }
    return;
  }
  const HostScope library_memory;
  for_rows(out.size(0), out.size(1), [&](std::int64_t first, std::int64_t count) {
    put(out.narrow(0, first, count), wide_product(a.narrow(0, first, count), b), accumulate);
  });
}

void sum_into(const at::Tensor& to, const std::vector<at::Tensor>& sources, bool accumulate) {
  const HostScope library_memory;
  const at::ScalarType type = to.scalar_type();
  const at::ScalarType sums = at::isIntegralType(type, false) ? type : sum_type(type);
  const std::int64_t cols = to.dim() == 2 ? to.size(1) : 1;
  for_rows(to.size(0), cols, [&](std::int64_t first, std::int64_t count) {
    at::Tensor mine = to.narrow(0, first, count);
    at::Tensor sum = accumulate ? mine.to(sums, /*non_blocking=*/false, /*copy=*/true)
                                : at::zeros(mine.sizes(), mine.options().dtype(sums));
    for (const at::Tensor& source : sources) {
      sum.add_(source.narrow(0, first, count));
    }
    mine.copy_(sum);
  });
}

}  // namespace paradyse::aten
