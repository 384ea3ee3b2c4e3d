// A run beside the best static plan (train.compare): it comes to the same bits, whatever happens to
// the static plan.
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/detail/index.h"
#include "paradyse/run/accountant.h"
#include "paradyse/run/train.h"
#include "src/plan/model/text/text_shape.h"
#include "src/run/comm/observed.h"
#include "src/run/train/files.h"
#include "src/run/train/static_plans.h"
#include "src/run/train/static_play.h"
#include "tests/support/backend_over.h"
#include "tests/support/folder.h"
#include "tests/support/models.h"
#include "tests/support/small_llama.h"

namespace paradyse {
namespace {

using testing::HasSubstr;

TEST(StaticTurn, TakesTurnsAndLeavesTheFirstStepOut) {
  using enum StaticTurn;
  const auto turns = [](std::int64_t every, std::int64_t first, std::int64_t steps) {
    std::vector<StaticTurn> all;
    for (std::int64_t step = first; step < steps; ++step) {
      all.push_back(static_turn(every, step, first));
    }
    return all;
  };
  EXPECT_EQ(turns(0, 0, 3), std::vector({none, none, none}));
  EXPECT_EQ(turns(1, 0, 4), std::vector({none, after, before, after}));
  EXPECT_EQ(turns(2, 0, 6), std::vector({none, before, none, after, none, before}));
  EXPECT_EQ(turns(2, 2, 6), std::vector({none, after, none, before}));  // as if it had not ended
  EXPECT_EQ(turns(2, 3, 6), std::vector({none, none, before}));
}

TEST(StaticPlans, ChooseOnce) {
  PlanningTask task;
  task.model = test::llama({.heads = 4, .kv_heads = 2, .ffn = 40, .vocab = 64});
  task.ranks = 4;
  task.machine.cores = 2;
  const std::vector<std::int64_t> lengths = {40, 300, 20, 90};
  StaticPlans plans(task, {{.lengths = {300}}});
  EXPECT_FALSE(plans.empty());
  EXPECT_EQ(plans.strategy(), "");
  const Plan first = *plans.plan({.lengths = lengths}, {});
  const std::string chosen = plans.strategy();
  for (const Strategy& one : strategies("attention")) {
    const std::optional<Plan> other =
        StaticStrategy(task, one.name, {.recomputes = true}).plan(lengths);
    if (other) {
      EXPECT_LE(*first.predicted.seconds, *other->predicted.seconds) << one.name;
    }
  }
  // another batch, other corrections: the same strategy
  EXPECT_TRUE(plans.plan({.lengths = {5}}, {.machine = 2, .caps = {{1, 1}}}));
  EXPECT_EQ(plans.strategy(), chosen);

  const std::string slower = chosen == "METP" ? "UlyssesZ" : "METP";
  StaticPlans resumed(task, {{.lengths = {300}}});
  EXPECT_TRUE(resumed.plan({.lengths = lengths}, {}, slower));
  EXPECT_EQ(resumed.strategy(), slower);
  StaticPlans again(task, {{.lengths = {300}}});
  EXPECT_TRUE(again.plan({.lengths = lengths}, {}, "a strategy of yesterday"));
  EXPECT_EQ(again.strategy(), chosen);

  task.memory_per_rank = 1000;
  StaticPlans none(task, {{.lengths = {300}}});
  EXPECT_TRUE(none.empty());
  EXPECT_FALSE(none.plan({.lengths = lengths}, {}));
}

// From the barrier before a static play on, rank 1 lacks memory before the operation number
// `strike` that is inside it.
class Striker final : public CommunicationObserver {
 public:
  Striker(bool strikes, int strike) : strikes_(strikes), strike_(strike) {}
  void enter(Moment moment, const Call& call) override {
    const std::string_view op = call.op;
    inside_ = inside_ || (compared_ && op == "begin");
    compared_ = op == "compare" || (compared_ && !inside_);
    if (op == "compare") {
      operations_ = 0;
    }
    if (!inside_ || moment != Moment::operation) {
      return;
    }
    const bool now = operations_++ == strike_ && strikes_;
    inside_ = !now && op != "losses";
    if (now) {
      throw OutOfMemory("rank 1: out of memory in a test");
    }
  }
  void leave() override {}
  [[nodiscard]] int operations() const { return operations_; }

 private:
  bool strikes_;
  int strike_;
  bool compared_ = false;
  bool inside_ = false;
  int operations_ = 0;
};

class StrikingBackend final : public test::BackendOver {
 public:
  explicit StrikingBackend(int strike) : strike_(strike) {}
  void run(int ranks, const Body& body) override {
    BackendOver::run(ranks, [&](Communicators& communicators) {
      const bool here = communicators.rank() == 1;
      Striker striker(here, strike_);
      ObservedCommunicators observed(communicators, striker);
      body(observed);
      if (here) {
        operations_ = striker.operations();
      }
    });
  }
  [[nodiscard]] int operations() const { return operations_; }  // of the last static play

 private:
  int strike_;
  int operations_ = 0;
};

class Compare : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(folder_ / "model.toml") << test::kSmallLlama;
    std::ofstream data(folder_ / "data.jsonl");
    for (int length = 10; length < 200; length += 7) {
      data << nlohmann::json{{"tokens", std::vector<int>(idx(length), length % 64)}}.dump() << "\n";
    }
  }

  struct Played {
    std::vector<StepReport> steps = {};
    std::vector<std::string> notes = {};
    TrainSummary summary = {};
    int operations = 0;
  };
  [[nodiscard]] Played run(
      const std::string& name, int strike, std::vector<std::string> settings) const {
    std::vector<std::string> all = {
        "model.path=" + (folder_ / "model.toml").string(),
        "data.path=" + (folder_ / "data.jsonl").string(),
        "output.folder=" + folder_.string(),
        "output.name=" + name,
        "parallel.ranks=3",
        "train.steps=5",
        "train.tokens_per_step=400",
        "costs.correct=false",
        "model.dropout=0.1",
        "checkpoint.minutes=0"};
    all.insert(all.end(), settings.begin(), settings.end());
    Played played;
    TrainHooks hooks;
    hooks.step = [&](const StepReport& report) { played.steps.push_back(report); };
    hooks.note = [&](const std::string& line) { played.notes.push_back(line); };
    StrikingBackend backend(strike);
    played.summary = train(load_config("", all), hooks, backend);
    played.operations = backend.operations();
    return played;
  }

  void expect_same(const Played& one, const Played& other) const {
    ASSERT_EQ(one.steps.size(), other.steps.size());
    for (std::size_t s = 0; s < one.steps.size(); ++s) {
      EXPECT_EQ(one.steps[s].loss, other.steps[s].loss);
      EXPECT_EQ(one.steps[s].gradient_norm, other.steps[s].gradient_norm);
      EXPECT_EQ(one.steps[s].loss_scale, other.steps[s].loss_scale);
      EXPECT_EQ(one.steps[s].plan_sha256, other.steps[s].plan_sha256);
      EXPECT_EQ(one.steps[s].peak_bytes, other.steps[s].peak_bytes);
      EXPECT_EQ(one.steps[s].retries, 0);
    }
    const char* const weights = "model/model.safetensors";
    EXPECT_EQ(file_text(one.summary.folder / weights), file_text(other.summary.folder / weights));
  }

  test::Folder folder_;
};

TEST_F(Compare, ChangesNoBitOfTheRun) {
  for (const std::string dtype : {"float32", "bfloat16", "float16"}) {
    const std::vector<std::string> settings = {"train.dtype=" + dtype};
    const Played plain = run("plain_" + dtype, -1, settings);
    EXPECT_FALSE(plain.summary.compared);
    std::vector<std::string> also = settings;
    also.emplace_back("train.compare=2");
    const Played compared = run("compared_" + dtype, -1, also);
    expect_same(compared, plain);
    for (const StepReport& report : compared.steps) {
      ASSERT_EQ(report.compared.has_value(), report.step % 2 == 0) << report.step;
      if (report.compared) {
        EXPECT_GT(report.compared->seconds, 0);
        EXPECT_GT(report.compared->predicted_seconds, 0);
        EXPECT_EQ(report.compared->ours, report.seconds);
      }
    }
    EXPECT_EQ(compared.summary.compared->steps, 2);
    EXPECT_EQ(compared.summary.compared->did_not_fit, 0);
  }
}

// Before each of its operations in turn a rank lacks memory: the comparison is lost, the run is
// not, and its steps are as ever.
TEST_F(Compare, AStaticPlanThatLacksMemoryAnywhere) {
  const Played plain = run("plain", -1, {});
  const Played fits = run("fits", -1, {"train.compare=2"});
  ASSERT_GT(fits.operations, 10);
  for (int operation = 0; operation < fits.operations; operation += 3) {
    const Played lacks = run("lacks_" + std::to_string(operation), operation, {"train.compare=2"});
    expect_same(lacks, plain);
    EXPECT_EQ(lacks.summary.compared->steps, 0) << operation;
    EXPECT_EQ(lacks.summary.compared->did_not_fit, 2);
    EXPECT_EQ(lacks.summary.compared->strategy, fits.summary.compared->strategy);
    EXPECT_THAT(
        lacks.notes,
        testing::Contains(HasSubstr(
            "step 2: its static plan (" + fits.summary.compared->strategy +
            ") did not fit and is not compared: rank 1: out of memory in a test")));
  }
}

}  // namespace
}  // namespace paradyse
