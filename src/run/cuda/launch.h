// The CUDA kernels of our own as plain functions: what is given are pointers to the device's
// memory, sizes and a stream, neither tensors nor CUDA's types.  Each only queues its work; whether
// that was taken cudaGetLastError() tells.
//
// Each .cu file here holds a kernel's *body* and its launch.  Compiled by nvcc, blocks of threads
// run it; compiled by a host's compiler, as tests/run/cuda_kernels_test.cc does, loops (block.h).
//
// Everywhere: no result depends on the order in which blocks or threads come; empty sizes do
// nothing; any width and any alignment will do, and rows whose starts are multiples of 16 bytes are
// fastest. The *sum type* of float64 is float64, of all others float32: sums are kept in it, and
// statistics, weight gradients and logits have it.
#pragma once

#include <cstddef>
#include <cstdint>

#ifndef PARADYSE_KERNELS  // a test names its own, for the host, otherwise
#define PARADYSE_KERNELS cuda
#endif

namespace paradyse::PARADYSE_KERNELS {

enum class Type { float64, float32, bfloat16, float16 };

using Stream = void*;  // a cudaStream_t

// Rows of a matrix, `stride` elements apart.
struct ConstRows {
  const void* data = nullptr;
  std::int64_t stride = 0;
};
struct Rows {
  void* data = nullptr;
  std::int64_t stride = 0;
  operator ConstRows() const { return {data, stride}; }
};

// --- norms (norm.cu, norm_adjoint.cu) ------------------------------------------------------------

// Each of the `runs` runs of `width` columns in each of `rows` rows is normed by itself.
//   RMSNorm (Zhang & Sennrich 2019): y = x / sqrt(mean(x^2) + eps) * w
//   LayerNorm (Ba et al. 2016), `layer`: y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * w
//   + b
struct Norm {
  Type type = Type::float32;  // of x, y, w, b and x's and y's gradients
  std::int64_t rows = 0;
  std::int64_t runs = 1;
  std::int64_t width = 0;  // below 2^30
  double eps = 0;
  double offset = 0;        // of an RMSNorm: added to each weight
  const void* w = nullptr;  // [width]
  const void* b = nullptr;  // [width] of a LayerNorm, or null: 0; the adjoint does not read it
  bool layer = false;
};

void norm(const Norm& norm, ConstRows x, Rows y, Stream stream);

// With s = 1 / sqrt(... + eps) and, RMSNorm: grad_x = s (w g - x s^2 mean(w g x)), grad_w += g x s;
// LayerNorm, n = (x - mean(x)) s: grad_x = s (w g - mean(w g) - n mean(w g n)), grad_w += g n,
// grad_b += g, where g is the gradient of y.  s comes out as in `norm`.
struct NormAdjoint {
  ConstRows x;  // what was normed
  ConstRows grad_y;
  Rows grad_x;              // may be grad_y
  bool accumulate = false;  // added to grad_x, in the sum type, rounded once
  void* grad_w = nullptr;   // [width], sum type; always added to
  void* grad_b = nullptr;   // [width], sum type; of a LayerNorm, or null
  void* scratch = nullptr;  // norm_scratch_bytes, whatever it holds; aligned to 16
};
std::size_t norm_scratch_bytes(const Norm& norm);
void norm_adjoint(const Norm& norm, const NormAdjoint& adjoint, Stream stream);

// --- RoPE (rope.cu) ------------------------------------------------------------------------------

// Turns the first `heads` heads of each row of x in place (Su et al. 2021, in Hugging Face's
// convention): columns i and i + D/2 of a head, (a, b), become (a cos - b sin, b cos + a sin);
// inverse: the adjoint, by the angles' negatives.
struct Rotation {
  Type type = Type::float32;
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;                // D, even
  const void* cosines = nullptr;            // [positions, D/2], sum type
  const void* sines = nullptr;              // [positions, D/2], sum type
  const std::int64_t* positions = nullptr;  // [rows], on the device
  bool inverse = false;
};
void rotate(const Rotation& rotation, Rows x, Stream stream);

// --- SwiGLU (swiglu.cu) --------------------------------------------------------------------------

// SwiGLU (Shazeer 2020): a = silu(gate) up, silu(x) = x / (1 + exp(-x)).
struct Swiglu {
  Type type = Type::float32;
  std::int64_t rows = 0;
  std::int64_t F = 0;
  ConstRows h;  // [rows, 2 F]: gate, then up
};
void swiglu(const Swiglu& swiglu, Rows a, Stream stream);
// d gate = da up silu'(gate), d up = da silu(gate); grad_h may be h.
void swiglu_adjoint(const Swiglu& swiglu, ConstRows grad_a, Rows grad_h, Stream stream);

// --- softmax and loss of a row (softmax_loss.cu) -------------------------------------------------

// A tile of logits: those of ids [first_id, first_id + ids) for some rows.
struct LogitsTile {
  Type type = Type::float32;  // float64 or float32, a sum type
  std::int64_t rows = 0;
  std::int64_t ids = 0;  // at least 1 and below 2^30
  std::int64_t first_id = 0;
  ConstRows logits;
  const std::int64_t* labels = nullptr;  // [rows], on the device, ids of the whole vocabulary
};

// Running softmax of each row over the tiles seen so far.  Rows with a negative label have none and
// are left alone.
struct SoftmaxStatistics {
  double* maximum = nullptr;  // [rows]
  double* sum = nullptr;      // [rows], of exp(logit - maximum)
  double* label = nullptr;    // [rows], the label's logit
};

// The gradient of scale * (the sum of losses): scale * (exp(logit - maximum) / sum - [id is the
// label]), 0 in rows with a negative label; rounded to `type` once.
struct LogitsGradient {
  Type type = Type::float32;  // float64 with float64, else any other
  Rows to = {};               // may be the logits, where the types are the same
  double scale = 1;
};

// Takes a tile in; `first`: what statistics hold before is not read.  A label outside the
// vocabulary leaves `label` at 0.
void softmax_update(
    const LogitsTile& tile, const SoftmaxStatistics& statistics, bool first, Stream stream);
// The gradient of a tile, by statistics that have taken in all of them.
void softmax_gradient(
    const LogitsTile& tile,
    const SoftmaxStatistics& statistics,
    const LogitsGradient& gradient,
    Stream stream);
// Both in one launch, of a tile that is the whole vocabulary.
void softmax_loss(
    const LogitsTile& tile,
    const SoftmaxStatistics& statistics,
    const LogitsGradient& gradient,
    Stream stream);

// --- AdamW (adamw.cu) ----------------------------------------------------------------------------

// One step of AdamW (Loshchilov & Hutter 2019), as at::_fused_adamw_ takes it:
//   w -= lr decay w;  m += (1 - beta1) (g - m);  v = beta2 v + (1 - beta2) g^2;
//   w -= lr / (1 - beta1^step) m / (sqrt(v) / sqrt(1 - beta2^step) + eps)
// where g is the gradient times *factor.  A factor that is not above 0, infinite or NaN says that
// the gradients overflowed: all stays as it is.
struct AdamW {
  Type type = Type::float32;  // of weights; masters, gradients and moments have its sum type
  double learning_rate = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  std::int64_t step = 0;           // this one's number, from 1
  const double* factor = nullptr;  // one number, on the device
};
struct AdamWTensor {
  void* master = nullptr;
  void* gradient = nullptr;  // is only read
  void* mean = nullptr;      // m
  void* variance = nullptr;  // v
  void* narrow = nullptr;    // the weight, which is the master rounded; null: is the master
  std::int64_t size = 0;
  double weight_decay = 0;
};
// All tensors, some dozens a launch.
void adamw(const AdamW& options, const AdamWTensor* tensors, std::size_t count, Stream stream);

}  // namespace paradyse::PARADYSE_KERNELS
