// What training does on the device beside a step's forward and backward: AdamW, the norm of all
// gradients, and memory that is counted and may run out.
#include <cmath>

#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/plan.h"
#include "paradyse/run/accountant.h"
#include "paradyse/run/gradients.h"
#include "src/plan/model/text/text_shape.h"
#include "src/run/device/device.h"
#include "src/run/weights/optimizer.h"
#include "tests/device/device.h"
#include "tests/support/models.h"
#include "tests/support/plans.h"

namespace paradyse {
namespace {

using test::device;
using test::off;
using test::random_numbers;

// A weight that is trained, and its gradient, by which AdamW is told of it; and the plain thing.
struct Trained {
  at::Tensor weight;  // as ops read it
  at::Tensor master;
  at::Tensor gradient;
  double decay = 0;
  at::Tensor plain;  // float64
  at::Tensor mean;
  at::Tensor variance;
};

std::vector<Trained> all_of(Parameters& parameters, double decay) {
  std::vector<Trained> all;
  const auto add = [&](const at::Tensor& weight,
                       const at::Tensor& master,
                       const at::Tensor& gradient,
                       double of_kind) {
    const at::Tensor plain = master.to(c10::Device(at::kCPU), at::kDouble, false, /*copy=*/true);
    all.push_back(
        {weight, master, gradient, of_kind, plain, at::zeros_like(plain), at::zeros_like(plain)});
  };
  for (PartParameters& part : parameters.parts()) {
    if (part.stack.defined() && part.stack.numel() > 0) {
      add(part.stack, part.stack_master, part.stack_grad, decay);
    }
    for (std::size_t v = 0; v < part.vectors.size(); ++v) {
      add(part.vectors[v], part.vector_masters[v], part.vector_grads[v], 0);
    }
  }
  return all;
}

// Loshchilov & Hutter 2019, with its bias corrections.
void plain_step(
    Trained& one, const at::Tensor& g, const RunConfig::Optimizer& o, double lr, int t) {
  one.plain.mul_(1 - lr * one.decay);
  one.mean.mul_(o.beta1).add_(g, 1 - o.beta1);
  one.variance.mul_(o.beta2).add_(g * g, 1 - o.beta2);
  const at::Tensor root = (one.variance / (1 - std::pow(o.beta2, t))).sqrt();
  one.plain.sub_(lr / (1 - std::pow(o.beta1, t)) * one.mean / (root + o.eps));
}

TEST(Training, AdamWIsThePlainOne) {
  const TextShape model = test::llama({.heads = 4, .kv_heads = 2, .ffn = 37, .vocab = 101});
  RunConfig::Optimizer options;
  options.weight_decay = 0.3;
  for (const Dtype dtype : {Dtype::float64, Dtype::float32, Dtype::bfloat16, Dtype::float16}) {
    SCOPED_TRACE(to_string(dtype));
    run_local_ranks(1, {}, [&](Communicators& communicators) {
      const c10::InferenceMode no_autograd;
      RankSession session(
          communicators,
          text_model(model),
          {.dtype = dtype, .masters = Masters::on_device, .device = device()});
      Parameters& parameters = session.parameters();
      parameters.initialize(1);
      AdamW optimizer(parameters, options);
      std::vector<Trained> all = all_of(parameters, options.weight_decay);
      for (int t = 1; t <= 4; ++t) {
        double squares = 0;
        for (std::size_t i = 0; i < all.size(); ++i) {
          const at::Tensor drawn = random_numbers(all[i].gradient.sizes().vec(), 100 * idx(t) + i);
          all[i].gradient.copy_(drawn);
          // as the device has it
          const at::Tensor g = all[i].gradient.to(c10::Device(at::kCPU), at::kDouble);
          squares += g.square().sum().item<double>();
          plain_step(all[i], 0.5 * g, options, 0.01, t);
        }
        EXPECT_NEAR(
            gradient_norm(parameters, session.domain()).item<double>(),
            std::sqrt(squares),
            (dtype == Dtype::float64 ? 1e-12 : 1e-5) * std::sqrt(squares));
        optimizer.step(0.01, 0.5);
        for (const double overflowed : {std::nan(""), HUGE_VAL, 0.0}) {  // nothing changes
          optimizer.step(0.01, overflowed);
          optimizer.uncount();
        }
        for (const Trained& one : all) {
          EXPECT_LE(off(one.master, one.plain), dtype == Dtype::float64 ? 1e-12 : 1e-6);
          EXPECT_TRUE(at::equal(one.weight, one.master.to(one.weight.scalar_type())))
              << "ops read the master, rounded";
        }
      }
    });
  }
}

TEST(Memory, IsCountedWhereItIs) {
  Accountant memory("rank 0", 1 << 20, device());
  {
    const MemoryScope scope(memory, Category::transient, "a test");
    const auto bytes = at::TensorOptions().dtype(at::kByte).device(device());
    at::Tensor first = at::empty({1000}, bytes);
    EXPECT_EQ(memory.live_bytes(), 1000);
    const at::Tensor second = at::empty({500000}, bytes);
    EXPECT_EQ(memory.live_bytes(), 501000);
    Accountant::recategorize(first, Category::saved);
    EXPECT_EQ(memory.live_bytes(Category::saved), 1000);
    EXPECT_EQ(memory.live_bytes(Category::transient), 500000);
    EXPECT_THROW(at::empty({600000}, bytes), OutOfMemory);
    EXPECT_EQ(memory.live_bytes(), 501000);
    first = at::Tensor();
    EXPECT_EQ(memory.live_bytes(), 500000);
    const at::Tensor third = at::empty({548576}, bytes);  // to the last byte
    EXPECT_EQ(memory.live_bytes(), 1 << 20);
  }
  EXPECT_EQ(memory.live_bytes(), 0);
  EXPECT_EQ(memory.peak_bytes(), 1 << 20);
}

// Running out of it is an error that names the rank, and the next step is none the worse.
TEST(Memory, ALackIsGoneOnFrom) {
  const TextShape model = test::llama({.heads = 6, .kv_heads = 2, .head_dim = 8, .hidden = 24});
  const std::vector<std::int64_t> lengths = {90, 31};
  const auto documents = test::random_documents(lengths, model.vocab, 3);
  for (const int ranks : {1, 2}) {
    const Plan plan = test::uniform_plan(model, lengths, ranks, text_layer("UlyssesZ", "gather"));
    GradientRequest request{
        .model = text_model(model),
        .fill = [](Parameters& parameters) { parameters.initialize(1); },
        .plan = &plan,
        .items = items_of(documents),
        .dtype = Dtype::float32,
        .device = device()};
    const GradientAnswer undisturbed = gradients(request);
    const std::int64_t peak = undisturbed.ranks.front().peak_bytes;
    request.memory_per_rank = peak * 3 / 4;
    try {
      gradients(request);
      ADD_FAILURE() << "three quarters of the peak sufficed";
    } catch (const OutOfMemory& error) {
      EXPECT_NE(std::string(error.what()).find("rank "), std::string::npos) << error.what();
    }
    request.memory_per_rank = 0;
    const GradientAnswer after = gradients(request);
    EXPECT_NEAR(after.batch.loss, undisturbed.batch.loss, 1e-5 * undisturbed.batch.loss);
    EXPECT_EQ(after.ranks.front().peak_bytes, peak);
  }
}

}  // namespace
}  // namespace paradyse
