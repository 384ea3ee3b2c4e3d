// What ops call on a device: one table of functions, filled for each kind of device by a file
// table.cc of this folder.  A session picks its table by its device, once; what has no session
// (communicators, trials of a machine) asks by a tensor's.
//
//   cpu/   loops of our own, beside one BLAS
//   aten/  sequences of ATen's operations, which run wherever ATen does
//   cuda/  aten/ with kernels of our own where ATen takes several passes (in a build with CUDA)
//
// The sentences below hold for all of them.  Rows are contiguous, whole numbers int64 on the
// tensors' device.  Sums are kept in the *statistic* type: float64 for float64, else float32.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/detail/transfer.h"
#include "src/run/kernels/attention.h"
#include "src/run/kernels/dropout.h"

namespace paradyse {
namespace kernels {

// The gradient of y is read, that of x made or added to; those of w and b [H] (statistic type) are
// always added to.
struct NormGradients {
  at::Tensor y;
  at::Tensor x;
  bool accumulate = false;  // into x
  at::Tensor w;
  at::Tensor b = {};  // of a LayerNorm
};

// The numbers of an RMSNorm: what is added to the mean of squares, and to each weight in the type
// of sums (Gemma's weights stand around 0).
struct RmsNorm {
  double eps = 0;
  double offset = 0;

  RmsNorm(double epsilon, double added = 0)  // NOLINT(google-explicit-constructor)
      : eps(epsilon), offset(added) {}
};

struct Rotation {
  std::int64_t heads = 0;  // that are rotated: the first of every row
  std::int64_t head_dim = 0;
  at::Tensor cosines;  // [positions, D/2] in the statistic type
  at::Tensor sines;
  at::Tensor positions;      // [t]
  bool inverse = false;      // back: the adjoint
  bool interleaved = false;  // pairs are columns 2i and 2i + 1 of a head, not i and i + D/2
};

// Probabilities of attention whose scores are kept: `tokens` rows in a row, each of `heads` times
// `keys` scores in base 2.  Masked: the first token sees `seen` keys, each next one more; of these
// the last `window`, 0: all.  `cap`: as in ops::Attention.
struct ScoreRows {
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t keys = 0;
  std::int64_t seen = 0;
  bool masked = true;
  std::int64_t window = 0;
  double cap = 0;
};

// [tokens] What is known of each token's logits after some tiles of the vocabulary; float64.
struct LossStatistics {
  at::Tensor maximum;
  at::Tensor sum;    // of exp(logit - maximum)
  at::Tensor label;  // the label's logit

  [[nodiscard]] LossStatistics narrow(std::int64_t first, std::int64_t count) const {
    return {
        maximum.narrow(0, first, count),
        sum.narrow(0, first, count),
        label.narrow(0, first, count)};
  }
  [[nodiscard]] at::Tensor log_sum_exp() const { return maximum + sum.log(); }
};

// Logits of some tokens and of the ids from `first_id` on.
struct LogitsTile {
  at::Tensor logits;  // [tokens, ids] statistic type
  at::Tensor labels;  // [tokens] negative: none
  std::int64_t first_id = 0;
};

// What AdamW updates alike: [tensor] float32 or float64 masters, their gradients and moments, and
// the weight that ops read, which is the master itself or of a narrow type.
struct AdamWTensors {
  double weight_decay = 0;
  std::vector<at::Tensor> masters = {};
  std::vector<at::Tensor> gradients = {};
  std::vector<at::Tensor> means = {};
  std::vector<at::Tensor> variances = {};
  std::vector<at::Tensor> weights = {};
};
struct AdamWStep {
  double learning_rate = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  std::int64_t number = 1;  // of this update
  // [] float64 on the device: of the gradients.  Not above 0, infinite or NaN: they overflowed, and
  // masters, moments and weights stay as they are.
  at::Tensor factor;
};

// A source of a sum: contiguous memory, and where in it the elements lie.
struct Summand {
  at::Tensor tensor;
  Region region;
};

}  // namespace kernels

struct Kernels {
  const char* name = "";

  // RMSNorm (Zhang & Sennrich 2019): y = x / rms(x) * (w + offset), rms = sqrt(mean(x^2) + eps).
  //   x, y [t, n H]: each of the n runs of a row is normed by itself; w [H]
  void (*rms_norm)(
      const at::Tensor& x, const at::Tensor& w, const kernels::RmsNorm&, const at::Tensor& y);
  void (*rms_norm_adjoint)(
      const at::Tensor& x,
      const at::Tensor& w,
      const kernels::RmsNorm&,
      const kernels::NormGradients&);
  // LayerNorm (Ba et al. 2016): y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * w + b.
  //   x, y [t, H]; w, b [H], b may be undefined: 0, and without a gradient.
  void (*layer_norm)(
      const at::Tensor& x,
      const at::Tensor& w,
      const at::Tensor& b,
      double eps,
      const at::Tensor& y);
  void (*layer_norm_adjoint)(
      const at::Tensor& x, const at::Tensor& w, double eps, const kernels::NormGradients&);

  // Adds scale b, b [n], to every row of y [t, n], which is of b's type or of that of its sums.
  void (*add_to_rows)(const at::Tensor& y, const at::Tensor& b, double scale);
  // Adds `scale` times the sum of y's rows to sums [n] of the statistic type; y [t, n] of any type.
  void (*add_sum_of_rows)(const at::Tensor& y, const at::Tensor& sums, double scale);
  // Adds the sum over rows of a b, both [t, n] of any type, to sums [n] of the statistic type.
  void (*add_sum_of_products)(const at::Tensor& a, const at::Tensor& b, const at::Tensor& sums);
  // Adds numbers [n] of the statistic type to `to` [n] of any type.
  void (*add_numbers)(const at::Tensor& to, const at::Tensor& numbers);

  // to [t, H] = from / (1 - probability), or 0; tokens [t]: the index of every row's.
  void (*dropout)(
      const kernels::Dropout&,
      const at::Tensor& tokens,
      const at::Tensor& from,
      const at::Tensor& to);
  // Of every position t and frequency f [D/2] (float64): factor cos(t f) and factor sin(t f), both
  // [positions, D/2] of the statistic type.  Angles are float64 whatever that is: in float32 they
  // are off by 1e-3 at a position of 16 K.
  void (*rotations)(
      const at::Tensor& frequencies,
      double factor,
      const at::Tensor& cosines,
      const at::Tensor& sines);
  // Rotates heads in place (Su et al. 2021, in Hugging Face's convention: dim i is paired with
  // i + D/2).
  //   x [t, >= heads * D]
  void (*rotate)(const at::Tensor& x, const kernels::Rotation&);
  // SwiGLU (Shazeer 2020): a = silu(gate) up, silu(x) = x / (1 + exp(-x)).
  //   h [t, 2F]: gate, then up; a [t, F]
  void (*swiglu)(const at::Tensor& h, const at::Tensor& a);
  // grad_h from grad_a [t, F]: d gate = da up silu'(gate), d up = da silu(gate).
  void (*swiglu_adjoint)(const at::Tensor& h, const at::Tensor& grad_a, const at::Tensor& grad_h);

  // to = a b, or to += a b.  a [m, k] and b [k, n] of one type, either may be a transposed view; to
  // [m, n] of that type or of its sums.  Sums are never rounded on the way; an empty k counts as a
  // sum of nothing.  Where the device needs room to make a narrow result in the statistic type, it
  // has that of `rows` rows (Tiles::product_rows); 0: it has none, and a CPU throws.
  void (*product)(
      const at::Tensor& a,
      const at::Tensor& b,
      const at::Tensor& to,
      bool accumulate,
      std::int64_t rows);
  // c [m, n] = alpha a b + beta c; c of the statistic type.
  void (*scaled_product)(
      double alpha, const at::Tensor& a, const at::Tensor& b, double beta, const at::Tensor& c);

  // o = softmax(scale q k^T + bias + mask) v of each block's queries over its keys, and l, the
  // log-sum-exp of the scores, which may be capped.  `merge`: what o and l hold is the result of
  // earlier keys, which these join; else the first block of some queries begins with nothing.  A
  // query that sees no key has o = 0 and l = -inf.
  void (*attend)(
      const ops::BlockAttention& attention, const ops::AttentionMatrices& in, bool merge);
  // Adds what the blocks give to the gradients of q, kv and the bias; that of o is read, o and l
  // are those of all keys.  `fresh`: nothing is in the gradients of q and kv yet, and all of their
  // rows get their numbers here.
  void (*attend_adjoint)(
      const ops::BlockAttention& attention,
      const ops::AttentionMatrices& in,
      const ops::AttentionMatrices& gradients,
      bool fresh);

  // to [queries, keys] = from / (1 - probability), or 0: of a tile of probabilities, or of their
  // gradient.  Rows contiguous; `from` is of `to`'s type, or of that of its sums, or `to` itself.
  void (*drop_probabilities)(
      const kernels::AttentionDropout&, const at::Tensor& from, const at::Tensor& to);

  // Scores become probabilities, in place.
  void (*softmax)(const at::Tensor& scores, const kernels::ScoreRows&);
  // d [rows, keys], the gradient of the probabilities p, becomes that of the scores, p (d - o do),
  // and is rounded into `narrow` of p's type, which is d itself where that is its type.
  void (*score_gradient)(
      const at::Tensor& p,
      const at::Tensor& o,
      const at::Tensor& grad_o,
      const at::Tensor& d,
      const at::Tensor& narrow);

  // x[tokens[i]] = table[rows[i]], or +=; no token comes twice.
  void (*look_up)(
      const at::Tensor& x,
      const at::Tensor& table,
      const at::Tensor& tokens,
      const at::Tensor& rows,
      bool add);
  // grad_table[rows[i]] += grad_x[tokens[i]], in a fixed order; grad_table of the statistic type.
  void (*add_looked_up)(
      const at::Tensor& grad_table,
      const at::Tensor& grad_x,
      const at::Tensor& tokens,
      const at::Tensor& rows);

  // Cross-entropy.  A tile of logits joins its tokens' statistics; what is left in it is not said.
  void (*loss_statistics)(const kernels::LogitsTile&, const kernels::LossStatistics&);
  // The gradient of scale * loss to the logits, by the statistics of the whole vocabulary, into
  // `gradient` [tokens, ids]: the tile itself, or a tensor of the activation type.
  void (*loss_gradient)(
      const kernels::LogitsTile&,
      const kernels::LossStatistics&,
      double scale,
      const at::Tensor& gradient);
  // Both, of a tile of the whole vocabulary.
  void (*loss_and_gradient)(
      const kernels::LogitsTile&,
      const kernels::LossStatistics&,
      double scale,
      const at::Tensor& gradient);
  // sums [t] float64: the squares of y - v, both [t, n]; d = (y - v) scale where it is defined.
  // Where v is NaN there is nothing to be predicted: both are 0.
  void (*squared_error)(
      const at::Tensor& y,
      const at::Tensor& v,
      double scale,
      const at::Tensor& d,
      const at::Tensor& sums);

  // AdamW with decoupled decay (Loshchilov & Hutter 2019) by the gradients times their factor,
  // which may be left in their place; weights of a narrow type are their masters rounded.
  void (*adamw)(const kernels::AdamWTensors&, const kernels::AdamWStep&);

  // Elements of contiguous memory to others, which have the same loops.
  void (*copy_region)(
      const at::Tensor& to, const Region& to_region, const at::Tensor& from, const Region& region);
  // The elements of a region = or += the sum of the sources, in their order, rounded once; a
  // source's elements come in the region's order.  Throws std::invalid_argument for a pair of types
  // that it has no sum for.
  void (*sum_regions)(
      const at::Tensor& to,
      const Region& region,
      const std::vector<kernels::Summand>& sources,
      bool accumulate);
};

// Of tensors on this device.
const Kernels& kernels_for(c10::Device device);
// The fillings.
const Kernels& cpu_kernels();
const Kernels& aten_kernels();
// aten_kernels() in a build without CUDA, and where PARADYSE_CUDA_KERNELS=0 is in the environment.
const Kernels& cuda_kernels();

// CPU tensors go through ATen as well: for tests, which cannot count on a GPU.  Set at the start by
// PARADYSE_ATEN_KERNELS=1 in the environment.
bool cpu_through_aten();
void send_cpu_through_aten(bool on);
// Of devices that are neither CPU nor GPU, which only tests have; aten_kernels() at first.
void use_kernels_of_other_devices(const Kernels& table);

}  // namespace paradyse
