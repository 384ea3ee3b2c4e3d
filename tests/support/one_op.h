// Runs the ops of a small program forward and backward on every rank of a group, outside of any
// timeline, and holds their adjoints against central differences.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "src/plan/model/text/text_shape.h"
#include "src/run/ops/ops.h"

namespace paradyse::test {

// A program without weights of its own, to be filled in.
inline Program one_op(Documents documents, std::int64_t head_dim = 0) {
  Program program;
  program.part = "part";
  program.strategy = "test";
  program.domain = documents.ranks();
  program.documents = std::move(documents);
  program.shape.head_dim = head_dim;
  return program;
}

inline ValueId add_value(
    Program& program,
    const std::string& name,
    Layout layout,
    Element element = Element::activation) {
  program.values.push_back({.name = name, .layout = std::move(layout), .element = element});
  return static_cast<ValueId>(program.values.size()) - 1;
}

inline Op op_of(
    OpKind kind,
    std::vector<ValueId> in,
    std::vector<ValueId> out,
    std::vector<ValueId> needs = {}) {
  return {.kind = kind, .in = std::move(in), .out = std::move(out), .needs = std::move(needs)};
}

inline void add_ops(Program& program, const std::vector<Op>& ops) {
  for (const Op& op : ops) {
    append(program, op);
  }
}

// What one rank gives to the ops.
struct Local {
  std::map<ValueId, at::Tensor> inputs = {};  // values that no op makes
  at::Tensor stack = {};                      // the part's weights on this rank
  std::vector<at::Tensor> vectors = {};
  MicroBatch batch = {};
};

struct Types {
  at::ScalarType activation = at::kDouble;
  at::ScalarType statistic = at::kDouble;
  c10::Device device = c10::Device(c10::kCPU);
};

// Computes what the model says, but for the head width that the program was made with.
inline Program shaped(Program program, const TextShape& model) {
  const std::int64_t head_dim = program.shape.head_dim;
  program.shape = Model(model).typical_part();
  program.shape.head_dim = head_dim;
  return program;
}

// The ops of `program` on one rank, forward at construction.
class OpRun {
 public:
  OpRun(
      const Program& program,
      const TextShape& model,
      Communicator& group,
      const Local& local,
      double loss_scale = 1,
      Types types = {})
      : OpRun(shaped(program, model), group, local, loss_scale, types) {}
  OpRun(
      const Program& program,
      Communicator& group,
      const Local& local,
      double loss_scale = 1,
      Types types = {})
      : body_(std::make_shared<ScheduledPart::Body>(
            ScheduledPart::Body{.program = program, .schedule = {}})),
        numbers_(types.device, 0) {
    part_ = {.layer = 0, .body = body_};
    rank_ = {
        .seat = {group.rank(), group.rank()},
        .group = &group,
        .domain = &group,
        .kernels = &kernels_for(types.device),
        .attention_dense_from = 512};
    parameters_.stack = local.stack;
    parameters_.vectors = local.vectors;
    if (local.stack.defined()) {
      parameters_.stack_grad = at::zeros_like(local.stack, types.statistic);
    }
    for (const at::Tensor& vector : local.vectors) {
      parameters_.vector_grads.push_back(at::zeros_like(vector, types.statistic));
    }
    std::int64_t longest = 0;
    for (const std::int64_t n : program.documents.lengths) {
      longest = std::max(longest, n);
    }
    if (const auto rope = program.shape.rope) {
      rope_ = rope_table(
          *rope,
          body_->program.shape.head_dim,
          longest,
          types.statistic,
          *rank_.kernels,
          types.device);
    }
    batch_ = local.batch;
    if (batch_.packed.lengths.empty()) {
      batch_.packed = program.documents;
    }
    frame_ = Frame{
        .part = &part_,
        .rank = &rank_,
        .batch = &batch_,
        .numbers = &numbers_,
        .rope = &rope_,
        .parameters = &parameters_,
        .result = &result_,
        .loss_scale = loss_scale,
        .activation = types.activation,
        .statistic = types.statistic,
        .device = types.device,
        .values = std::vector<at::Tensor>(program.values.size()),
        .gradients = std::vector<at::Tensor>(program.values.size()),
        .pending = {}};
    frame_.pending.resize(program.values.size());
    for (const auto& [id, tensor] : local.inputs) {
      frame_.values[static_cast<std::size_t>(id)] = tensor.clone();  // ops may work in place
    }
    for (const Op& op : body_->program.ops) {
      implementation(op.kind).forward(frame_, op);
    }
  }
  OpRun(const OpRun&) = delete;
  OpRun& operator=(const OpRun&) = delete;

  // The adjoints, last op first, from the gradients that are set.
  void backward() {
    const std::vector<Op>& ops = body_->program.ops;
    for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
      implementation(op->kind).adjoint(frame_, *op);
    }
  }

  at::Tensor& value(ValueId id) { return frame_.value(id); }
  at::Tensor& gradient(ValueId id) { return frame_.gradients[static_cast<std::size_t>(id)]; }
  PartParameters& parameters() { return parameters_; }
  LossSums losses() const {
    const at::Tensor& losses = result_.losses;
    return loss_sums(batch_, losses.defined() ? losses.cpu() : losses, result_.numbers_a_row);
  }

 private:
  std::shared_ptr<const ScheduledPart::Body> body_;
  ScheduledPart part_;
  RankContext rank_;
  PartParameters parameters_;
  RopeTable rope_;
  MicroBatch batch_;
  BatchNumbers numbers_;
  MicroBatchResult result_;
  Frame frame_;
};

struct AdjointCase {
  std::string name;
  Program program;
  TextShape model;
  std::function<Local(int rank)> local = {};
  std::vector<ValueId> outputs = {};       // what the test function weighs
  std::vector<ValueId> inputs = {};        // what it is differentiated by, beside stack and vectors
  std::vector<ValueId> accumulating = {};  // inputs whose gradient is there before, to be added to
  double loss_scale = 0;                   // weight of the losses (cross_entropy)
};

// f = sum over ranks and outputs of <g, output> + loss_scale * losses, g random.  For every rank's
// every input, weight and vector element: the adjoint's gradient is (f(x + h) - f(x - h)) / 2h.
// Of tensors with more than `most` elements, that many are looked at.
inline void expect_adjoint(const AdjointCase& c, int ranks, std::int64_t most = 150) {
  SCOPED_TRACE(c.name + " on " + std::to_string(ranks) + " ranks");
  run_local_ranks(ranks, {}, [&](Communicators& communicators) {
    const c10::InferenceMode no_autograd;
    Communicator& world = communicators.world();
    const int me = world.rank();
    const Local local = c.local(me);
    const auto weight_of = [&](const at::Tensor& like, int seed) {  // sin: fixed, generic
      return at::sin(at::arange(like.numel(), at::kDouble) * 1.7 + seed + 10 * me)
          .view(like.sizes());
    };
    const auto evaluate = [&] {
      OpRun run(c.program, c.model, world, local, c.loss_scale);
      double f = 0;
      for (const ValueId out : c.outputs) {
        f += (run.value(out) * weight_of(run.value(out), out)).sum().item<double>();
      }
      for (const double loss : run.losses().losses) {
        f += c.loss_scale * loss;
      }
      const at::Tensor all = at::full({1}, f, at::kDouble);
      world.all_reduce(all, {.op = "f", .part = ""});
      return all.item<double>();
    };

    OpRun run(c.program, c.model, world, local, c.loss_scale);
    for (const ValueId out : c.outputs) {
      run.gradient(out) = weight_of(run.value(out), out);
    }
    std::map<ValueId, at::Tensor> before;
    for (const ValueId id : c.accumulating) {
      before[id] = weight_of(local.inputs.at(id), 99);
      run.gradient(id) = before[id].clone();
    }
    run.backward();
    std::vector<std::tuple<std::string, at::Tensor, at::Tensor>> checks;  // name, x, gradient
    for (const ValueId id : c.inputs) {
      at::Tensor gradient = run.gradient(id);
      ASSERT_TRUE(gradient.defined()) << id;
      if (before.contains(id)) {
        gradient = gradient - before[id];
      }
      checks.emplace_back(
          c.program.values[static_cast<std::size_t>(id)].name, local.inputs.at(id), gradient);
    }
    if (local.stack.defined()) {
      checks.emplace_back("stack", local.stack, run.parameters().stack_grad);
    }
    for (std::size_t v = 0; v < local.vectors.size(); ++v) {
      checks.emplace_back("vector", local.vectors[v], run.parameters().vector_grads[v]);
    }

    for (int turn = 0; turn < ranks; ++turn) {
      for (const auto& [name, x, gradient] : checks) {
        ASSERT_EQ(gradient.sizes(), x.sizes()) << name;
        const at::Tensor count = at::full({1}, x.numel(), at::kLong);
        world.broadcast(count, turn, {.op = "count", .part = ""});
        const std::int64_t n = count.item<std::int64_t>();
        const std::int64_t steps = std::min(n, most);
        for (std::int64_t s = 0; s < steps; ++s) {
          const std::int64_t i = n <= most ? s : (s * 2654435761LL + s) % n;
          double* element = me == turn ? x.mutable_data_ptr<double>() + i : nullptr;
          const double h = 1e-5;
          const double at_x = me == turn ? *element : 0;
          if (me == turn) {
            *element = at_x + h;
          }
          const double above = evaluate();
          if (me == turn) {
            *element = at_x - h;
          }
          const double below = evaluate();
          if (me == turn) {
            *element = at_x;
            const double expected = (above - below) / (2 * h);
            ASSERT_NEAR(
                gradient.contiguous().const_data_ptr<double>()[i],
                expected,
                2e-8 * std::max({1.0, std::abs(above), std::abs(expected)}))
                << name << "[" << i << "] of rank " << me;
          }
        }
      }
    }
  });
}

}  // namespace paradyse::test
