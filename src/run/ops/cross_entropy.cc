// Linear and cross-entropy in one, with the gradient made along the way: logits exist in tiles
// only.
//
// Words.  A *vocabulary tile* is some rows of the head, gathered; a *token tile* some of the rank's
// tokens; their product a tile of logits.  With one vocabulary tile a token tile's gradient is made
// at once (3 products); with several, a first pass finds each token's log-sum-exp and a second one
// makes the tiles again (4 products).  Liger-Kernel (Hsu et al. 2024) does the former on GPUs.
#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/Dispatch.h>

#include "paradyse/run/accountant.h"
#include "src/run/device/through_aten.h"
#include "src/run/kernels/aten/aten_kernels.h"
#include "src/run/kernels/cpu/kernels.h"
#include "src/run/kernels/cpu/products.h"
#include "src/run/ops/ops.h"

namespace paradyse::ops {
namespace {

// Running softmax statistics of the rank's tokens over the vocabulary tiles seen so far.
struct Running {
  std::vector<double> maximum;
  std::vector<double> sum;    // of exp(logit - maximum)
  std::vector<double> label;  // the label's logit

  explicit Running(std::size_t tokens)
      : maximum(tokens, -std::numeric_limits<double>::infinity()), sum(tokens), label(tokens) {}

  [[nodiscard]] double log_sum_exp(std::size_t t) const { return maximum[t] + std::log(sum[t]); }
};

struct Tile {
  std::int64_t first_id = 0;
  std::int64_t first_token = 0;
  at::Tensor logits;  // [tokens, ids], statistic type
};

class Loss {
 public:
  Loss(Frame& frame, const Op& op)
      : frame_(frame),
        op_(op),
        x_TH_(frame.value(op.in[0])),
        running_(static_cast<std::size_t>(x_TH_.size(0))) {
    if (!op.out.empty()) {
      d_TH_ = frame.make(op.out[0]);
    }
  }

  void run() {
    const bool one_tile = op_.transfers.size() == 1;
    for_tiles([&](const at::Tensor& w_VH, const Transfer& table, std::int64_t first_id) {
      const at::Tensor grad_w_VH = one_tile ? gradient_of_tile(w_VH) : at::Tensor();
      for_token_tiles(w_VH, first_id, [&](Tile& tile) {
        at::Tensor exponentials = update(tile);
        if (one_tile && d_TH_.defined()) {
          to_gradient(tile, exponentials, nullptr);
          add_gradients(tile, w_VH, grad_w_VH, true);
        }
      });
      scatter(grad_w_VH, table);
    });
    if (!one_tile && d_TH_.defined()) {
      bool first = true;
      for_tiles([&](const at::Tensor& w_VH, const Transfer& table, std::int64_t first_id) {
        const at::Tensor grad_w_VH = gradient_of_tile(w_VH);
        for_token_tiles(w_VH, first_id, [&](Tile& tile) {
          to_gradient(tile, tile.logits, &running_);
          add_gradients(tile, w_VH, grad_w_VH, first);
        });
        scatter(grad_w_VH, table);
        first = false;
      });
    }
    add_up();
  }

 private:
  template <typename Body>
  void for_tiles(Body body) {
    std::int64_t first_id = 0;
    for (const Transfer& table : op_.transfers) {
      const Extent extent =
          table.destination[static_cast<std::size_t>(frame_.rank->seat.domain_rank)];
      const at::Tensor w_VH = frame_.empty(extent.rows, extent.cols, frame_.activation);
      frame_.rank->domain
          ->exchange(frame_.parameters->stack, w_VH, table, frame_.call("cross_entropy", true))
          ->wait();
      body(w_VH, table, first_id);
      first_id += extent.rows;
    }
  }

  template <typename Body>
  void for_token_tiles(const at::Tensor& w_VH, std::int64_t first_id, Body body) {
    const std::int64_t height = logits_tile_tokens(w_VH.size(0));
    const std::int64_t tokens = x_TH_.size(0);
    const at::Tensor logits =
        frame_.empty(std::min(height, tokens), w_VH.size(0), frame_.statistic);
    for (std::int64_t t = 0; t < tokens; t += height) {
      const std::int64_t count = std::min(height, tokens - t);
      Tile tile{.first_id = first_id, .first_token = t, .logits = logits.narrow(0, 0, count)};
      product(x_TH_.narrow(0, t, count), w_VH.t(), tile.logits, false);
      if (const auto bias = bias_of(tile, frame_.parameters->vectors); bias.defined()) {
        kernels::add_to_rows(tile.logits, bias);
      }
      body(tile);
    }
  }

  // Adds the tile to the running statistics.  Gives exp(logits - maximum) in the tile's place;
  // their maximum and sum are those of this tile when it is the only one.
  at::Tensor update(Tile& tile) {
    const at::Tensor maximum = tile.logits.amax(1);
    const auto rows = static_cast<std::size_t>(tile.logits.size(0));
    visit_labels(tile, [&](std::size_t t, double logit) { running_.label[t] = logit; });
    at::Tensor logits = tile.logits;
    logits.sub_(maximum.unsqueeze(1)).exp_();
    const at::Tensor sum = logits.sum(1);
    const at::Tensor maximum_here = on_host(maximum);
    const at::Tensor sum_here = on_host(sum);
    for (std::size_t r = 0; r < rows; ++r) {
      const std::size_t t = static_cast<std::size_t>(tile.first_token) + r;
      const double m = element(maximum_here, r);
      const double s = element(sum_here, r);
      const double both = std::max(m, running_.maximum[t]);
      running_.sum[t] =
          running_.sum[t] * std::exp(running_.maximum[t] - both) + s * std::exp(m - both);
      running_.maximum[t] = both;
    }
    return logits;
  }

  // The gradient of loss_scale * loss in the tile's place.  `running`: the tile holds logits still;
  // else it holds exponentials and running_ has their sums.
  void to_gradient(Tile& tile, at::Tensor& logits, const Running* running) {
    const std::int64_t rows = logits.size(0);
    at::Tensor factor = at::empty({rows, 1}, logits.options());
    fill(factor, [&](std::int64_t r) {
      const std::size_t t = static_cast<std::size_t>(tile.first_token + r);
      return running != nullptr ? running->log_sum_exp(t) : 1.0 / running_.sum[t];
    });
    if (running != nullptr) {
      logits.sub_(factor).exp_();
    } else {
      logits.mul_(factor);
    }
    visit_labels(tile, nullptr);
    fill(factor, [&](std::int64_t r) {
      const bool counted =
          frame_.batch->labels[static_cast<std::size_t>(tile.first_token + r)] >= 0;
      return counted ? frame_.loss_scale : 0.0;
    });
    logits.mul_(factor);
  }

  void add_gradients(
      const Tile& tile, const at::Tensor& w_VH, const at::Tensor& grad_w_VH, bool first) {
    const std::int64_t count = tile.logits.size(0);
    if (const auto sums = bias_of(tile, frame_.parameters->vector_grads); sums.defined()) {
      kernels::add_sum_of_rows(tile.logits, sums);
    }
    const at::Tensor g = tile.logits.to(frame_.activation);
    product(g, w_VH, d_TH_.narrow(0, tile.first_token, count), !first);
    product(g.t(), x_TH_.narrow(0, tile.first_token, count), grad_w_VH, true);
  }

  // The tile's entries of the logits' bias, or of its gradient; undefined where there is none.
  at::Tensor bias_of(const Tile& tile, const std::vector<at::Tensor>& vectors) const {
    return op_.vectors.empty() ? at::Tensor()
                               : vectors.at(static_cast<std::size_t>(op_.vectors.begin))
                                     .narrow(0, tile.first_id, tile.logits.size(1));
  }

  at::Tensor gradient_of_tile(const at::Tensor& w_VH) const {
    if (!d_TH_.defined()) {
      return {};
    }
    return frame_.empty(w_VH.size(0), w_VH.size(1), frame_.statistic).zero_();
  }

  void scatter(const at::Tensor& grad_w_VH, const Transfer& table) {
    if (grad_w_VH.defined()) {
      frame_.rank->domain
          ->exchange_sum(
              grad_w_VH,
              frame_.parameters->stack_grad,
              table,
              true,
              frame_.call("cross_entropy gradient"))
          ->wait();
    }
  }

  // Calls seen(token, logit) for every label inside the tile; without `seen`, takes 1 off there.
  template <typename Seen>
  void visit_labels(Tile& tile, Seen seen) {
    if (through_aten(tile.logits)) {
      visit_labels_by_aten(tile, seen);
      return;
    }
    AT_DISPATCH_FLOATING_TYPES(tile.logits.scalar_type(), "labels", [&] {
      auto* data = tile.logits.template mutable_data_ptr<scalar_t>();
      for (std::int64_t r = 0; r < tile.logits.size(0); ++r) {
        const auto t = static_cast<std::size_t>(tile.first_token + r);
        const std::int64_t column = frame_.batch->labels[t] - tile.first_id;
        if (frame_.batch->labels[t] >= 0 && column >= 0 && column < tile.logits.size(1)) {
          scalar_t& at_label = data[r * tile.logits.stride(0) + column];
          if constexpr (std::is_same_v<Seen, std::nullptr_t>) {
            at_label -= 1;
          } else {
            seen(t, static_cast<double>(at_label));
          }
        }
      }
    });
  }

  template <typename Seen>
  void visit_labels_by_aten(Tile& tile, [[maybe_unused]] Seen seen) {
    const HostScope library_memory;
    std::vector<std::int64_t> rows;
    std::vector<std::int64_t> columns;
    for (std::int64_t r = 0; r < tile.logits.size(0); ++r) {
      const std::int64_t label =
          frame_.batch->labels[static_cast<std::size_t>(tile.first_token + r)];
      if (label >= tile.first_id && label < tile.first_id + tile.logits.size(1)) {
        rows.push_back(r);
        columns.push_back(label - tile.first_id);
      }
    }
    const c10::Device device = tile.logits.device();
    const at::Tensor at_row = aten::indices(rows, device);
    const at::Tensor at_column = aten::indices(columns, device);
    const at::Tensor found = tile.logits.index({at_row, at_column});
    if constexpr (std::is_same_v<Seen, std::nullptr_t>) {
      tile.logits.index_put_({at_row, at_column}, found - 1);
    } else {
      const at::Tensor here = on_host(found);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        seen(static_cast<std::size_t>(tile.first_token + rows[i]), element(here, i));
      }
    }
  }

  // A vector of one number a row, made here, used on its device.
  template <typename Value>
  static void fill(const at::Tensor& vector, Value value) {
    const HostScope control;
    const at::Tensor here =
        vector.is_cpu() ? vector : at::empty(vector.sizes(), vector.options().device(at::kCPU));
    for (std::int64_t r = 0; r < vector.size(0); ++r) {
      set(here, static_cast<std::size_t>(r), value(r));
    }
    if (!here.is_same(vector)) {
      vector.copy_(here);
    }
  }
  static at::Tensor on_host(const at::Tensor& vector) {
    const HostScope control;
    return vector.cpu();
  }

  static double element(const at::Tensor& vector, std::size_t i) {
    return vector.scalar_type() == at::kDouble
               ? vector.const_data_ptr<double>()[i]
               : static_cast<double>(vector.const_data_ptr<float>()[i]);
  }
  static void set(const at::Tensor& vector, std::size_t i, double value) {
    if (vector.scalar_type() == at::kDouble) {
      vector.mutable_data_ptr<double>()[i] = value;
    } else {
      vector.mutable_data_ptr<float>()[i] = static_cast<float>(value);
    }
  }

  void add_up() {
    const MicroBatch& batch = *frame_.batch;
    for (std::size_t t = 0; t < batch.labels.size(); ++t) {
      if (batch.labels[t] >= 0) {
        const auto document = static_cast<std::size_t>(batch.document_of[t]);
        frame_.result->loss_sums[document] += running_.log_sum_exp(t) - running_.label[t];
        ++frame_.result->counts[document];
      }
    }
  }

  Frame& frame_;
  const Op& op_;
  at::Tensor x_TH_;
  at::Tensor d_TH_;
  at::Tensor narrow_;  // the tile in the activation type
  Running running_;
};

}  // namespace

void cross_entropy(Frame& frame, const Op& op) { Loss(frame, op).run(); }

void cross_entropy_adjoint(Frame& frame, const Op& op) {
  frame.gradients[static_cast<std::size_t>(op.in[0])] = frame.value(op.out[0]);
}

}  // namespace paradyse::ops
