// Order on a device: whatever ranks that share one give it, each read comes after the write that it
// needs and each write after the reads before it, by events alone.  Judged on a device that is not
// there (pretended_device.h).  PARADYSE_TEST_LONG=1 takes every MLP, level of recomputation and
// exchange.
#include <cstdlib>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/plan.h"
#include "paradyse/run/accountant.h"
#include "paradyse/run/session.h"
#include "src/plan/model/text/text_shape.h"
#include "src/run/comm/observed.h"
#include "src/run/execute/within_memory.h"
#include "src/run/weights/optimizer.h"
#include "tests/support/models.h"
#include "tests/support/plans.h"
#include "tests/support/pretended_device.h"
#include "tests/support/pretended_kernels.h"

namespace paradyse {
namespace {

using test::Judging;
using testing::IsEmpty;

constexpr LocalOptions kLocal{
    .deadline = std::chrono::seconds(60), .grace = std::chrono::seconds(60)};

bool all_of_it() { return std::getenv("PARADYSE_TEST_LONG") != nullptr; }

struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Before a rank enters operation or wait number `moment` it does `strike`; -1: never.
class Striker final : public CommunicationObserver {
 public:
  Striker(int moment, std::function<void()> strike) : moment_(moment), strike_(std::move(strike)) {}
  void enter(Moment /*moment*/, const Call& /*call*/) override {
    if (moments_++ == moment_) {
      strike_();
    }
  }
  void leave() override {}
  [[nodiscard]] int moments() const { return moments_; }

 private:
  int moment_;
  int moments_ = 0;
  std::function<void()> strike_;
};

const TextShape kModel = test::llama(
    {.layers = 2, .heads = 6, .kv_heads = 2, .head_dim = 8, .hidden = 24, .ffn = 13, .vocab = 31});
const std::vector<std::int64_t> kLengths = {5, 1, 12, 3, 8};

Plan plan_of(const LayerChoice& layer, int ranks) {
  Plan plan = test::uniform_plan(kModel, kLengths, ranks, layer);
  plan.messages.overlap = true;
  return plan;
}

// What happens to one rank, once, in the second of two steps.
struct Strike {
  int rank = 1;
  int moment = -1;         // of its communicators
  std::int64_t call = -1;  // so many calls of the device after it; -1: at once
  std::function<void()> what = [] { throw Fault("a broken disk"); };
  bool recovers = false;  // all ranks go on from it
};

struct Steps {
  std::vector<double> losses;
  int moments = 0;  // of the struck rank, in the second step
};

// Two steps of training, the weights written in between and after.
Steps train(
    const Plan& plan,
    Dtype dtype,
    c10::Device device = test::kPretended,
    const Strike& strike = {}) {
  const auto all = test::random_documents(kLengths, kModel.vocab, 5);
  const std::vector<Item> items = items_of(all);
  // Both of the fillings that a GPU has.
  use_kernels_of_other_devices(
      dtype == Dtype::float32 ? aten_kernels() : test::pretended_kernels());
  Steps steps;
  run_local_ranks(plan.ranks, kLocal, [&](Communicators& of_rank) {
    const bool struck = of_rank.rank() == strike.rank;
    Striker striker(-1, {});
    ObservedCommunicators counted(of_rank, striker);
    RankSession session(
        counted,
        text_model(kModel),
        {.dtype = dtype,
         .weight_domain = plan.weight_domain,
         .masters = Masters::on_device,
         .device = device});
    session.parameters().initialize(3);
    AdamW optimizer(session.parameters(), {});
    for (int step = 0; step < 2; ++step) {
      BatchResult result;
      if (step == 1 && struck) {
        striker = Striker(strike.moment, [&] {
          if (strike.call < 0) {
            strike.what();
          }
          test::fail_at_call(strike.call, strike.what);
        });
      }
      const auto play = [&] { result = session.play(plan, {.items = items}, /*backward=*/true); };
      for (bool again = true; again;) {  // as training does
        session.parameters().zero_gradients();
        again = false;
        if (strike.recovers) {
          again = within_memory(session.communicators(), play).has_value();
        } else {
          play();
        }
      }
      if (step == 1 && struck) {
        steps.moments = striker.moments();
      }
      optimizer.step(
          1e-2, gradient_factor(gradient_norm(session.parameters(), session.domain()), 1e-3, 1));
      if (session.rank() == 0) {
        steps.losses.push_back(result.loss);
      }
    }
  });
  return steps;
}

void expect_ordered(const std::string& what) {
  EXPECT_THAT(test::unordered(), IsEmpty()) << what;
  EXPECT_THAT(test::changed_early(), IsEmpty()) << what;
}

// `everything`: in a long test every MLP, level and means of saving memory as well.
std::vector<LayerChoice> layers(bool everything = true) {
  std::vector<LayerChoice> all;
  for (const auto& [attention, mlp] : test::pure_strategies()) {
    all.push_back(text_layer(attention, mlp));
  }
  if (!everything || !all_of_it()) {
    return all;
  }
  for (const auto& [attention, verb] : test::pure_strategies()) {
    for (const Verb mlp : kVerbs) {
      for (const LayerRecompute level : test::recompute_levels()) {
        LayerChoice layer = text_layer(attention, to_string(mlp));
        set_recompute(layer, level);
        all.push_back(layer);
      }
    }
    LayerChoice offloads = text_layer(attention, verb);
    for (PartChoice& part : offloads) {
      part.offload = true;
    }
    all.push_back(offloads);
  }
  return all;
}

constexpr Dtype kTypes[] = {Dtype::float32, Dtype::bfloat16};

std::string name_of(const LayerChoice& layer, int ranks, Dtype dtype) {
  return name(layer) + " on " + std::to_string(ranks) + " ranks in " + to_string(dtype);
}

// Nothing is unordered, by events alone; and the device computes what the CPU does.
TEST(Order, EveryStrategyOrdersByEventsAlone) {
  for (const LayerChoice& layer : layers()) {
    for (const int ranks : {1, 2, 3, 4}) {
      for (const Dtype dtype : kTypes) {
        const std::string what = name_of(layer, ranks, dtype);
        const Plan plan = plan_of(layer, ranks);
        test::begin_judging();
        const Steps steps = train(plan, dtype);
        expect_ordered(what);
        const Steps expected = train(plan, dtype, c10::kCPU);
        const double tolerance = dtype == Dtype::float32 ? 1e-5 : 1e-2;
        for (std::size_t step = 0; step < 2; ++step) {
          EXPECT_NEAR(steps.losses[step], expected.losses[step], tolerance) << what;
        }
      }
    }
  }
}

// The judge sees: where events order nothing, every strategy that moves anything is reported.
TEST(Order, WithoutEventsEveryStrategyIsReported) {
  for (const LayerChoice& layer : layers()) {
    for (const int ranks : {2, 3}) {
      test::begin_judging({.events = false});
      train(plan_of(layer, ranks), Dtype::float32);
      EXPECT_THAT(test::unordered(), testing::Not(IsEmpty()))
          << name_of(layer, ranks, Dtype::float32);
    }
  }
}

// Before operations and waits of a step, and in the middle of what they give the device: reading
// what others show.  Of `tries` places in each step, others as `turn` goes on.
std::vector<Strike> strikes(
    const Steps& whole, int tries, int turn, const std::function<void()>& what, bool recovers) {
  const int stride = all_of_it() ? 1 : std::max(1, whole.moments / tries);
  std::vector<Strike> all;
  for (int moment = 3 * turn % stride; moment < whole.moments; moment += stride) {
    for (const std::int64_t call : {-1, 1}) {
      all.push_back({.moment = moment, .call = call, .what = what, .recovers = recovers});
    }
  }
  return all;
}

std::string name_of(const LayerChoice& layer, const Strike& strike) {
  return fmt::format("{}: {} calls after moment {}", name(layer), strike.call, strike.moment);
}

// A rank fails, and all end.
TEST(Order, HoldsWhileRanksFail) {
  int turn = 0;
  for (const LayerChoice& layer : layers(false)) {
    const Plan plan = plan_of(layer, 3);
    test::begin_judging();
    const Steps whole = train(plan, Dtype::float32);
    for (const Strike& strike :
         strikes(whole, 4, turn++, [] { throw Fault("a broken disk"); }, false)) {
      test::begin_judging();
      EXPECT_THROW(train(plan, Dtype::float32, test::kPretended, strike), Fault);
      expect_ordered(name_of(layer, strike));
    }
  }
}

// A rank lacks memory, and all go on, in the same streams and blocks.
TEST(Order, HoldsWhereRanksGoOnFromLackOfMemory) {
  int turn = 0;
  for (const LayerChoice& layer : layers(false)) {
    const Plan plan = plan_of(layer, 3);
    test::begin_judging();
    const Steps whole = train(plan, Dtype::float32);
    for (const Strike& strike :
         strikes(whole, 6, turn++, [] { throw OutOfMemory("rank 1: out of memory"); }, true)) {
      test::begin_judging({.host_waits = true});
      const Steps again = train(plan, Dtype::float32, test::kPretended, strike);
      expect_ordered(name_of(layer, strike));
      EXPECT_EQ(again.losses, whole.losses) << name_of(layer, strike);
    }
  }
}

}  // namespace
}  // namespace paradyse
