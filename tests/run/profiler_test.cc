// A profile whose steps need more memory than was counted: that is written down, and all goes on.
#include "src/run/measure/profiler.h"

#include <atomic>
#include <filesystem>
#include <set>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

#include "paradyse/run/accountant.h"
#include "src/run/comm/observed.h"
#include "tests/support/models.h"
#include "tests/support/processes.h"

namespace paradyse {
namespace {

constexpr int kRanks = 3;

// Lacks memory before some of the operations that this rank's layers begin.
class Lacking final : public CommunicationObserver {
 public:
  explicit Lacking(std::set<int> operations) : strikes_(std::move(operations)) {}
  void enter(Moment moment, const Call& call) override {
    if (moment == Moment::operation && call.layer >= 0 && strikes_.contains(operations_++)) {
      throw OutOfMemory("rank 1: out of memory");
    }
  }
  void leave() override {}

 private:
  std::set<int> strikes_;
  int operations_ = 0;
};

class LackingBackend final : public Backend {
 public:
  explicit LackingBackend(Backend& real) : real_(real) {}
  std::string name() const override { return real_.name(); }
  int first_rank() const override { return real_.first_rank(); }
  void run(int ranks, const Body& body) override {
    real_.run(ranks, [&](Communicators& communicators) {
      Lacking lacking(communicators.rank() == 1 ? std::set<int>{3, 50} : std::set<int>{});
      ObservedCommunicators observed(communicators, lacking);
      body(observed);
    });
  }
  void leave() override { real_.leave(); }
  bool fail(const std::string& message) override { return real_.fail(message); }

 private:
  Backend& real_;
};

void expect_profiled(Backend& backend) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() /
      ("profiler_test." + backend.name() + "." + std::to_string(getpid()) + ".jsonl");
  std::atomic<bool> stop = false;  // after some more steps than lack memory
  constexpr std::size_t kSteps = 12;
  std::size_t steps = 0;
  const ProfileRequest request{
      .model = test::llama({.heads = 6, .kv_heads = 2, .ffn = 13, .vocab = 31}),
      .ranks = kRanks,
      .lengths = {7},
      .seconds = 100,  // of which collectives take a share
      .file = file,
      .backend = std::make_shared<LackingBackend>(backend),
      .progress = [&](const auto&) { stop = ++steps > kSteps; },
      .stop = &stop};
  const Profile found = profile(request);
  if (!backend.leads()) {
    return;
  }
  std::set<std::string> lacking;
  std::set<std::string> measured;
  for (const StepProbe& step : found.steps) {
    const std::string name =
        step.attention + " " + step.recompute + " " + std::to_string(step.length);
    ASSERT_NE(step.outcome, Outcome::time);
    (step.outcome == Outcome::memory ? lacking : measured).insert(name);
    if (step.outcome == Outcome::measured) {
      EXPECT_EQ(step.peak_bytes, step.counted_peak_bytes) << name;
    }
  }
  EXPECT_EQ(lacking.size(), 2U);
  EXPECT_EQ(lacking.size() + measured.size(), steps);
  for (const std::string& name : lacking) {
    EXPECT_FALSE(measured.contains(name)) << name;
  }
  EXPECT_EQ(read_profile(file), found);
  std::filesystem::remove(file);
}

TEST(Profiler, GoesOnWhereMemoryIsLackingOverGloo) {  // before there are threads
  test::expect_processes(kRanks, [](Backend& backend) { expect_profiled(backend); });
}

TEST(Profiler, GoesOnWhereMemoryIsLackingOnThreads) { expect_profiled(*local_backend()); }

}  // namespace
}  // namespace paradyse
