// Linear and cross-entropy in one, with the gradient made along the way: logits exist in tiles
// only.
//
// Words.  A *vocabulary tile* is some rows of the head, gathered; a *token tile* some of the rank's
// tokens; their product a tile of logits.  With one vocabulary tile a token tile's gradient is made
// at once (3 products); with several, a first pass finds each token's log-sum-exp and a second one
// makes the tiles again (4 products).  Liger-Kernel (Hsu et al. 2024) does the former on GPUs.
//
// Beside the products all is ATen's operations on the tensors' device: the host waits for it once,
// at the end, whatever the number of tiles.
#include <algorithm>
#include <limits>

#include "paradyse/plan/index.h"
#include "paradyse/run/accountant.h"
#include "src/run/kernels/aten/aten_kernels.h"
#include "src/run/kernels/cpu/kernels.h"
#include "src/run/kernels/cpu/products.h"
#include "src/run/ops/frame.h"

namespace paradyse::ops {
namespace {

// Running softmax statistics of the rank's tokens over the vocabulary tiles seen so far.  On the
// device, where the host waits for none of them; a few numbers a token, nobody's (HostScope).
struct Running {
  at::Tensor maximum_T;
  at::Tensor sum_T;    // of exp(logit - maximum)
  at::Tensor label_T;  // the label's logit

  Running(std::int64_t tokens, c10::Device device) {
    const HostScope library_memory;
    const auto numbers = at::TensorOptions().dtype(at::kDouble).device(device);
    maximum_T = at::full({tokens}, -std::numeric_limits<double>::infinity(), numbers);
    sum_T = at::zeros({tokens}, numbers);
    label_T = at::zeros({tokens}, numbers);
  }

  [[nodiscard]] at::Tensor log_sum_exp(std::int64_t first, std::int64_t count) const {
    return maximum_T.narrow(0, first, count) + sum_T.narrow(0, first, count).log();
  }
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
        labels_T_(aten::indices(
            std::vector<std::int64_t>(frame.batch->labels.begin(), frame.batch->labels.end()),
            x_TH_.device())),
        running_(x_TH_.size(0), x_TH_.device()) {
    if (!op.out.empty()) {
      d_TH_ = frame.make(op.out[0]);
    }
  }

  void run() {
    const bool one_tile = op_.copies.size() == 1;
    for_tiles([&](const at::Tensor& w_VH, const Redistribution& copy, std::int64_t first_id) {
      const at::Tensor grad_w_VH = one_tile ? gradient_of_tile(w_VH) : at::Tensor();
      for_token_tiles(w_VH, first_id, [&](Tile& tile) {
        at::Tensor exponentials = update(tile);
        if (one_tile && d_TH_.defined()) {
          to_gradient(tile, exponentials, nullptr);
          add_gradients(tile, w_VH, grad_w_VH, true);
        }
      });
      scatter(grad_w_VH, copy);
    });
    if (!one_tile && d_TH_.defined()) {
      bool first = true;
      for_tiles([&](const at::Tensor& w_VH, const Redistribution& copy, std::int64_t first_id) {
        const at::Tensor grad_w_VH = gradient_of_tile(w_VH);
        for_token_tiles(w_VH, first_id, [&](Tile& tile) {
          to_gradient(tile, tile.logits, &running_);
          add_gradients(tile, w_VH, grad_w_VH, first);
        });
        scatter(grad_w_VH, copy);
        first = false;
      });
    }
    add_up();
  }

 private:
  template <typename Body>
  void for_tiles(Body body) {
    std::int64_t first_id = 0;
    for (const Redistribution& copy : op_.copies) {
      const std::int64_t H = x_TH_.size(1);
      const std::int64_t rows = copy.to().elements(frame_.rank->seat.domain_rank) / H;
      const at::Tensor w_VH = frame_.empty(rows, H, frame_.activation);
      frame_.rank->domain
          ->exchange(
              frame_.parameters->stack, w_VH, copy.table(), frame_.call("cross_entropy", true))
          ->wait();
      body(w_VH, copy, first_id);
      first_id += rows;
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

  // Where the labels of the tile's tokens stand in it: a column for each, the first or the last one
  // for a label outside, which is not `inside`.
  struct Labels {
    at::Tensor column;  // [tokens, 1]
    at::Tensor inside;
  };
  Labels labels_in(const Tile& tile) const {
    const at::Tensor labels = labels_T_.narrow(0, tile.first_token, tile.logits.size(0));
    const std::int64_t ids = tile.logits.size(1);
    const at::Tensor column = labels - tile.first_id;
    return {column.clamp(0, ids - 1).unsqueeze(1), column.ge(0).logical_and_(column.lt(ids))};
  }

  // Adds the tile to the running statistics.  Gives exp(logits - maximum) in the tile's place;
  // their maximum and sum are those of this tile when it is the only one.
  at::Tensor update(const Tile& tile) {
    at::Tensor logits = tile.logits;
    const at::Tensor maximum_here = logits.amax(1);
    const auto mine = [&](const at::Tensor& of_all) {
      return of_all.narrow(0, tile.first_token, logits.size(0));
    };
    {
      const HostScope library_memory;
      const Labels at_labels = labels_in(tile);
      const at::Tensor found = logits.gather(1, at_labels.column).squeeze(1).to(at::kDouble);
      mine(running_.label_T).copy_(at::where(at_labels.inside, found, mine(running_.label_T)));
    }
    logits.sub_(maximum_here.unsqueeze(1)).exp_();
    const at::Tensor sum_here = logits.sum(1);
    const HostScope library_memory;
    const at::Tensor m = maximum_here.to(at::kDouble);
    const at::Tensor both = at::maximum(m, mine(running_.maximum_T));
    const at::Tensor before = (mine(running_.maximum_T) - both).exp_();
    mine(running_.sum_T).mul_(before).add_(sum_here.to(at::kDouble).mul_((m - both).exp_()));
    mine(running_.maximum_T).copy_(both);
    return logits;
  }

  // The gradient of loss_scale * loss in the tile's place.  `running`: the tile holds logits still;
  // else it holds exponentials and running_ has their sums.
  void to_gradient(const Tile& tile, at::Tensor& logits, const Running* running) const {
    const HostScope library_memory;
    const std::int64_t rows = logits.size(0);
    const auto of_rows = [&](const at::Tensor& numbers) {
      return numbers.to(logits.scalar_type()).unsqueeze(1);
    };
    if (running != nullptr) {
      logits.sub_(of_rows(running->log_sum_exp(tile.first_token, rows))).exp_();
    } else {
      logits.mul_(of_rows(running_.sum_T.narrow(0, tile.first_token, rows).reciprocal()));
    }
    const Labels at_labels = labels_in(tile);
    logits.scatter_add_(1, at_labels.column, of_rows(at_labels.inside).neg_());
    const at::Tensor counted = labels_T_.narrow(0, tile.first_token, rows) >= 0;
    logits.mul_(of_rows(counted).mul_(frame_.loss_scale));
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
    return op_.vectors.empty()
               ? at::Tensor()
               : vectors.at(idx(op_.vectors.begin)).narrow(0, tile.first_id, tile.logits.size(1));
  }

  at::Tensor gradient_of_tile(const at::Tensor& w_VH) const {
    if (!d_TH_.defined()) {
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

  // The host takes every token's loss at once.  Documents are summed here, in the order of their
  // tokens: on a GPU it would be any order.
  void add_up() {
    const HostScope control;
    const MicroBatch& batch = *frame_.batch;
    const at::Tensor losses_T =
        (running_.log_sum_exp(0, x_TH_.size(0)) - running_.label_T).to(c10::Device(at::kCPU));
    const auto* losses = losses_T.const_data_ptr<double>();
    for (std::size_t t = 0; t < batch.labels.size(); ++t) {
      if (batch.labels[t] >= 0) {
        const auto document = idx(batch.document_of[t]);
        frame_.result->loss_sums[document] += losses[t];
        ++frame_.result->counts[document];
      }
    }
  }

  Frame& frame_;
  const Op& op_;
  at::Tensor x_TH_;
  at::Tensor d_TH_;
  at::Tensor labels_T_;  // negative: none
  Running running_;
};

}  // namespace

void cross_entropy(Frame& frame, const Op& op) { Loss(frame, op).run(); }

void cross_entropy_adjoint(Frame& frame, const Op& op) {
  frame.gradients[idx(op.in[0])] = frame.value(op.out[0]);
}

}  // namespace paradyse::ops
