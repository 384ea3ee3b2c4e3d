// Functions of the table (kernels.h) by launches of our own kernels (src/run/cuda/launch.h): what
// tensors say, in pointers and sizes.  The table of CUDA compiles them for the device; a test for
// the host (PARADYSE_KERNELS).
#pragma once

#include <stdexcept>

#include "paradyse/run/accountant.h"
#include "src/run/cuda/launch.h"
#include "src/run/kernels/kernels.h"

namespace paradyse::PARADYSE_KERNELS::of_tensors {

// Where work on this tensor is to be queued now.
Stream stream_of(const at::Tensor& tensor);
// Throws what the device has said to the launches so far.
void check_launches();

inline Type type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return Type::float64;
    case at::kFloat:
      return Type::float32;
    case at::kBFloat16:
      return Type::bfloat16;
    case at::kHalf:
      return Type::float16;
    default:
      throw std::logic_error(std::string("no kernel for ") + at::toString(tensor.scalar_type()));
  }
}
inline ConstRows rows_of(const at::Tensor& x) { return {x.const_data_ptr(), x.stride(0)}; }
inline Rows rows_to(const at::Tensor& x) { return {x.mutable_data_ptr(), x.stride(0)}; }

inline Norm norm_of(const at::Tensor& x, const at::Tensor& w, const kernels::RmsNorm& norm) {
  const std::int64_t width = w.size(0);
  return {
      .type = type_of(x),
      .rows = x.size(0),
      .runs = x.size(1) / width,
      .width = width,
      .eps = norm.eps,
      .offset = norm.offset,
      .w = w.const_data_ptr()};
}
inline Norm layer_norm_of(
    const at::Tensor& x, const at::Tensor& w, const at::Tensor& b, double eps) {
  Norm norm = norm_of(x, w, eps);
  norm.b = b.defined() ? b.const_data_ptr() : nullptr;
  norm.layer = true;
  return norm;
}
inline void rms_norm(
    const at::Tensor& x,
    const at::Tensor& w,
    const kernels::RmsNorm& numbers,
    const at::Tensor& y) {
  const Stream stream = stream_of(x);
  norm(norm_of(x, w, numbers), rows_of(x), rows_to(y), stream);
  check_launches();
}
inline void layer_norm(
    const at::Tensor& x,
    const at::Tensor& w,
    const at::Tensor& b,
    double eps,
    const at::Tensor& y) {
  const Stream stream = stream_of(x);
  norm(layer_norm_of(x, w, b, eps), rows_of(x), rows_to(y), stream);
  check_launches();
}

inline void adjoint_of(const Norm& norm, const at::Tensor& x, const kernels::NormGradients& to) {
  const Stream stream = stream_of(x);
  const HostScope library_memory;
  const auto bytes = static_cast<std::int64_t>(norm_scratch_bytes(norm));
  const at::Tensor scratch = at::empty({bytes}, x.options().dtype(at::kByte));
  norm_adjoint(
      norm,
      {.x = rows_of(x),
       .grad_y = rows_of(to.y),
       .grad_x = rows_to(to.x),
       .accumulate = to.accumulate,
       .grad_w = to.w.mutable_data_ptr(),
       .grad_b = to.b.defined() ? to.b.mutable_data_ptr() : nullptr,
       .scratch = scratch.mutable_data_ptr()},
      stream);
  check_launches();
}
inline void rms_norm_adjoint(
    const at::Tensor& x,
    const at::Tensor& w,
    const kernels::RmsNorm& numbers,
    const kernels::NormGradients& to) {
  adjoint_of(norm_of(x, w, numbers), x, to);
}
inline void layer_norm_adjoint(
    const at::Tensor& x, const at::Tensor& w, double eps, const kernels::NormGradients& to) {
  adjoint_of(layer_norm_of(x, w, {}, eps), x, to);
}

inline void rotate(const at::Tensor& x, const kernels::Rotation& rotation) {
  if (rotation.interleaved) {  // of models that run on CPUs alone
    throw std::logic_error("rotate: neighbours are not turned on GPUs");
  }
  const Stream stream = stream_of(x);
  PARADYSE_KERNELS::rotate(
      {.type = type_of(x),
       .rows = x.size(0),
       .heads = rotation.heads,
       .head_dim = rotation.head_dim,
       .cosines = rotation.cosines.const_data_ptr(),
       .sines = rotation.sines.const_data_ptr(),
       .positions = rotation.positions.const_data_ptr<std::int64_t>(),
       .inverse = rotation.inverse},
      rows_to(x),
      stream);
  check_launches();
}

inline Swiglu swiglu_of(const at::Tensor& h) {
  return {.type = type_of(h), .rows = h.size(0), .F = h.size(1) / 2, .h = rows_of(h)};
}
inline void swiglu(const at::Tensor& h, const at::Tensor& a) {
  const Stream stream = stream_of(h);
  PARADYSE_KERNELS::swiglu(swiglu_of(h), rows_to(a), stream);
  check_launches();
}
inline void swiglu_adjoint(
    const at::Tensor& h, const at::Tensor& grad_a, const at::Tensor& grad_h) {
  const Stream stream = stream_of(h);
  PARADYSE_KERNELS::swiglu_adjoint(swiglu_of(h), rows_of(grad_a), rows_to(grad_h), stream);
  check_launches();
}

inline LogitsTile tile_of(const kernels::LogitsTile& tile) {
  return {
      .type = type_of(tile.logits),
      .rows = tile.logits.size(0),
      .ids = tile.logits.size(1),
      .first_id = tile.first_id,
      .logits = rows_of(tile.logits),
      .labels = tile.labels.const_data_ptr<std::int64_t>()};
}
inline SoftmaxStatistics statistics_of(const kernels::LossStatistics& statistics) {
  return {
      .maximum = statistics.maximum.mutable_data_ptr<double>(),
      .sum = statistics.sum.mutable_data_ptr<double>(),
      .label = statistics.label.mutable_data_ptr<double>()};
}
inline LogitsGradient gradient_to(const at::Tensor& gradient, double scale) {
  return {.type = type_of(gradient), .to = rows_to(gradient), .scale = scale};
}
inline void loss_statistics(
    const kernels::LogitsTile& tile, const kernels::LossStatistics& statistics) {
  const Stream stream = stream_of(tile.logits);
  softmax_update(tile_of(tile), statistics_of(statistics), /*first=*/false, stream);
  check_launches();
}
inline void loss_gradient(
    const kernels::LogitsTile& tile,
    const kernels::LossStatistics& statistics,
    double scale,
    const at::Tensor& gradient) {
  const Stream stream = stream_of(tile.logits);
  softmax_gradient(tile_of(tile), statistics_of(statistics), gradient_to(gradient, scale), stream);
  check_launches();
}
inline void loss_and_gradient(
    const kernels::LogitsTile& tile,
    const kernels::LossStatistics& statistics,
    double scale,
    const at::Tensor& gradient) {
  const Stream stream = stream_of(tile.logits);
  softmax_loss(tile_of(tile), statistics_of(statistics), gradient_to(gradient, scale), stream);
  check_launches();
}

inline void adamw(const kernels::AdamWTensors& tensors, const kernels::AdamWStep& step) {
  if (tensors.masters.empty()) {
    return;
  }
  Type type = type_of(tensors.masters.front());
  std::vector<AdamWTensor> table;
  for (std::size_t i = 0; i < tensors.masters.size(); ++i) {
    const at::Tensor& weight = tensors.weights[i];
    const bool narrow = !weight.is_same(tensors.masters[i]);
    type = narrow ? type_of(weight) : type;
    table.push_back(
        {.master = tensors.masters[i].mutable_data_ptr(),
         .gradient = tensors.gradients[i].mutable_data_ptr(),
         .mean = tensors.means[i].mutable_data_ptr(),
         .variance = tensors.variances[i].mutable_data_ptr(),
         .narrow = narrow ? weight.mutable_data_ptr() : nullptr,
         .size = weight.numel(),
         .weight_decay = tensors.weight_decay});
  }
  const Stream stream = stream_of(tensors.masters.front());
  PARADYSE_KERNELS::adamw(
      {.type = type,
       .learning_rate = step.learning_rate,
       .beta1 = step.beta1,
       .beta2 = step.beta2,
       .eps = step.eps,
       .step = step.number,
       .factor = step.factor.const_data_ptr<double>()},
      table.data(),
      table.size(),
      stream);
  check_launches();
}

// `table` with these in the place of its own.
inline Kernels with_our_launches(Kernels table) {
  table.name = "cuda";
  table.rms_norm = rms_norm;
  table.rms_norm_adjoint = rms_norm_adjoint;
  table.layer_norm = layer_norm;
  table.layer_norm_adjoint = layer_norm_adjoint;
  table.rotate = rotate;
  table.swiglu = swiglu;
  table.swiglu_adjoint = swiglu_adjoint;
  table.loss_statistics = loss_statistics;
  table.loss_gradient = loss_gradient;
  table.loss_and_gradient = loss_and_gradient;
  table.adamw = adamw;
  return table;
}

}  // namespace paradyse::PARADYSE_KERNELS::of_tensors
