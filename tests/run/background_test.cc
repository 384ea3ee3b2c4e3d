// What threads of a run share beside ranks: the queue in which plans are made, and the trace.  Also
// built with thread sanitizer (cmake/Threads.cmake).
#include <chrono>
#include <filesystem>
#include <fstream>
#include <latch>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "src/plan/model/text/text_shape.h"
#include "src/plan/search/batch/document_planner.h"
#include "src/run/execute/trace.h"
#include "src/run/train/plan_queue.h"

namespace paradyse {
namespace {

using std::chrono::microseconds;

PlanningTask task() {
  TextShape model;
  model.layers = 2;
  model.hidden = 64;
  model.heads = 4;
  model.kv_heads = 2;
  model.head_dim = 16;
  model.ffn = 160;
  model.vocab = 256;
  PlanningTask made;
  made.model = model;
  made.ranks = 2;
  made.machine.cores = 2;
  return made;
}

TEST(PlanQueue, PlansInOrderWhileOthersAskTakeAndForget) {
  PlanQueue queue(batch_planner(task()));
  for (std::size_t first = 0; first < 60; first += 3) {
    for (std::size_t step = first; step < first + 3; ++step) {
      const auto length = static_cast<std::int64_t>(step) + 1;
      queue.ask(step, {.lengths = {length, length}}, {});
    }
    queue.ready(first, 0.0001);
    EXPECT_EQ(queue.take(first).lengths.front(), static_cast<std::int64_t>(first) + 1);
    queue.forget(first + 1);
    EXPECT_TRUE(queue.ready(first + 2, 60));
    EXPECT_EQ(queue.take(first + 2).lengths.size(), 2U);
    if (first % 2 == 0) {
      queue.ask(1000 + first, {.lengths = {7}}, {});
      BatchPlanner& planner = queue.at_rest();  // it is this thread's
      EXPECT_TRUE(planner.plan(BatchSizes{.lengths = {1}}).plan);
      BatchPlanner::Learned learned = planner.learned();
      learned.machine = 1.5;
      planner.learn(learned);
    }
  }
}

TEST(PlanQueue, GivesTheErrorOfItsThread) {
  PlanningTask small = task();
  small.memory_per_rank = std::int64_t{2} << 20;
  PlanQueue queue(batch_planner(small));
  queue.ask(1, {.lengths = {std::int64_t{1} << 20}}, {});
  queue.ask(2, {.lengths = {3}}, {});
  EXPECT_THROW(queue.take(1), std::runtime_error);
  EXPECT_EQ(queue.take(2).lengths.front(), 3);
  EXPECT_THROW(queue.take(3), std::logic_error);
}

TEST(PlanQueue, EndsWithPlansUnderWay) {
  for (int i = 0; i < 20; ++i) {
    PlanQueue queue(batch_planner(task()));
    for (std::size_t step = 0; step < 5; ++step) {
      queue.ask(step, {.lengths = {1}}, {});
    }
    std::this_thread::sleep_for(microseconds(50 * i));
  }
}

TEST(Trace, TakesSpansOfManyThreads) {
  constexpr int kRanks = 4;
  constexpr int kSpans = 200;
  Trace trace;
  std::latch begun(kRanks);  // threads that run one after the other share nothing
  std::vector<std::thread> ranks;
  for (int r = 0; r < kRanks; ++r) {
    ranks.emplace_back([&, r] {
      begun.arrive_and_wait();
      for (int i = 0; i < kSpans; ++i) {
        const auto begin = Trace::Clock::now();
        trace.add(r, "layer " + std::to_string(i), "forward", begin, Trace::Clock::now());
        trace.add(r, "span", "communication", TimedMark::here(), TimedMark::here());
        std::this_thread::yield();  // also where there is one core for all
        trace.add_memory(r, i);
        std::this_thread::yield();
        trace.settle(r);
        if (r == 0) {
          trace.add_step(i + 1, begin);
        }
      }
    });
  }
  for (int i = 0; i < 20; ++i) {  // meanwhile
    EXPECT_FALSE(trace.ended_after());
    EXPECT_GE(trace.events().size(), 0U);
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  const auto file =
      std::filesystem::temp_directory_path() / ("trace_test." + std::to_string(getpid()));
  trace.write(file, "a test");
  std::ifstream in(file);
  const auto events = nlohmann::json::parse(in).at("traceEvents");
  int spans = 0;
  for (const auto& event : events) {
    spans += event.at("ph") == "X" ? 1 : 0;
  }
  EXPECT_EQ(spans, 2 * kRanks * kSpans + kSpans);
  std::filesystem::remove(file);
}

TEST(Trace, EndsAtItsSizeWhoeverWrites) {
  Trace trace(20000);
  std::latch begun(3);
  std::vector<std::thread> ranks;
  for (int r = 0; r < 3; ++r) {
    ranks.emplace_back([&, r] {
      begun.arrive_and_wait();
      for (int i = 0; i < 300; ++i) {
        trace.add(r, "layer", "forward", Trace::Clock::now(), Trace::Clock::now());
      }
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  EXPECT_EQ(trace.ended_after(), 0);
  EXPECT_LE(trace.events().size(), 20000U);
}

}  // namespace
}  // namespace paradyse
