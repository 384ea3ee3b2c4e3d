// A rank's session: programs are built once, plans travel from rank 0, and all ranks play one plan.
#include "paradyse/run/session.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/plan.h"
#include "paradyse/run/data.h"
#include "src/plan/model/text/text_shape.h"
#include "src/run/comm/observed.h"
#include "src/run/execute/kept_programs.h"
#include "src/run/execute/part_times.h"
#include "src/run/execute/trace.h"
#include "src/run/measure/micro_batch_seconds.h"
#include "tests/support/models.h"
#include "tests/support/plans.h"
#include "tests/support/recovery.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

using testing::HasSubstr;

constexpr int kRanks = 3;

class Session : public testing::Test {
 protected:
  [[nodiscard]] Plan plan(const char* attention, const char* mlp) const {
    return test::uniform_plan(model_, lengths_, kRanks, text_layer(attention, mlp));
  }
  [[nodiscard]] std::vector<Item> items() const { return items_of(tokens_); }
  // Body of each rank, with the model's weights in place.
  void on_ranks(const std::function<void(RankSession& session)>& body) const {
    run_local_ranks(kRanks, {}, [&](Communicators& communicators) {
      RankSession session(communicators, text_model(model_));
      test::fill(session.parameters(), weights_);
      body(session);
    });
  }

  TextShape model_ = test::llama({.heads = 6, .kv_heads = 3, .ffn = 13, .vocab = 31});
  std::vector<std::int64_t> lengths_ = {5, 1, 12, 3};
  std::vector<std::vector<std::int32_t>> tokens_ = test::random_documents(lengths_, 31, 5);
  test::Weights weights_ = test::random_weights(model_, 5);
};

// What is played of programs that were kept equals, to the bit, what a new session builds.
TEST_F(Session, BuildsTheProgramsOfAPlanOnce) {
  const Plan one = plan("UlyssesZ", "gather");
  const Plan other = plan("MegatronTS", "hold");
  Plan renamed = one;  // other predictions and another planner: the same programs
  renamed.planner_name = "somebody";
  renamed.predicted.seconds = 3;
  const auto batch = items();
  on_ranks([&](RankSession& session) {
    struct Seen {
      BatchResult result;
      std::vector<at::Tensor> gradients;
    };
    const auto play = [&](const Plan& plan, bool backward = true) {
      session.parameters().zero_gradients();
      Seen seen{.result = session.play(plan, {.items = batch}, backward), .gradients = {}};
      seen.gradients = test::held_gradients(session.parameters());
      return seen;
    };
    const auto expect_equal = [](const Seen& found, const Seen& expected) {
      EXPECT_EQ(found.result.loss_sums, expected.result.loss_sums);
      EXPECT_EQ(found.result.plan_sha256, expected.result.plan_sha256);
      for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
        EXPECT_TRUE(at::equal(found.gradients.at(i), expected.gradients[i])) << i;
      }
    };
    const Seen first = play(one);
    EXPECT_EQ(first.result.programs_built, 1);
    const Seen second = play(other);
    EXPECT_EQ(second.result.programs_built, 1);
    EXPECT_NE(second.result.plan_sha256, first.result.plan_sha256);
    for (int repeat = 0; repeat < 2; ++repeat) {
      const Seen again = play(one);
      EXPECT_EQ(again.result.programs_built, 0);
      expect_equal(again, first);
      const Seen later = play(other);
      EXPECT_EQ(later.result.programs_built, 0);
      expect_equal(later, second);
    }
    EXPECT_EQ(play(renamed).result.programs_built, 0);
    EXPECT_EQ(play(one, /*backward=*/false).result.programs_built, 1);  // saves nothing
    expect_equal(play(one), first);
  });
}

// Groups that run alike share programs, in one batch and in another plan.
TEST_F(Session, BuildsTheProgramsOfEqualMicroBatchesOnce) {
  lengths_ = {4, 4, 4, 7};
  tokens_ = test::random_documents(lengths_, 31, 5);
  Plan apart = plan("UlyssesZ", "gather");
  const PlanMicroBatch micro = apart.micro_batches.front();
  apart.micro_batches.assign(4, micro);
  for (std::int64_t d = 0; d < 4; ++d) {
    apart.micro_batches[static_cast<std::size_t>(d)].groups.front().documents = {d};
  }
  Plan shorter = apart;
  shorter.lengths[0] = 7;
  const auto batch = items();
  std::vector<std::vector<std::int32_t>> others = tokens_;
  others[0] = others[3];
  const std::vector<Item> other_batch = items_of(others);
  on_ranks([&](RankSession& session) {
    EXPECT_EQ(session.play(apart, {.items = batch}, true).programs_built, 2);
    EXPECT_EQ(session.play(shorter, {.items = other_batch}, true).programs_built, 0);
  });
}

TEST(KeptPrograms, ForgetsWhatWasUsedLongestAgoButNothingOfTheBatch) {
  const TextShape model = test::llama({});
  const auto task = [&](std::int64_t length) {
    return GroupTask{
        .layers = {{.layers = model.layers, .choice = text_layer("UlyssesZ", "gather")}},
        .lengths = {length},
        .ranks = 2,
        .shares = {},
        .weight_domain = 2};
  };
  constexpr auto kMost = static_cast<std::int64_t>(KeptPrograms::kMost);
  const Model built = text_model(model);
  KeptPrograms programs;
  const auto built_by = [&](std::int64_t from, std::int64_t to) {
    const std::int64_t before = programs.built();
    for (std::int64_t length = from; length < to; ++length) {
      const Timeline& parts = programs.of(task(length), built);
      EXPECT_EQ(parts.front().program().documents.lengths, std::vector<std::int64_t>{length});
      EXPECT_LE(programs.size(), KeptPrograms::kMost);
    }
    return programs.built() - before;
  };
  for (int repeat = 0; repeat < 3; ++repeat) {  // five more than fit
    programs.begin_batch();
    EXPECT_EQ(built_by(1, kMost + 6), repeat == 0 ? kMost + 5 : 5);
  }
  programs.begin_batch();
  EXPECT_EQ(built_by(1, 2), 0);
  EXPECT_EQ(built_by(100, 100 + kMost - 1), kMost - 1);  // all others are forgotten
  EXPECT_EQ(built_by(1, 2), 0);
  EXPECT_EQ(built_by(2, 3), 1);
}

// Each of the things that programs are made from tells them apart.
TEST(KeptPrograms, TellsTasksApart) {
  const TextShape model = test::llama({});
  GroupTask task{
      .layers = {{.layers = model.layers, .choice = text_layer("UlyssesZ", "gather")}},
      .lengths = {9, 7},
      .ranks = 2,
      .shares = {},
      .weight_domain = 2};
  std::vector<GroupTask> tasks(7, task);
  tasks[1].layers.front().choice = text_layer("UlyssesZ", "gather", Recompute::full);
  tasks[2].lengths = {7, 9};
  tasks[3].ranks = 1;
  tasks[4].shares = {1, 2};
  tasks[5].weight_domain = 4;
  tasks[6].keep = false;
  const Model built = text_model(model);
  KeptPrograms programs;
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (const GroupTask& each : tasks) {
      const Timeline& parts = programs.of(each, built);
      EXPECT_EQ(parts.front().program().documents.ranks(), each.ranks);
      EXPECT_EQ(parts.front().program().domain, each.weight_domain);
      EXPECT_EQ(programs.built(), repeat == 0 ? &each - tasks.data() + 1 : 7);
    }
  }
}

// A plan that ranks agreed on once is compared again each time.
TEST_F(Session, PlansThatDifferAreFoundWheneverTheyCome) {
  const Plan one = plan("UlyssesZ", "gather");
  Plan other = one;
  other.programs.begin()->second.front().choice.front().recompute = Recompute::full;
  const auto batch = items();
  for (const int agreed : {0, 1, 3}) {
    for (const int who : {0, 1, 2}) {
      std::vector<std::string> messages(kRanks);
      EXPECT_THROW(
          on_ranks([&](RankSession& session) {
            for (int i = 0; i < agreed; ++i) {
              session.play(one, {.items = batch}, true);
            }
            try {
              session.play(session.rank() == who ? other : one, {.items = batch}, true);
            } catch (const std::exception& error) {
              messages[static_cast<std::size_t>(session.rank())] = error.what();
              throw;
            }
          }),
          CommunicatorError);
      for (const std::string& message : messages) {
        EXPECT_THAT(message, HasSubstr("holds another plan than rank 0")) << agreed << who;
      }
    }
  }
}

// Also one that was changed after it came from rank 0.
TEST_F(Session, PlansThatAreChangedAfterTheyCameAreFound) {
  const Plan one = plan("UlyssesZ", "gather");
  const auto batch = items();
  EXPECT_THAT(
      test::refusal<CommunicatorError>([&] {
        on_ranks([&](RankSession& session) {
          const bool first = session.rank() == 0;
          std::optional<Plan> mine = session.broadcast(first ? std::optional(one) : std::nullopt);
          ASSERT_TRUE(mine);
          if (session.rank() == 1) {
            mine->programs.begin()->second.front().choice.front().recompute = Recompute::full;
          }
          session.play(*mine, {.items = batch}, true);
        });
      }),
      HasSubstr("rank 1 holds another plan than rank 0"));
}

TEST_F(Session, BroadcastsThePlanOfRankZero) {
  Plan one = plan("METP", "pass");
  one.planner_name = "somebody";
  one.predicted.seconds = 3;
  const Plan mine = plan("UlyssesZ", "gather");
  on_ranks([&](RankSession& session) {
    const bool first = session.rank() == 0;
    EXPECT_FALSE(session.broadcast(first ? std::nullopt : std::optional(mine)));
    const Counters before = session.communicators().counters();
    const std::optional<Plan> found = session.broadcast(first ? one : mine);
    session.world().barrier({.op = "sent", .part = ""});
    const Counters after = session.communicators().counters();
    ASSERT_TRUE(found);
    EXPECT_EQ(hash(*found), hash(one));
    EXPECT_EQ(found->predicted, one.predicted);
    if (first) {  // its length, a line of seconds, and what the hash is of
      const std::string text = "3\n" + canonical_json(one);
      EXPECT_EQ(
          after.bytes_sent - before.bytes_sent,
          (kRanks - 1) * (8 + static_cast<std::int64_t>(text.size())));
    }
    EXPECT_EQ(session.play(*found, {.items = items()}, true).plan_sha256, hash(one));
  });
}

// A document without labels is to predict its tokens, whatever others bring.
TEST_F(Session, ScoresEachDocumentByItsOwnLabels) {
  const Plan one = plan("UlyssesZ", "gather");
  std::vector<Item> some = items();
  some[0].labels = some[0].tokens;
  const std::vector<std::int32_t> first_alone = {kNoLabel, 3, kNoLabel};
  some[3].labels = first_alone;
  const auto batch = items();
  on_ranks([&](RankSession& session) {
    const BatchResult plain = session.play(one, {.items = batch}, false);
    const BatchResult labelled = session.play(one, {.items = some}, false);
    EXPECT_THAT(plain.counts, testing::ElementsAre(4, 0, 11, 2));
    EXPECT_THAT(labelled.counts, testing::ElementsAre(4, 0, 11, 1));
    EXPECT_EQ(labelled.loss_sums[0], plain.loss_sums[0]);
    EXPECT_EQ(labelled.loss_sums[2], plain.loss_sums[2]);
    EXPECT_NE(labelled.loss_sums[3], plain.loss_sums[3]);
  });
}

TEST_F(Session, RefusesLabelsThatDoNotFit) {
  const Plan one = plan("UlyssesZ", "gather");
  std::vector<Item> batch = items();
  batch[2].labels = batch[0].tokens;
  on_ranks([&](RankSession& session) {
    EXPECT_THAT(
        test::refusal([&] { session.play(one, {.items = batch}, true); }),
        HasSubstr("document 2 has 12 tokens, but 5 labels; every token takes one"));
  });
  Model masked = text_model(model_);
  masked.masked_lm = true;
  for (Item& item : batch) {
    item.labels = item.tokens;
  }
  batch[1].labels = {};
  run_local_ranks(kRanks, {}, [&](Communicators& communicators) {
    RankSession session(communicators, masked);
    EXPECT_THAT(
        test::refusal([&] { session.play(one, {.items = batch}, true); }),
        HasSubstr(
            "the model predicts masked tokens: it takes labels for each of the 4 documents, and "
            "document 1 has none; give data with {\"tokens\""));
  });
}

TEST_F(Session, RefusesWhatDoesNotFit) {
  const auto batch = items();
  const auto refused = [&](const Plan& plan, std::size_t count, const std::string& what) {
    on_ranks([&](RankSession& session) {
      EXPECT_THAT(
          test::refusal(
              [&] { session.play(plan, {.items = std::span(batch).first(count)}, true); }),
          HasSubstr(what));
    });
  };
  const Plan one = plan("UlyssesZ", "gather");
  refused(one, 3, "the plan is for 4 documents, but there are 3");
  Plan changed = one;
  changed.weight_domain = 1;
  refused(
      changed,
      4,
      "the plan is for 3 ranks with a sharding group (weight_domain) of 1, but there are 3 with "
      "one of 3");
  run_local_ranks(kRanks, {}, [&](Communicators& communicators) {
    EXPECT_THROW(
        RankSession(communicators, text_model(model_), {.weight_domain = 2}),
        std::invalid_argument);
    // a session that was not made leaves the thread as it was
    RankSession session(communicators, text_model(model_), {.weight_domain = 1});
    EXPECT_EQ(session.domain().size(), 1);
    EXPECT_EQ(session.replicas().size(), kRanks);
  });
}

// What a session's thread allocates counts into its budget, and no longer when it is gone.
TEST_F(Session, CountsMemoryWhileItLives) {
  run_local_ranks(2, {}, [&](Communicators& communicators) {
    EXPECT_THROW(
        RankSession(communicators, text_model(model_), {.memory_bytes = 1000}), OutOfMemory);
    {
      RankSession session(communicators, text_model(model_), {.memory_bytes = 1 << 20});
      const std::int64_t held = session.memory().live_bytes();
      EXPECT_GT(held, 1000);
      const at::Tensor mine = at::empty({100}, at::kFloat);
      EXPECT_EQ(session.memory().live_bytes(), held + 400);
      EXPECT_THROW(at::empty({1 << 20}, at::kFloat), OutOfMemory);
    }
    EXPECT_NO_THROW(at::empty({1 << 20}, at::kFloat));
  });
}

// Weights that are whole while a step lasts are gone with it, and so are their gradients.
TEST_F(Session, HoldsWholeWeightsForAStepAlone) {
  const auto batch = items();
  const Plan each_time = plan("UlyssesZ", "gather");
  Plan once = each_time;
  once.messages = {.reshard_after_forward = false, .reshard_after_backward = false};
  run_local_ranks(kRanks, {}, [&](Communicators& communicators) {
    RankSession session(communicators, text_model(model_));
    test::fill(session.parameters(), weights_);
    const std::int64_t held = session.memory().live_bytes();
    for (int round = 0; round < 3; ++round) {
      for (const bool backward : {true, false}) {
        const BatchResult whole = session.play(once, {.items = batch}, backward);
        EXPECT_EQ(session.memory().live_bytes(), held) << backward;
        const BatchResult sharded = session.play(each_time, {.items = batch}, backward);
        EXPECT_NEAR(whole.loss, sharded.loss, 1e-5 * sharded.loss);
      }
    }
  });
}

// Rank 1 is late at the first exchange of its group; rank 2 runs a document of its own and waits
// for it at the gather of the next layer's weights.
class LateAndWaiting final : public CommunicationObserver {
 public:
  static constexpr std::chrono::milliseconds kLate{30};

  LateAndWaiting(int rank, std::promise<void>& waits, std::shared_future<void> seen)
      : rank_(rank), waits_(waits), seen_(std::move(seen)) {}
  void enter(Moment moment, const Call& call) override {
    const bool weights = call.op == std::string_view("gather_weights");
    if (rank_ == 2 && weights && call.layer == 1 && moment == Moment::wait && !done_) {
      done_ = true;
      waits_.set_value();
    }
    if (rank_ == 1 && !weights && call.layer == 0 && !done_) {
      done_ = true;
      seen_.wait();
      std::this_thread::sleep_for(kLate);
    }
  }
  void leave() override {}

 private:
  int rank_;
  bool done_ = false;
  std::promise<void>& waits_;
  std::shared_future<void> seen_;
};

TEST_F(Session, CountsTheSecondsInItsWeightDomain) {
  Plan two = plan("UlyssesZ", "gather");
  two.micro_batches[0].groups = {
      {.ranks = {0, 1}, .documents = {0, 2, 3}, .program = "all"},
      {.ranks = {2}, .documents = {1}, .program = "all"}};
  const auto batch = items();
  std::promise<void> waits;
  const std::shared_future<void> seen = waits.get_future().share();
  run_local_ranks(kRanks, {}, [&](Communicators& communicators) {
    LateAndWaiting observer(communicators.rank(), waits, seen);
    ObservedCommunicators observed(communicators, observer);
    RankSession session(observed, text_model(model_));
    test::fill(session.parameters(), weights_);
    const BatchResult result = session.play(two, {.items = batch}, /*backward=*/true);
    ASSERT_EQ(result.domain_seconds.size(), 1U);
    EXPECT_LE(result.domain_seconds[0], result.micro_batch_seconds[0]);
    if (session.rank() == 2) {
      EXPECT_GE(
          result.domain_seconds[0], std::chrono::duration<double>(LateAndWaiting::kLate).count());
    }
    const RankNumbers numbers = numbers_of_ranks(result, session);
    const auto r = static_cast<std::size_t>(session.rank());
    EXPECT_NEAR(numbers.rank_seconds[0][r], result.micro_batch_seconds[0], 1e-9);
    EXPECT_NEAR(numbers.domain_seconds[0][r], result.domain_seconds[0], 1e-9);
  });
}

// Each part of a group's program by the time that it took, waiting included: all of a micro-batch's
// time is some part's, but for what is done before it begins.
TEST_F(Session, CountsTheSecondsOfParts) {
  Plan two = plan("UlyssesZ", "gather");
  two.micro_batches[0].groups = {
      {.ranks = {0, 1}, .documents = {0, 2, 3}, .program = "all"},
      {.ranks = {2}, .documents = {1}, .program = "all"}};
  two.micro_batches.push_back(two.micro_batches[0]);
  two.micro_batches[0].groups[0].documents = {0};
  two.micro_batches[1].groups[0].documents = {2, 3};
  two.micro_batches[1].groups[1].documents = {};
  const std::vector<CostedPart> parts = costed_parts(two.programs.at("all"));
  ASSERT_EQ(parts.size(), 4U);  // attention, mlp, moves, the rest
  const auto batch = items();
  run_local_ranks(kRanks, {}, [&](Communicators& communicators) {
    RankSession session(communicators, text_model(model_), {.times_parts = 2});
    test::fill(session.parameters(), weights_);
    EXPECT_TRUE(session.play(two, {.items = batch}, /*backward=*/false).part_seconds.empty());
    for (int batches = 0; batches < 6; ++batches) {
      const BatchResult result = session.play(two, {.items = batch}, /*backward=*/true);
      if (batches == 3 || batches == 5) {  // not of the first two, nor a second one
        EXPECT_TRUE(result.part_seconds.empty()) << batches;
        continue;
      }
      ASSERT_EQ(result.part_seconds.size(), 2U) << batches;
      for (std::size_t m = 0; m < 2; ++m) {
        const std::vector<double>& seconds = result.part_seconds[m];
        ASSERT_EQ(seconds.size(), parts.size());
        for (std::size_t p = 0; p < parts.size(); ++p) {
          EXPECT_EQ(seconds[p] > 0, parts[p].part != "move") << parts[p].part;
        }
        const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
        EXPECT_LE(sum, result.micro_batch_seconds[m]);
      }
    }
  });
  on_ranks([&](RankSession& session) {  // nobody asked
    EXPECT_TRUE(session.play(two, {.items = batch}, /*backward=*/true).part_seconds.empty());
  });
}

// From restart() until the last ran() all time is some part's.
TEST(PartTimes, LeaveNoTimeOut) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  PartTimes times;
  std::vector<double> least;  // [micro-batch]
  std::vector<double> most;
  for (int micro = 0; micro < 3; ++micro) {
    const auto before = Clock::now();
    times.restart(2);
    const auto begun = Clock::now();
    times.ran(0, PartPhase::forward);
    times.ran(1, PartPhase::forward);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    times.ran(1, PartPhase::backward);
    least.push_back(since(begun));
    times.ran(0, PartPhase::backward);
    most.push_back(since(before));
  }
  const auto played = times.take();
  ASSERT_EQ(played.size(), 3U);
  for (std::size_t micro = 0; micro < 3; ++micro) {
    double sum = 0;
    for (const auto& phases : played[micro].wall) {
      sum = std::accumulate(phases.begin(), phases.end(), sum);
    }
    EXPECT_GE(sum, least[micro] - 1e-9);
    EXPECT_LE(sum, most[micro] + 1e-9);
  }
  EXPECT_TRUE(times.take().empty());
}

TEST(RankNumbers, IdleIsWhatIsWaitedBeyondTheRankThatWaitsLeast) {
  const RankNumbers numbers{
      .rank_seconds = {{4, 4, 4}, {2, 3, 2}}, .domain_seconds = {{0.5, 2, 3}, {0.25, 0.25, 0}}};
  EXPECT_EQ(
      numbers.idle_seconds(), (std::vector<std::vector<double>>{{0, 1.5, 2.5}, {0.25, 0.25, 0}}));
}

}  // namespace
}  // namespace paradyse
