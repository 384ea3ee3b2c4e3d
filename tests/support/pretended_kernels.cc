#include "tests/support/pretended_kernels.h"

#include <limits>
#include <tuple>

#include <torch/library.h>

#include "tests/support/pretended_device.h"

namespace paradyse::test {
namespace {

at::Tensor& mm_out(const at::Tensor& a, const at::Tensor& b, at::ScalarType type, at::Tensor& out) {
  DeviceCall call("aten::mm");
  const at::Tensor product = at::mm(call.reads(a).to(type), call.reads(b).to(type));
  call.writes(out).copy_(product);
  return out;
}

at::Tensor mm(const at::Tensor& a, const at::Tensor& b, at::ScalarType type) {
  at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options().dtype(type));
  return mm_out(a, b, type, out);
}

at::Tensor& addmm_out(
    const at::Tensor& self,
    const at::Tensor& a,
    const at::Tensor& b,
    at::ScalarType type,
    const at::Scalar& beta,
    const at::Scalar& alpha,
    at::Tensor& out) {
  DeviceCall call("aten::addmm");
  const at::Tensor sum = at::addmm(
      call.reads(self).to(type), call.reads(a).to(type), call.reads(b).to(type), beta, alpha);
  call.writes(out).copy_(sum);
  return out;
}

at::Tensor addmm(
    const at::Tensor& self,
    const at::Tensor& a,
    const at::Tensor& b,
    at::ScalarType type,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options().dtype(type));
  return addmm_out(self, a, b, type, beta, alpha, out);
}

// One document; [heads, tokens, D] in float32, fewer heads of keys in equal runs.
struct Attended {
  at::Tensor q, k, v;  // with as many heads
  at::Tensor scores;   // [heads, queries, keys], minus infinity where unseen
  double scale = 1;

  Attended(
      const at::Tensor& of_q,
      const at::Tensor& of_k,
      const at::Tensor& of_v,
      std::optional<std::int64_t> diagonal,
      double by,
      std::optional<std::int64_t> before = std::nullopt)
      : q(of_q.to(at::kFloat)), k(wide(of_k)), v(wide(of_v)), scale(by) {
    scores = at::bmm(q, k.transpose(1, 2)) * scale;
    if (diagonal) {  // the first query sees so many keys after the first
      const at::Tensor unseen = at::ones({q.size(1), k.size(1)}, at::kBool).triu(*diagonal + 1);
      scores.masked_fill_(unseen, -std::numeric_limits<double>::infinity());
    }
    if (before) {  // the first query sees no key before this one, each next one one less
      const at::Tensor unseen = at::ones({q.size(1), k.size(1)}, at::kBool).tril(*before - 1);
      scores.masked_fill_(unseen, -std::numeric_limits<double>::infinity());
    }
  }
  [[nodiscard]] at::Tensor wide(const at::Tensor& of_keys) const {
    return of_keys.to(at::kFloat).repeat_interleave(q.size(0) / of_keys.size(0), 0);
  }
  // To as many heads as keys have.
  [[nodiscard]] static at::Tensor narrow(const at::Tensor& all, std::int64_t heads) {
    return all.unflatten(0, {heads, all.size(0) / heads}).sum(1);
  }
  [[nodiscard]] at::Tensor log_sum_exp() const { return at::logsumexp(scores, {2}); }
  [[nodiscard]] at::Tensor output() const { return at::bmm(at::softmax(scores, 2), v); }
  struct Gradients {
    at::Tensor q, k, v;
  };
  [[nodiscard]] Gradients gradients(
      const at::Tensor& grad,
      const at::Tensor& o,
      const at::Tensor& sums,
      std::int64_t heads) const {
    const at::Tensor g = grad.to(at::kFloat);
    const at::Tensor p = (scores - sums.unsqueeze(2)).exp();
    const at::Tensor dot = (g * o.to(at::kFloat)).sum(2, true);
    const at::Tensor d = p * (at::bmm(g, v.transpose(1, 2)) - dot) * scale;
    return {
        at::bmm(d, k),
        narrow(at::bmm(d.transpose(1, 2), q), heads),
        narrow(at::bmm(p.transpose(1, 2), g), heads)};
  }
};

// By cumulative lengths: calls body(rows of queries, rows of keys) for each document.
template <typename Body>
void for_documents(const at::Tensor& queries, const at::Tensor& keys, Body body) {
  const auto* const q = queries.const_data_ptr<int>();
  const auto* const k = keys.const_data_ptr<int>();
  for (std::int64_t d = 0; d + 1 < queries.numel(); ++d) {
    if (q[d + 1] > q[d]) {
      body(at::indexing::Slice(q[d], q[d + 1]), at::indexing::Slice(k[d], k[d + 1]));
    }
  }
}
at::Tensor rows(const at::Tensor& of, const at::indexing::Slice& which) {
  return of.index({which}).transpose(0, 1);
}
double scale_of(std::optional<double> scale, const at::Tensor& q) {
  return scale.value_or(1 / std::sqrt(static_cast<double>(q.size(-1))));
}
// The last query sees the last key; the first the first one.  A window is counted from the last
// query's last key.
struct FlashMask {
  bool causal;
  std::optional<std::int64_t> left;
  std::optional<std::int64_t> right;
};
Attended flash(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const FlashMask& mask,
    double scale) {
  const std::int64_t corner = k.size(1) - q.size(1);
  std::optional<std::int64_t> last;
  std::optional<std::int64_t> first;
  if (mask.causal || mask.right) {
    last = corner + (mask.causal ? 0 : *mask.right);
  }
  if (mask.left) {
    first = corner - *mask.left;
  }
  return {q, k, v, last, scale, first};
}
std::optional<std::int64_t> from_first(bool causal) {
  return causal ? std::optional<std::int64_t>(0) : std::nullopt;
}
at::Tensor state(const at::Tensor& like, std::vector<std::int64_t> sizes = {2}) {
  return at::empty(sizes, like.options().dtype(at::kUInt64));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> flash_forward(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const std::optional<at::Tensor>& lengths_q,
    const std::optional<at::Tensor>& lengths_k,
    std::int64_t,
    std::int64_t,
    double,
    bool causal,
    bool,
    std::optional<double> scale,
    std::optional<std::int64_t> left,
    std::optional<std::int64_t> right,
    const std::optional<at::Tensor>&,
    const std::optional<at::Tensor>&) {
  DeviceCall call("aten::_flash_attention_forward");
  const at::Tensor o = at::empty(q.sizes(), q.options());
  const at::Tensor l = at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
  const at::Tensor in_q = call.reads(q);
  const at::Tensor in_k = call.reads(k);
  const at::Tensor in_v = call.reads(v);
  const at::Tensor out_o = call.writes(o);
  const at::Tensor out_l = call.writes(l);
  for_documents(
      call.reads(*lengths_q), call.reads(*lengths_k), [&](const auto& of_q, const auto& of_k) {
        const Attended one = flash(
            rows(in_q, of_q),
            rows(in_k, of_k),
            rows(in_v, of_k),
            {causal, left, right},
            scale_of(scale, q));
        rows(out_o, of_q).copy_(one.output());
        out_l.index({at::indexing::Slice(), of_q}).copy_(one.log_sum_exp());
      });
  return {o, l, state(q), state(q, {}), at::empty({0}, q.options())};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_backward(
    const at::Tensor& grad,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& o,
    const at::Tensor& l,
    const at::Tensor& lengths_q,
    const at::Tensor& lengths_k,
    std::int64_t,
    std::int64_t,
    double,
    bool causal,
    const at::Tensor&,
    const at::Tensor&,
    std::optional<double> scale,
    std::optional<std::int64_t> left,
    std::optional<std::int64_t> right) {
  DeviceCall call("aten::_flash_attention_backward");
  const std::array<at::Tensor, 3> made = {
      at::empty(q.sizes(), q.options()),
      at::empty(k.sizes(), k.options()),
      at::empty(v.sizes(), v.options())};
  const at::Tensor in_g = call.reads(grad);
  const at::Tensor in_q = call.reads(q);
  const at::Tensor in_k = call.reads(k);
  const at::Tensor in_v = call.reads(v);
  const at::Tensor in_o = call.reads(o);
  const at::Tensor in_l = call.reads(l);
  const at::Tensor out_q = call.writes(made[0]);
  const at::Tensor out_k = call.writes(made[1]);
  const at::Tensor out_v = call.writes(made[2]);
  for_documents(
      call.reads(lengths_q), call.reads(lengths_k), [&](const auto& of_q, const auto& of_k) {
        const Attended one = flash(
            rows(in_q, of_q),
            rows(in_k, of_k),
            rows(in_v, of_k),
            {causal, left, right},
            scale_of(scale, q));
        const auto to = one.gradients(
            rows(in_g, of_q),
            rows(in_o, of_q),
            in_l.index({at::indexing::Slice(), of_q}),
            k.size(1));
        rows(out_q, of_q).copy_(to.q);
        rows(out_k, of_k).copy_(to.k);
        rows(out_v, of_k).copy_(to.v);
      });
  return {made[0], made[1], made[2]};
}

// Dense, [batch, heads, tokens, D]; made in the memory order of the queries.
std::tuple<
    at::Tensor,
    at::Tensor,
    at::Tensor,
    at::Tensor,
    c10::SymInt,
    c10::SymInt,
    at::Tensor,
    at::Tensor,
    at::Tensor>
cudnn_forward(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const std::optional<at::Tensor>&,
    const std::optional<at::Tensor>&,
    const std::optional<at::Tensor>&,
    std::int64_t most_q,
    std::int64_t most_k,
    bool,
    double,
    bool causal,
    bool,
    std::optional<double> scale) {
  DeviceCall call("aten::_cudnn_attention_forward");
  const at::Tensor o = at::empty(q.transpose(1, 2).sizes(), q.options()).transpose(1, 2);
  const at::Tensor l =
      at::empty({q.size(0), q.size(1), q.size(2), 1}, q.options().dtype(at::kFloat));
  const at::Tensor in_q = call.reads(q);
  const at::Tensor in_k = call.reads(k);
  const at::Tensor in_v = call.reads(v);
  const at::Tensor out_o = call.writes(o);
  const at::Tensor out_l = call.writes(l);
  for (std::int64_t b = 0; b < q.size(0); ++b) {
    const Attended one(in_q[b], in_k[b], in_v[b], from_first(causal), scale_of(scale, q));
    out_o[b].copy_(one.output());
    out_l[b].squeeze(2).copy_(one.log_sum_exp());
  }
  return {o, l, {}, {}, most_q, most_k, state(q, {}), state(q, {}), {}};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cudnn_backward(
    const at::Tensor& grad,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& o,
    const at::Tensor& l,
    const at::Tensor&,
    const at::Tensor&,
    const at::Tensor&,
    const at::Tensor&,
    const at::Tensor&,
    std::int64_t,
    std::int64_t,
    double,
    bool causal,
    std::optional<double> scale) {
  DeviceCall call("aten::_cudnn_attention_backward");
  const at::Tensor in_g = call.reads(grad);
  const at::Tensor in_q = call.reads(q);
  const at::Tensor in_k = call.reads(k);
  const at::Tensor in_v = call.reads(v);
  const at::Tensor in_o = call.reads(o);
  const at::Tensor in_l = call.reads(l);
  std::array<at::Tensor, 3> made;
  std::array<at::Tensor, 3> out;
  for (std::size_t i = 0; i < 3; ++i) {
    const at::Tensor& like = i == 0 ? q : i == 1 ? k : v;
    made[i] = at::empty(like.transpose(1, 2).sizes(), like.options()).transpose(1, 2);
    out[i] = call.writes(made[i]);
  }
  for (std::int64_t b = 0; b < q.size(0); ++b) {
    const Attended one(in_q[b], in_k[b], in_v[b], from_first(causal), scale_of(scale, q));
    const auto to = one.gradients(in_g[b], in_o[b], in_l[b].squeeze(2), k.size(1));
    out[0][b].copy_(to.q);
    out[1][b].copy_(to.k);
    out[2][b].copy_(to.v);
  }
  return {made[0], made[1], made[2]};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("mm.dtype", &mm);
  library.impl("mm.dtype_out", &mm_out);
  library.impl("addmm.dtype", &addmm);
  library.impl("addmm.dtype_out", &addmm_out);
  library.impl("_flash_attention_forward", &flash_forward);
  library.impl("_flash_attention_backward", &flash_backward);
  library.impl("_cudnn_attention_forward", &cudnn_forward);
  library.impl("_cudnn_attention_backward", &cudnn_backward);
}

}  // namespace

void register_pretended_kernels() {}

namespace {

using kernels::NormGradients;

NormGradients of(DeviceCall& call, const NormGradients& gradients) {
  return {
      .y = call.reads(gradients.y),
      .x = call.writes(gradients.x),
      .accumulate = gradients.accumulate,
      .w = call.writes(gradients.w),
      .b = call.writes(gradients.b)};
}

void rms_norm(
    const at::Tensor& x, const at::Tensor& w, const kernels::RmsNorm& norm, const at::Tensor& y) {
  DeviceCall call("our rms_norm");
  cpu_kernels().rms_norm(call.reads(x), call.reads(w), norm, call.writes(y));
}
void rms_norm_adjoint(
    const at::Tensor& x,
    const at::Tensor& w,
    const kernels::RmsNorm& norm,
    const NormGradients& gradients) {
  DeviceCall call("our rms_norm_adjoint");
  cpu_kernels().rms_norm_adjoint(call.reads(x), call.reads(w), norm, of(call, gradients));
}
void layer_norm(
    const at::Tensor& x,
    const at::Tensor& w,
    const at::Tensor& b,
    double eps,
    const at::Tensor& y) {
  DeviceCall call("our layer_norm");
  cpu_kernels().layer_norm(call.reads(x), call.reads(w), call.reads(b), eps, call.writes(y));
}
void layer_norm_adjoint(
    const at::Tensor& x, const at::Tensor& w, double eps, const NormGradients& gradients) {
  DeviceCall call("our layer_norm_adjoint");
  cpu_kernels().layer_norm_adjoint(call.reads(x), call.reads(w), eps, of(call, gradients));
}
void rotate(const at::Tensor& x, const kernels::Rotation& rotation) {
  DeviceCall call("our rotate");
  kernels::Rotation same = rotation;
  same.cosines = call.reads(rotation.cosines);
  same.sines = call.reads(rotation.sines);
  same.positions = call.reads(rotation.positions);
  cpu_kernels().rotate(call.writes(x), same);
}
void swiglu(const at::Tensor& h, const at::Tensor& a) {
  DeviceCall call("our swiglu");
  cpu_kernels().swiglu(call.reads(h), call.writes(a));
}
void swiglu_adjoint(const at::Tensor& h, const at::Tensor& grad_a, const at::Tensor& grad_h) {
  DeviceCall call("our swiglu_adjoint");
  cpu_kernels().swiglu_adjoint(call.reads(h), call.reads(grad_a), call.writes(grad_h));
}

kernels::LogitsTile of(DeviceCall& call, const kernels::LogitsTile& tile) {
  kernels::LogitsTile same = tile;
  same.logits = call.writes(tile.logits);
  same.labels = call.reads(tile.labels);
  return same;
}
kernels::LossStatistics of(DeviceCall& call, const kernels::LossStatistics& statistics) {
  return {
      .maximum = call.writes(statistics.maximum),
      .sum = call.writes(statistics.sum),
      .label = call.writes(statistics.label)};
}
void loss_statistics(const kernels::LogitsTile& tile, const kernels::LossStatistics& statistics) {
  DeviceCall call("our loss_statistics");
  cpu_kernels().loss_statistics(of(call, tile), of(call, statistics));
}
void loss_gradient(
    const kernels::LogitsTile& tile,
    const kernels::LossStatistics& statistics,
    double scale,
    const at::Tensor& gradient) {
  DeviceCall call("our loss_gradient");
  const kernels::LogitsTile same = of(call, tile);
  cpu_kernels().loss_gradient(same, of(call, statistics), scale, call.writes(gradient));
}
void loss_and_gradient(
    const kernels::LogitsTile& tile,
    const kernels::LossStatistics& statistics,
    double scale,
    const at::Tensor& gradient) {
  DeviceCall call("our loss_and_gradient");
  const kernels::LogitsTile same = of(call, tile);
  cpu_kernels().loss_and_gradient(same, of(call, statistics), scale, call.writes(gradient));
}
void adamw(const kernels::AdamWTensors& tensors, const kernels::AdamWStep& step) {
  DeviceCall call("our adamw");
  kernels::AdamWTensors same = tensors;
  for (at::Tensor& gradient : same.gradients) {
    gradient = call.writes(gradient);
  }
  for (auto* const list : {&same.masters, &same.means, &same.variances, &same.weights}) {
    for (at::Tensor& tensor : *list) {
      tensor = call.writes(tensor);
    }
  }
  for (std::size_t i = 0; i < tensors.weights.size(); ++i) {
    if (tensors.weights[i].is_same(tensors.masters[i])) {
      same.weights[i] = same.masters[i];
    }
  }
  kernels::AdamWStep how = step;
  how.factor = call.reads(step.factor);
  cpu_kernels().adamw(same, how);
}

}  // namespace

const Kernels& pretended_kernels() {
  static const Kernels table = [] {
    Kernels all = aten_kernels();
    all.name = "pretended";
    all.rms_norm = &rms_norm;
    all.rms_norm_adjoint = &rms_norm_adjoint;
    all.layer_norm = &layer_norm;
    all.layer_norm_adjoint = &layer_norm_adjoint;
    all.rotate = &rotate;
    all.swiglu = &swiglu;
    all.swiglu_adjoint = &swiglu_adjoint;
    all.loss_statistics = &loss_statistics;
    all.loss_gradient = &loss_gradient;
    all.loss_and_gradient = &loss_and_gradient;
    all.adamw = &adamw;
    return all;
  }();
  return table;
}

}  // namespace paradyse::test
