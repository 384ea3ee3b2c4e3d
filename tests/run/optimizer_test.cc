// Sharded AdamW, clipping and the learning rate, against their formulas on whole tensors.
#include "src/run/weights/optimizer.h"

#include <cmath>

#include <gtest/gtest.h>

#include "paradyse/plan/plan.h"
#include "paradyse/run/accountant.h"
#include "paradyse/run/gradients.h"
#include "src/plan/model/text/text_shape.h"
#include "tests/support/models.h"
#include "tests/support/plans.h"
#include "tests/support/pretended_device.h"

namespace paradyse {
namespace {

TEST(LearningRate, WarmsUpThenFollowsACosine) {
  RunConfig::Optimizer o;
  o.lr = 2.0;
  o.warmup_steps = 4;
  o.min_lr_ratio = 0.25;
  EXPECT_DOUBLE_EQ(learning_rate(o, 0, 14), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(o, 3, 14), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(o, 4, 14), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(o, 9, 14), 0.5 * (2.0 + 0.5));  // half-way down the cosine
  EXPECT_NEAR(learning_rate(o, 14, 14), 0.5, 1e-12);
  o.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(learning_rate(o, 0, 1), 2.0);
}

// What AdamW with decoupled decay does, written down for one whole tensor.
struct PlainAdamW {
  at::Tensor m, v;
  int t = 0;

  void step(
      at::Tensor& w, const at::Tensor& g, double lr, const RunConfig::Optimizer& o, double decay) {
    if (!m.defined()) {
      m = at::zeros_like(w);
      v = at::zeros_like(w);
    }
    ++t;
    w = w * (1 - lr * decay);
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    const at::Tensor mean = m / (1 - std::pow(o.beta1, t));
    const at::Tensor root = (v / (1 - std::pow(o.beta2, t))).sqrt();
    w = w - lr * mean / (root + o.eps);
  }
};

// Three steps with clipping, on 1 to 4 ranks and under each strategy: the weights are those of
// plain AdamW on one rank.
TEST(AdamW, IsThePlainOneOnEveryNumberOfRanks) {
  const TextShape model =
      test::llama({.heads = 6, .kv_heads = 2, .ffn = 13, .vocab = 31, .tied = true});
  const std::vector<std::int64_t> lengths = {1, 9, 2, 17};
  const auto documents = test::random_documents(lengths, model.vocab, 3);
  const std::vector<Item> items = items_of(documents);
  RunConfig::Optimizer options;
  options.lr = 0.01;
  options.weight_decay = 0.3;
  options.max_grad_norm = 0.5;
  const test::Weights start = test::random_weights(model, 5);
  const auto layers = [&](const std::string& attention, const std::string& mlp) {
    return std::vector<LayerChoice>(
        static_cast<std::size_t>(model.layers), text_layer(attention, mlp));
  };

  test::Weights expected = start;
  std::map<std::string, PlainAdamW> plain;
  for (int s = 0; s < 3; ++s) {
    const Plan plan = uniform_plan(model, lengths, 1, layers("DataZ", "gather"));
    GradientRequest request{.model = text_model(model), .plan = &plan, .items = items};
    request.fill = [&](Parameters& parameters) { test::fill(parameters, expected); };
    const GradientAnswer answer = gradients(request);
    double squares = 0;
    for (const auto& [name, gradient] : answer.gradients) {
      squares += gradient.pow(2).sum().item<double>();
    }
    const double scale = std::min(1.0, options.max_grad_norm / std::sqrt(squares));
    EXPECT_LT(scale, 1.0) << "clipping is to be tested";
    for (auto& [name, weight] : expected) {
      plain[name].step(
          weight,
          answer.gradients.at(name) * scale,
          0.01,
          options,
          weight.dim() == 2 ? options.weight_decay : 0.0);
    }
  }

  for (const int p : {1, 2, 3, 4}) {
    for (const auto& [attention, mlp] : test::pure_strategies()) {
      SCOPED_TRACE(std::string(attention) + " on " + std::to_string(p));
      const Plan plan = uniform_plan(model, lengths, p, layers(attention, mlp));
      std::map<std::string, at::Tensor> reached;
      run_local_ranks(p, {}, [&](Communicators& communicators) {
        RankSession session(communicators, text_model(model), {.dtype = Dtype::float64});
        Parameters& parameters = session.parameters();
        test::fill(parameters, start);
        AdamW optimizer(parameters, options);
        for (int s = 0; s < 3; ++s) {
          parameters.zero_gradients();
          session.play(plan, {.items = items}, /*backward=*/true);
          const at::Tensor norm = gradient_norm(parameters, session.domain());
          optimizer.step(0.01, gradient_factor(norm, options.max_grad_norm, 1));
        }
        collect(
            parameters,
            Which::weights,
            session.domain(),
            [&](const std::string& name, const at::Tensor& tensor) {
              reached[name] = tensor.clone();
            });
      });
      ASSERT_EQ(reached.size(), expected.size());
      for (const auto& [name, weight] : expected) {
        EXPECT_LE((reached.at(name) - weight).abs().max().item<double>(), 1e-9) << name;
      }
    }
  }
}

// State on the host is updated to the same bits, and no rank's memory has it.
TEST(AdamW, LeavesItsStateOnTheHost) {
  const TextShape model = test::llama({.heads = 4, .kv_heads = 2, .ffn = 12, .vocab = 16});
  const auto documents = test::random_documents({7, 5}, model.vocab, 3);
  const std::vector<Item> items = items_of(documents);
  const Plan plan = test::uniform_plan(model, {7, 5}, 2, text_layer("UlyssesZ", "gather"));
  const auto trained = [&](bool offload, Dtype dtype) {
    RunConfig::Optimizer options;
    options.offload = offload;
    std::map<std::string, at::Tensor> reached;
    run_local_ranks(2, {}, [&](Communicators& communicators) {
      RankSession session(
          communicators,
          text_model(model),
          {.dtype = dtype, .masters = offload ? Masters::on_host : Masters::on_device});
      session.parameters().initialize(1);
      AdamW optimizer(session.parameters(), options);
      Precision precision = precision_of(dtype);
      const std::int64_t with = precision.of_weight(Keeps::optimizer);
      precision.optimizer_on_host = true;
      const std::int64_t state = with - precision.of_weight(Keeps::optimizer);
      EXPECT_EQ(state, dtype == Dtype::float64 ? 16 : narrow(dtype) ? 12 : 8);
      EXPECT_EQ(
          session.memory().live_bytes(Category::optimizer),
          offload ? 0 : state * stored_elements(model, 2, communicators.rank()));
      for (int s = 0; s < 3; ++s) {
        session.parameters().zero_gradients();
        session.play(plan, {.items = items}, /*backward=*/true);
        optimizer.step(0.01, 0.5);
      }
      collect(
          session.parameters(),
          Which::weights,
          session.domain(),
          [&](const std::string& name, const at::Tensor& tensor) {
            reached[name] = tensor.clone();
          });
    });
    return reached;
  };
  for (const Dtype dtype : {Dtype::float32, Dtype::float64, Dtype::bfloat16}) {
    const auto here = trained(false, dtype);
    const auto host = trained(true, dtype);
    ASSERT_FALSE(here.empty());
    for (const auto& [name, weight] : here) {
      EXPECT_TRUE(at::equal(host.at(name), weight)) << name << " " << to_string(dtype);
    }
  }
}

TEST(AdamW, MultipliesGradientsByTheClippingFactorOfTheirNorm) {
  const auto factor = [](double norm, double max_grad_norm, double loss_scale) {
    return gradient_factor(at::full({}, norm, at::kDouble), max_grad_norm, loss_scale)
        .item<double>();
  };
  EXPECT_EQ(factor(4, 1, 1), 0.25);
  EXPECT_EQ(factor(3, 0.7, 1), 0.7 / 3);
  EXPECT_EQ(factor(0.5, 1, 1), 1);
  EXPECT_EQ(factor(4, 1, 1024), 0.25 / 1024);
  EXPECT_EQ(factor(4, 0, 1), 1) << "no clipping";
  EXPECT_EQ(factor(0, 1, 1), 1);
  EXPECT_EQ(factor(0, 0, 1), 1);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double max_grad_norm : {0.0, 1.0}) {
    for (const double norm : {infinity, std::numeric_limits<double>::quiet_NaN()}) {
      const double made = factor(norm, max_grad_norm, 1);
      EXPECT_FALSE(made > 0 && made < infinity) << norm << ", clipped at " << max_grad_norm;
    }
  }
}

void expect_unchanged_by_overflows(c10::Device device, Dtype dtype, bool offload) {
  const TextShape model = test::llama({.heads = 4, .kv_heads = 2, .ffn = 12, .vocab = 16});
  run_local_ranks(1, {}, [&](Communicators& communicators) {
    const c10::InferenceMode no_autograd;
    RankSession session(
        communicators,
        text_model(model),
        {.dtype = dtype,
         .masters = offload ? Masters::on_host : Masters::on_device,
         .device = device});
    Parameters& parameters = session.parameters();
    parameters.initialize(1);
    RunConfig::Optimizer options;
    options.offload = offload;
    AdamW optimizer(parameters, options);
    const auto state = [&] {
      std::vector<at::Tensor> all;
      for (const PartParameters& part : parameters.parts()) {
        if (part.stack_master.defined() && part.stack_master.numel() > 0) {
          const AdamW::Moments moments = optimizer.moments(part.stack_master);
          for (const at::Tensor& tensor :
               {part.stack_master, part.stack, moments.mean, moments.variance}) {
            all.push_back(tensor.to(at::kCPU, tensor.scalar_type(), false, /*copy=*/true));
          }
        }
      }
      return all;
    };
    const auto fill_gradients = [&] {
      for (const PartParameters& part : parameters.parts()) {
        if (part.stack_grad.defined()) {
          at::Tensor(part.stack_grad).fill_(1e-3);
        }
      }
    };
    fill_gradients();
    optimizer.step(0.01, 1.0);
    const std::vector<at::Tensor> before = state();
    for (const double factor :
         {std::numeric_limits<double>::quiet_NaN(),
          std::numeric_limits<double>::infinity(),
          0.0,
          -1.0}) {
      optimizer.step(0.01, factor);
      optimizer.uncount();
      const std::vector<at::Tensor> after = state();
      ASSERT_FALSE(after.empty());
      for (std::size_t i = 0; i < before.size(); ++i) {
        EXPECT_TRUE(at::equal(after[i], before[i])) << factor;
      }
    }
    EXPECT_EQ(optimizer.steps(), 1);
    fill_gradients();
    optimizer.step(0.01, 1.0);
    EXPECT_FALSE(at::equal(state().front(), before.front()));
  });
}

// By what CPUs do, and by what ATen does on a device whose numbers the host does not read.
TEST(AdamW, ChangesNothingWhereGradientsOverflowed) {
  test::begin_judging();
  use_kernels_of_other_devices(aten_kernels());
  for (const c10::Device device : {c10::Device(c10::kCPU), test::kPretended}) {
    for (const Dtype dtype : {Dtype::float32, Dtype::float16}) {
      for (const bool offload : {false, true}) {
        expect_unchanged_by_overflows(device, dtype, offload);
      }
    }
  }
}

TEST(LossScale, HalvesAtOverflowsAndDoublesAfterManySteps) {
  LossScale off(false);
  EXPECT_TRUE(off.update(false));
  EXPECT_FALSE(off.update(true));
  EXPECT_EQ(off.value(), 1);

  LossScale scale(true);
  EXPECT_EQ(scale.value(), 65536);
  EXPECT_FALSE(scale.update(true));
  EXPECT_EQ(scale.value(), 32768);
  for (std::int64_t i = 0; i + 1 < LossScale::kGrowthInterval; ++i) {
    EXPECT_TRUE(scale.update(false));
  }
  EXPECT_EQ(scale.value(), 32768);
  EXPECT_TRUE(scale.update(false));
  EXPECT_EQ(scale.value(), 65536);
  for (int i = 0; i < 100; ++i) {
    scale.update(true);
  }
  EXPECT_EQ(scale.value(), 1);
}

// Updates far below the spacing of a narrow type add up all the same, and what ops read is the
// rounded master.
TEST(AdamW, TrainsMastersOfNarrowWeights) {
  const TextShape model = test::llama({.heads = 4, .kv_heads = 2, .ffn = 12, .vocab = 16});
  RunConfig::Optimizer options;
  const auto trained = [&](Dtype dtype) {
    auto parameters = std::make_unique<Parameters>(
        text_model(model), 1, 0, parameter_types(dtype), /*gradients=*/true, Masters::on_device);
    parameters->initialize(1);
    AdamW optimizer(*parameters, options);
    for (int s = 0; s < 60; ++s) {
      for (const PartParameters& part : parameters->parts()) {
        if (part.stack_grad.defined()) {
          at::Tensor(part.stack_grad).fill_(1e-3);
        }
        for (const at::Tensor& grad : part.vector_grads) {
          at::Tensor(grad).fill_(-1e-3);
        }
      }
      optimizer.step(1e-5, 1.0);
    }
    return parameters;
  };
  const auto wide = trained(Dtype::float32);
  for (const Dtype dtype : {Dtype::bfloat16, Dtype::float16}) {
    const auto narrow = trained(dtype);
    for (std::size_t i = 0; i < wide->parts().size(); ++i) {
      const PartParameters& part = narrow->parts()[i];
      const PartParameters& judge = wide->parts()[i];
      if (part.stack.defined()) {
        EXPECT_TRUE(at::equal(part.stack_master, judge.stack)) << to_string(dtype);
        EXPECT_TRUE(at::equal(part.stack, judge.stack.to(part.stack.scalar_type())))
            << to_string(dtype);
      }
      for (std::size_t v = 0; v < part.vectors.size(); ++v) {
        EXPECT_TRUE(at::equal(part.vector_masters[v], judge.vectors[v])) << to_string(dtype);
        EXPECT_TRUE(at::equal(part.vectors[v], judge.vectors[v].to(part.vectors[v].scalar_type())))
            << to_string(dtype);
        // 60 updates of 1e-5 each from 1 on: together more than half of what lies between float16's
        // numbers there (4.9e-4), each far below it; and below half of bfloat16's (3.9e-3).
        const at::Tensor ones = at::ones_like(judge.vectors[v]);
        EXPECT_TRUE(at::allclose(part.vector_masters[v], ones + 6e-4, 0, 1e-5)) << to_string(dtype);
        EXPECT_EQ(at::equal(part.vectors[v].to(at::kFloat), ones), dtype == Dtype::bfloat16)
            << to_string(dtype);
      }
    }
  }
}

}  // namespace
}  // namespace paradyse
