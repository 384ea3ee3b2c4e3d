// What threads of a run share beside ranks: the queue in which plans are made, the trace, and what
// is saved while training continues.  Also built with thread sanitizer (cmake/Threads.cmake).
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <latch>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "paradyse/run/communicator.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/search/batch/document_planner.h"
#include "src/run/execute/trace.h"
#include "src/run/train/background_work.h"
#include "src/run/train/checkpoint.h"
#include "src/run/train/checkpoint_pieces.h"
#include "src/run/train/plan_queue.h"
#include "tests/support/folder.h"

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

TEST(BackgroundWork, IsDoneBesideThisThread) {
  BackgroundWork work;
  EXPECT_TRUE(work.done());
  work.finish();  // there is none
  int made = 0;
  std::latch wanted(1);
  for (int i = 1; i <= 50; ++i) {
    work.start([&] { made = i; });
    work.finish();
    EXPECT_EQ(made, i);
  }
  work.start([&] { wanted.wait(); });
  EXPECT_FALSE(work.done());
  EXPECT_THROW(work.start([] {}), std::logic_error);
  wanted.count_down();
  work.finish();
  work.start([] { throw std::runtime_error("the disk is full"); });
  EXPECT_THROW(work.finish(), std::runtime_error);
  work.finish();  // it is said once
  work.start([&] { made = -1; });
  while (!work.done()) {
    std::this_thread::yield();
  }
  work.finish();
  EXPECT_EQ(made, -1);
}

// Each save holds what was there when it began, whatever ranks make of it meanwhile.
TEST(AsyncSave, WritesTheCopyWhileItsSourceChanges) {
  constexpr int kRanks = 3;
  const test::Folder folder;
  const Model model = task().model;
  const auto fill = [](const std::vector<TrainedPiece>& pieces, double value) {
    for (const TrainedPiece& one : pieces) {
      for (const at::Tensor& tensor : {one.master, one.mean, one.variance}) {
        auto* const data = static_cast<float*>(tensor.mutable_data_ptr());
        std::fill(data, data + tensor.numel(), static_cast<float>(value));
      }
    }
  };
  run_local_ranks(kRanks, {}, [&](Communicators& communicators) {
    const c10::InferenceMode no_autograd;
    const int rank = communicators.rank();
    Communicator& world = communicators.world();
    Parameters parameters(model, kRanks, rank, parameter_types(Dtype::float32), true);
    AdamW optimizer(parameters, {});
    const std::vector<TrainedPiece> trained = trained_pieces(parameters, optimizer);
    Snapshot snapshot(parameters, optimizer, /*on_host=*/false);
    std::atomic<bool> given_up = false;
    BackgroundWork work;
    for (std::int64_t step = 1; step <= 6; ++step) {
      fill(trained, static_cast<double>(step));
      snapshot.take();
      CheckpointSave save(
          folder / "checkpoints",
          {.state =
               [&] {
                 CheckpointState state;
                 state.step = step;
                 state.ranks = kRanks;
                 return state;
               },
           .pieces =
               [&](const std::filesystem::path& file) {
                 write_pieces(file, rank, kRanks, snapshot.pieces(), &given_up);
               },
           .after = [&] { prune_checkpoints(folder / "checkpoints", 2); }},
          kRanks,
          world);
      while (!save.over()) {
        work.start([&] { save.work(); });
        fill(trained, -1);
        work.finish();
        save.agree(world);
      }
      ASSERT_EQ(save.wrong(), "");
      const auto newest = complete_checkpoint(folder / "checkpoints");
      ASSERT_TRUE(newest);
      const CheckpointState state = open_checkpoint(*newest);
      ASSERT_EQ(state.step, step);
      expect_whole(*newest, state);
      read_checkpoint(*newest, state, parameters, optimizer);
      for (const TrainedPiece& one : trained) {
        for (const at::Tensor& tensor : {one.master, one.mean, one.variance}) {
          const auto* const data = static_cast<const float*>(tensor.const_data_ptr());
          EXPECT_TRUE(std::all_of(data, data + tensor.numel(), [&](float value) {
            return value == static_cast<float>(step);
          })) << one.piece.name;
        }
      }
      world.barrier({.op = "read", .part = ""});
    }
    // A run that ends for another reason does not wait for the disk.
    given_up = true;
    const std::filesystem::path file = folder / ("given_up_" + std::to_string(rank));
    EXPECT_THROW(
        write_pieces(file, rank, kRanks, snapshot.pieces(), &given_up), std::runtime_error);
    EXPECT_FALSE(std::filesystem::exists(file));
  });
}

}  // namespace
}  // namespace paradyse
