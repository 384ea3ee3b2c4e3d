// Linear and cross-entropy in one, with the gradient made along the way: logits exist in tiles
// only.
//
// Words.  A *vocabulary tile* is some rows of the head, gathered; a *token tile* some of the rank's
// tokens; their product a tile of logits.  With one vocabulary tile a token tile's gradient is made
// at once (3 products); with several, a first pass finds each token's log-sum-exp and a second one
// makes the tiles again (4 products).  Liger-Kernel (Hsu et al. 2024) does the former on GPUs.
//
// The host waits for nothing here: what every token loses stays on the device (MicroBatchResult).
#include <algorithm>
#include <limits>

#include "paradyse/plan/detail/index.h"
#include "paradyse/run/accountant.h"
#include "src/run/ops/frame.h"

namespace paradyse::ops {
namespace {

using kernels::LogitsTile;
using kernels::LossStatistics;

// Of tokens that have seen nothing yet; a few numbers a token, nobody's (HostScope).
LossStatistics no_statistics(std::int64_t tokens, c10::Device device) {
  const HostScope library_memory;
  const auto numbers = at::TensorOptions().dtype(at::kDouble).device(device);
  return {
      .maximum = at::full({tokens}, -std::numeric_limits<double>::infinity(), numbers),
      .sum = at::zeros({tokens}, numbers),
      .label = at::zeros({tokens}, numbers)};
}

class Loss {
 public:
  Loss(Frame& frame, const Op& op)
      : frame_(frame),
        op_(op),
        x_TH_(frame.value(op.in[0])),
        labels_T_(frame.numbers->of(
            {BatchNumbers::Kind::labels},
            [&] {
              const std::vector<std::int32_t>& labels = frame.batch->labels;
              return std::vector<std::int64_t>(labels.begin(), labels.end());
            })),
        statistics_(no_statistics(x_TH_.size(0), x_TH_.device())) {
    if (!op.out.empty()) {
      d_TH_ = frame.make(op.out[0]);
    }
  }

  void run() {
    const Kernels& kernels = frame_.kernels();
    const bool one_tile = op_.copies.size() == 1;
    for_tiles([&](const at::Tensor& w_VH, const Redistribution& copy, std::int64_t first_id) {
      const at::Tensor grad_w_VH = one_tile ? gradient_of_tile(w_VH) : at::Tensor();
      for_token_tiles(w_VH, first_id, [&](std::int64_t first, const LogitsTile& tile) {
        if (one_tile && d_TH_.defined()) {
          add_gradients(kernels.loss_and_gradient, first, tile, w_VH, grad_w_VH, true);
        } else {
          kernels.loss_statistics(tile, statistics_.narrow(first, tile.logits.size(0)));
        }
      });
      scatter(grad_w_VH, copy);
    });
    if (!one_tile && d_TH_.defined()) {
      bool onto = false;
      for_tiles([&](const at::Tensor& w_VH, const Redistribution& copy, std::int64_t first_id) {
        const at::Tensor grad_w_VH = gradient_of_tile(w_VH);
        for_token_tiles(w_VH, first_id, [&](std::int64_t first, const LogitsTile& tile) {
          add_gradients(kernels.loss_gradient, first, tile, w_VH, grad_w_VH, !onto);
        });
        scatter(grad_w_VH, copy);
        onto = true;
      });
    }
    const HostScope library_memory;
    frame_.result->losses = statistics_.log_sum_exp() - statistics_.label;
  }

 private:
  template <typename Body>
  void for_tiles(Body body) {
    std::int64_t first_id = 0;
    for (const Redistribution& copy : op_.copies) {
      const std::int64_t H = x_TH_.size(1);
      const std::int64_t rows =
          copy.to().elements(place_in_domain(frame_.program(), frame_.rank->seat)) / H;
      const at::Tensor w_VH = frame_.empty(rows, H, frame_.activation);
      frame_.rank->domain
          ->exchange(
              frame_.parameters->stack,
              w_VH,
              copy.table(),
              frame_.call("cross_entropy", frame_.stack_lasts()))
          ->wait();
      body(w_VH, copy, first_id);
      first_id += rows;
    }
  }

  // Calls body(first token, tile) for some tokens after the other.
  template <typename Body>
  void for_token_tiles(const at::Tensor& w_VH, std::int64_t first_id, Body body) {
    const std::int64_t height = frame_.program().shape.tiles.logits_tokens(w_VH.size(0));
    const std::int64_t tokens = x_TH_.size(0);
    const at::Tensor logits =
        frame_.empty(std::min(height, tokens), w_VH.size(0), frame_.statistic);
    const at::Tensor slopes = cap_ > 0 && d_TH_.defined()
                                  ? frame_.empty(logits.size(0), logits.size(1), frame_.statistic)
                                  : at::Tensor();
    for (std::int64_t t = 0; t < tokens; t += height) {
      const std::int64_t count = std::min(height, tokens - t);
      const LogitsTile tile{
          .logits = logits.narrow(0, 0, count),
          .labels = labels_T_.narrow(0, t, count),
          .first_id = first_id};
      frame_.product(x_TH_.narrow(0, t, count), w_VH.t(), tile.logits, false);
      if (const auto bias = bias_of(tile, frame_.parameters->vectors); bias.defined()) {
        frame_.kernels().add_to_rows(tile.logits, bias, 1);
      }
      if (cap_ > 0) {
        at::Tensor(tile.logits).div_(cap_).tanh_();
        if (slopes.defined()) {
          at::Tensor slope = slopes.narrow(0, 0, count);
          at::square_out(slope, tile.logits).neg_().add_(1);
          slope_ = slope;
        }
        at::Tensor(tile.logits).mul_(cap_);
      }
      body(t, tile);
    }
    slope_ = at::Tensor();
  }

  // Makes the tile's gradient by `make` and adds what it gives to those of x and w.
  void add_gradients(
      decltype(Kernels::loss_gradient) make,
      std::int64_t first_token,
      const LogitsTile& tile,
      const at::Tensor& w_VH,
      const at::Tensor& grad_w_VH,
      bool fresh) {
    const Kernels& kernels = frame_.kernels();
    const std::int64_t count = tile.logits.size(0);
    const auto mine = statistics_.narrow(first_token, count);
    const at::Tensor bias_sums = bias_of(tile, frame_.parameters->vector_grads);
    // A bias's gradient sums up what is not rounded yet, and so is what a cap multiplies.
    const bool in_place = bias_sums.defined() || cap_ > 0 || frame_.activation == frame_.statistic;
    at::Tensor g =
        in_place ? tile.logits : frame_.empty(count, tile.logits.size(1), frame_.activation);
    make(tile, mine, frame_.loss_scale, g);
    if (cap_ > 0) {
      g.mul_(slope_);
    }
    if (bias_sums.defined()) {
      kernels.add_sum_of_rows(g, bias_sums, 1);
    }
    g = g.to(frame_.activation);  // itself where that is its type
    frame_.product(g, w_VH, d_TH_.narrow(0, first_token, count), !fresh);
    if (grad_w_VH.defined()) {
      frame_.product(g.t(), x_TH_.narrow(0, first_token, count), grad_w_VH, true);
    }
  }

  // The tile's entries of the logits' bias, or of its gradient; undefined where there is none, as
  // of a bias that is not trained.
  at::Tensor bias_of(const LogitsTile& tile, const std::vector<at::Tensor>& vectors) const {
    if (op_.vectors.empty()) {
      return {};
    }
    const at::Tensor& whole = vectors.at(idx(op_.vectors.begin));
    return whole.defined() ? whole.narrow(0, tile.first_id, tile.logits.size(1)) : whole;
  }

  at::Tensor gradient_of_tile(const at::Tensor& w_VH) const {
    if (!d_TH_.defined() || op_.frozen) {
      return {};
    }
    return frame_.empty(w_VH.size(0), w_VH.size(1), frame_.statistic).zero_();
  }

  void scatter(const at::Tensor& grad_w_VH, const Redistribution& copy) {
    if (grad_w_VH.defined()) {
      frame_.rank->domain
          ->exchange_sum(
              grad_w_VH,
              frame_.parameters->stack_grad,
              copy.table(),
              true,
              frame_.call("cross_entropy gradient"))
          ->wait();
    }
  }

  Frame& frame_;
  const Op& op_;
  at::Tensor x_TH_;
  at::Tensor d_TH_;
  at::Tensor labels_T_;  // negative: none
  LossStatistics statistics_;
  double cap_ = frame_.program().shape.logit_cap;
  at::Tensor slope_ = {};  // of the cap, at the tile's logits
};

}  // namespace

void cross_entropy(Frame& frame, const Op& op) { Loss(frame, op).run(); }

void cross_entropy_adjoint(Frame& frame, const Op& op) {
  frame.gradients[idx(op.in[0])] = frame.value(op.out[0]);
}

}  // namespace paradyse::ops
