#include <cmath>
#include <limits>
#include <numbers>

#include <ATen/Dispatch.h>

#include "src/run/kernels/cpu/kernels.h"
#include "src/run/kernels/cpu/products.h"

namespace paradyse::kernels {
namespace {

using ops::kNarrow;
using ops::Sum;

template <typename S>
void softmax_of(S* row, at::ScalarType type, const ScoreRows& rows) {
  for (std::int64_t token = 0; token < rows.tokens; ++token) {
    for (std::int64_t h = 0; h < rows.heads; ++h, row += rows.keys) {
      S maximum = -std::numeric_limits<S>::infinity();
      S sum = 0;
      S factor = 0;
      softmax_tile(
          {.type = type, .sums = row, .rows = 1, .cols = rows.keys},
          {.first_visible = rows.masked ? rows.seen + token - 1 : rows.keys,
           .window = rows.window,
           .cap = rows.cap * std::numbers::log2e},
          &maximum,
          &sum,
          &factor);
      factor = 1 / sum;
      scale_rows(type, row, rows.keys, 1, rows.keys, &factor);
    }
  }
}

template <typename T>
void score_gradient_of(
    const at::Tensor& p,
    const at::Tensor& o,
    const at::Tensor& grad_o,
    const at::Tensor& d,
    const at::Tensor& narrow) {
  const auto* p_row = p.const_data_ptr<T>();
  const auto* o_row = o.const_data_ptr<T>();
  const auto* g_row = grad_o.const_data_ptr<T>();
  auto* d_row = d.mutable_data_ptr<Sum<T>>();
  auto* to = narrow.mutable_data_ptr<T>();
  for (std::int64_t r = 0; r < p.size(0); ++r) {
    Sum<T> dot = 0;
    for (std::int64_t c = 0; c < o.size(1); ++c) {
      dot += static_cast<Sum<T>>(o_row[c]) * static_cast<Sum<T>>(g_row[c]);
    }
    for (std::int64_t c = 0; c < p.size(1); ++c) {
      d_row[c] = static_cast<Sum<T>>(p_row[c]) * (d_row[c] - dot);
    }
    if constexpr (kNarrow<T>) {
      for (std::int64_t c = 0; c < p.size(1); ++c) {
        to[c] = static_cast<T>(d_row[c]);
      }
      to += p.size(1);
    }
    p_row += p.stride(0);
    o_row += o.stride(0);
    g_row += grad_o.stride(0);
    d_row += d.size(1);
  }
}

void rotations(
    const at::Tensor& frequencies,
    double factor,
    const at::Tensor& cosines,
    const at::Tensor& sines) {
  const std::int64_t half = frequencies.size(0);
  const auto* frequency = frequencies.const_data_ptr<double>();
  AT_DISPATCH_FLOATING_TYPES(cosines.scalar_type(), "rotations", [&] {
    auto* c = cosines.mutable_data_ptr<scalar_t>();
    auto* s = sines.mutable_data_ptr<scalar_t>();
    for (std::int64_t t = 0; t < cosines.size(0); ++t) {
      for (std::int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(t) * frequency[i];
        c[t * half + i] = static_cast<scalar_t>(factor * std::cos(angle));
        s[t * half + i] = static_cast<scalar_t>(factor * std::sin(angle));
      }
    }
  });
}

void softmax(const at::Tensor& scores, const ScoreRows& rows) {
  AT_DISPATCH_FLOATING_TYPES(scores.scalar_type(), "softmax", [&] {
    softmax_of(scores.mutable_data_ptr<scalar_t>(), scores.scalar_type(), rows);
  });
}

void score_gradient(
    const at::Tensor& p,
    const at::Tensor& o,
    const at::Tensor& grad_o,
    const at::Tensor& d,
    const at::Tensor& narrow) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, p.scalar_type(), "score_gradient", [&] {
    score_gradient_of<scalar_t>(p, o, grad_o, d, narrow);
  });
}

void look_up(
    const at::Tensor& x,
    const at::Tensor& table,
    const at::Tensor& tokens,
    const at::Tensor& rows,
    bool add) {
  const std::int64_t H = x.size(1);
  const auto* token = tokens.const_data_ptr<std::int64_t>();
  const auto* row = rows.const_data_ptr<std::int64_t>();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "look_up", [&] {
    const auto* entries = table.const_data_ptr<scalar_t>();
    auto* values = x.mutable_data_ptr<scalar_t>();
    for (std::int64_t n = 0; n < tokens.size(0); ++n) {
      const scalar_t* from = entries + row[n] * H;
      scalar_t* to = values + token[n] * H;
      for (std::int64_t i = 0; i < H; ++i) {
        to[i] = add ? to[i] + from[i] : from[i];
      }
    }
  });
}

void add_looked_up(
    const at::Tensor& grad_table,
    const at::Tensor& grad_x,
    const at::Tensor& tokens,
    const at::Tensor& rows) {
  const std::int64_t H = grad_x.size(1);
  const auto* token = tokens.const_data_ptr<std::int64_t>();
  const auto* row = rows.const_data_ptr<std::int64_t>();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, grad_x.scalar_type(), "add_looked_up", [&] {
        const auto* grads = grad_x.const_data_ptr<scalar_t>();
        auto* sums = grad_table.mutable_data_ptr<Sum<scalar_t>>();
        for (std::int64_t n = 0; n < tokens.size(0); ++n) {
          const scalar_t* from = grads + token[n] * H;
          Sum<scalar_t>* to = sums + row[n] * H;
          for (std::int64_t i = 0; i < H; ++i) {
            to[i] += static_cast<Sum<scalar_t>>(from[i]);
          }
        }
      });
}

void squared_error(
    const at::Tensor& y,
    const at::Tensor& v,
    double scale,
    const at::Tensor& d,
    const at::Tensor& sums) {
  const std::int64_t columns = y.size(1);
  auto* const of_rows = sums.mutable_data_ptr<double>();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, y.scalar_type(), "squared_error", [&] {
    const auto* a = y.const_data_ptr<scalar_t>();
    const auto* b = v.const_data_ptr<scalar_t>();
    auto* to = d.defined() ? d.mutable_data_ptr<scalar_t>() : nullptr;
    for (std::int64_t row = 0; row < y.size(0); ++row) {
      double sum = 0;
      for (std::int64_t i = row * columns; i < (row + 1) * columns; ++i) {
        const auto wanted = static_cast<double>(b[i]);
        const double difference = std::isnan(wanted) ? 0 : static_cast<double>(a[i]) - wanted;
        sum += difference * difference;
        if (to != nullptr) {
          to[i] = static_cast<scalar_t>(static_cast<Sum<scalar_t>>(scale * difference));
        }
      }
      of_rows[row] = sum;
    }
  });
}

}  // namespace

void add_plain_loops(Kernels& table) {
  table.rotations = rotations;
  table.softmax = softmax;
  table.score_gradient = score_gradient;
  table.look_up = look_up;
  table.add_looked_up = add_looked_up;
  table.squared_error = squared_error;
}

}  // namespace paradyse::kernels
