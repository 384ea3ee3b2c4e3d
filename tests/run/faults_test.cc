// Faults in the middle of a batch, from the outside: whatever happens on one rank, all ranks end in
// bounded time, with a message that says what happened.
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/plan.h"
#include "paradyse/run/gradients.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/model/text/text_shape.h"
#include "src/run/comm/observed.h"
#include "src/run/weights/safetensors.h"
#include "tests/support/folder.h"
#include "tests/support/models.h"
#include "tests/support/plans.h"
#include "tests/support/recovery.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

// Long enough that a busy machine is not taken for a stalled rank.
constexpr LocalOptions kLocal{.deadline = milliseconds(30000), .grace = milliseconds(30000)};
constexpr milliseconds kDeadline{500};
constexpr LocalOptions kStall{.deadline = kDeadline, .grace = milliseconds(30000)};

int repeats() { return std::getenv("PARADYSE_TEST_LONG") != nullptr ? 50 : 3; }

std::ptrdiff_t threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Counts the operations of a rank over all of its communicators; before the chosen one does
// `strike`.
class Striker final : public CommunicationObserver {
 public:
  Striker(int operation, std::function<void()> strike)
      : operation_(operation), strike_(std::move(strike)) {}
  void enter(Moment moment, const Call& /*call*/) override {
    if (moment == Moment::operation && operations_++ == operation_) {
      strike_();
    }
  }
  void leave() override {}

  [[nodiscard]] int operations() const { return operations_; }

 private:
  int operation_;
  int operations_ = 0;
  std::function<void()> strike_;
};

// Every strategy, a row of Ulysses, MLPs in tiles.
std::vector<LayerChoice> choices() {
  std::vector<LayerChoice> all;
  for (const auto& [attention, mlp] : test::pure_strategies()) {
    all.push_back(text_layer(attention, mlp));
  }
  LayerChoice grid = text_layer("USP", "hold");
  part_of(grid, "attention").options["ulysses_degree"] = 3;
  part_of(grid, "mlp").options["token_tiles"] = 2;
  all.push_back(grid);
  return all;
}

class Faults : public testing::Test {
 protected:
  void SetUp() override { threads_ = threads(); }
  void TearDown() override { EXPECT_EQ(threads(), threads_) << "a thread is left over"; }

  Plan plan(LayerChoice choice, int ranks, Recompute level = Recompute::none) const {
    for (PartChoice& part : choice) {
      part.recompute = level;
    }
    return test::uniform_plan(model_, lengths_, ranks, choice);
  }

  GradientRequest request(const Plan& plan) const {
    return {
        .model = text_model(model_),
        .fill = [this](Parameters& parameters) { test::fill(parameters, weights_); },
        .plan = &plan,
        .items = items_of(documents_),
        .dtype = Dtype::float32,
        .backend = local_backend(kLocal)};
  }

  // Runs a batch on `plan.ranks` ranks as gradients() does, with `strike` on `rank` before its
  // operation number `operation`.  What each rank fails of is in messages_.
  void play_with_fault(
      const Plan& plan,
      int rank,
      int operation,
      const std::function<void()>& strike,
      int* operations = nullptr,
      const LocalOptions& options = kLocal) {
    messages_.assign(static_cast<std::size_t>(plan.ranks), "");
    const std::vector<Item> items = items_of(documents_);
    run_local_ranks(plan.ranks, options, [&](Communicators& communicators) {
      const int me = communicators.rank();
      try {
        Striker striker(me == rank ? operation : -1, strike);
        ObservedCommunicators faulty(communicators, striker);
        RankSession session(faulty, text_model(model_), {.weight_domain = plan.weight_domain});
        test::fill(session.parameters(), weights_);
        session.play(plan, {.items = items}, /*backward=*/true);
        if (operations != nullptr && me == rank) {
          *operations = striker.operations();
        }
      } catch (const std::exception& error) {
        messages_[static_cast<std::size_t>(me)] = error.what();
        throw;
      }
    });
  }

  // Gradients of all ranks of a batch in which rank 1 lacked memory before `operation` at first, as
  // `strike` says it and recover() tells all.
  std::vector<at::Tensor> gradients_after_recovery(
      const Plan& plan,
      int operation,
      const std::function<void()>& strike = [] { throw OutOfMemory("rank 1: out of memory"); },
      const std::string& reason = "rank 1: out of memory") const {
    std::vector<std::vector<at::Tensor>> of_ranks(static_cast<std::size_t>(plan.ranks));
    const std::vector<Item> items = items_of(documents_);
    run_local_ranks(plan.ranks, kLocal, [&](Communicators& communicators) {
      const int me = communicators.rank();
      Striker striker(me == 1 ? operation : -1, strike);
      ObservedCommunicators faulty(communicators, striker);
      RankSession session(faulty, text_model(model_), {.weight_domain = plan.weight_domain});
      test::fill(session.parameters(), weights_);
      test::play_until_memory_suffices(plan, items, session, reason);
      of_ranks[static_cast<std::size_t>(me)] = test::held_gradients(session.parameters());
    });
    std::vector<at::Tensor> all;
    for (const auto& grads : of_ranks) {
      all.insert(all.end(), grads.begin(), grads.end());
    }
    return all;
  }

  TextShape model_ = test::llama({.heads = 6, .kv_heads = 2, .ffn = 13, .vocab = 31});
  std::vector<std::int64_t> lengths_ = {5, 1, 12, 3, 8};
  std::vector<std::vector<std::int32_t>> documents_ = test::random_documents(lengths_, 31, 5);
  test::Weights weights_ = test::random_weights(model_, 5);
  std::vector<std::string> messages_;  // [rank]
  std::ptrdiff_t threads_ = 0;
};

TEST_F(Faults, WeightsThatCannotBeRead) {
  for (int repeat = 0; repeat < repeats(); ++repeat) {
    for (const LayerChoice& choice : choices()) {
      const Plan p = plan(choice, 3);
      GradientRequest r = request(p);
      r.fill = [&](Parameters& parameters) {
        if (parameters.domain_rank() == 1) {
          throw Fault("no such tensor: lm_head.weight");
        }
        test::fill(parameters, weights_);
      };
      EXPECT_EQ(test::refusal<Fault>([&] { gradients(r); }), "no such tensor: lm_head.weight");
    }
  }
}

// Before each of a step's operations in turn: the first failure comes out and all ranks end.
TEST_F(Faults, ARankThatThrowsAnywhereInAStep) {
  for (int repeat = 0; repeat < repeats(); ++repeat) {
    for (const LayerChoice& choice : choices()) {
      const Plan p = plan(choice, 3, repeat % 2 == 0 ? Recompute::none : Recompute::full);
      int operations = 0;
      play_with_fault(p, 1, -1, [] {}, &operations);
      EXPECT_GT(operations, 10);
      for (int operation = 0; operation < operations; ++operation) {
        EXPECT_EQ(
            test::refusal<Fault>(
                [&] { play_with_fault(p, 1, operation, [] { throw Fault("a broken disk"); }); }),
            "a broken disk");
        for (int rank = 0; rank < p.ranks; ++rank) {
          const std::string& message = messages_[static_cast<std::size_t>(rank)];
          const bool through = rank != 1 && operation > operations / 2 && message.empty();
          // after the last operations that it shares with rank 1 a rank may be through
          if (!through) {
            EXPECT_EQ(message, rank == 1 ? "a broken disk" : "rank 1 failed: a broken disk")
                << "rank " << rank << " at operation " << operation << " of " << operations;
          }
        }
      }
    }
  }
}

// Before each of a step's operations in turn one rank lacks memory: all ranks recover, and the step
// runs again to the same bits, nothing of the first try left.
TEST_F(Faults, AStepThatLacksMemoryAnywhereRunsAgain) {
  for (int repeat = 0; repeat < repeats(); ++repeat) {
    for (const LayerChoice& choice : choices()) {
      const Plan p = plan(choice, 3, repeat % 2 == 0 ? Recompute::none : Recompute::full);
      int operations = 0;
      play_with_fault(p, 1, -1, [] {}, &operations);
      std::vector<at::Tensor> expected;
      for (int operation = -1; operation < operations; operation += repeat == 0 ? 1 : 3) {
        const std::vector<at::Tensor> found = gradients_after_recovery(p, operation);
        if (operation == -1) {
          expected = found;
        }
        ASSERT_EQ(found.size(), expected.size());
        for (std::size_t i = 0; i < found.size(); ++i) {
          ASSERT_TRUE(at::equal(found[i], expected[i])) << name(choice) << " " << operation;
        }
      }
    }
  }
}

// The machine itself has no memory left, as torch, CUDA and the host say: the same.
TEST_F(Faults, AMachineThatIsFullIsNoOtherLackOfMemory) {
  struct Lack {
    std::function<void()> strike;
    std::string reason;
  };
  const std::vector<Lack> lacks = {
      {[] { TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried ..."); },
       "the device itself has nothing left"},
      {[] { throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 2, "out of memory"); },
       "CUDA itself has nothing left"},
      {[] { throw std::bad_alloc(); }, "the system itself has nothing left"}};
  const Plan p = plan(text_layer("UlyssesZ", "gather"), 3);
  int operations = 0;
  play_with_fault(p, 1, -1, [] {}, &operations);
  const std::vector<at::Tensor> expected = gradients_after_recovery(p, -1);
  for (int operation = 0; operation < operations; operation += 5) {
    const Lack& lack = lacks[static_cast<std::size_t>(operation) % lacks.size()];
    const std::vector<at::Tensor> found =
        gradients_after_recovery(p, operation, lack.strike, lack.reason);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      ASSERT_TRUE(at::equal(found[i], expected[i])) << operation;
    }
  }
  // in the middle of an op, without recovery, it is told as a budget's lack is
  for (const Lack& lack : lacks) {
    EXPECT_THAT(
        test::refusal<OutOfMemory>([&] { play_with_fault(p, 1, operations / 2, lack.strike); }),
        testing::MatchesRegex(
            "rank 1: out of memory in .*layer 1.+: .+ itself has nothing left, with .+ in use "
            ".parameters .+Largest holders: .+"));
  }
  EXPECT_THROW(
      play_with_fault(
          p,
          1,
          operations / 2,
          [] { throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 700, "an address"); }),
      c10::AcceleratorError);
}

// A rank that fails for good while others recover: they hear of it at once.
TEST_F(Faults, ARankThatFailsForGoodWhileOthersRecover) {
  for (int repeat = 0; repeat < repeats(); ++repeat) {
    EXPECT_EQ(
        test::refusal<Fault>([&] {
          run_local_ranks(4, kLocal, [&](Communicators& communicators) {
            const int me = communicators.rank();
            if (me == 3) {
              std::this_thread::sleep_for(milliseconds(5 * (repeat % 3)));
              throw Fault("a broken disk");
            }
            try {
              if (me == 0) {
                throw OutOfMemory("rank 0: out of memory");
              }
              communicators.world().barrier({.op = "never", .part = ""});
            } catch (const OutOfMemory& error) {
              communicators.interrupt(error.what());
            } catch (const Aborted&) {
            }
            EXPECT_THROW(communicators.recover(), Aborted);
            throw Aborted("over");
          });
        }),
        "a broken disk");
  }
}

TEST_F(Faults, ARankThatDoesNotComeToRecover) {
  EXPECT_THAT(
      test::refusal<CommunicatorError>([&] {
        run_local_ranks(3, kStall, [&](Communicators& communicators) {
          if (communicators.rank() == 1) {
            std::this_thread::sleep_for(3 * kDeadline);
            return;
          }
          communicators.interrupt("rank 0: out of memory");
          communicators.recover();
        });
      }),
      HasSubstr(
          "for all ranks to abort the interrupted operation (rank 0: out of memory): rank 1 did "
          "not arrive"));
}

TEST_F(Faults, ARankThatStallsPastTheDeadline) {
  int turn = 0;
  for (int repeat = 0; repeat < repeats() / 3; ++repeat) {  // each takes three deadlines
    for (const LayerChoice& choice : choices()) {
      const Plan p = plan(choice, 3);
      const int operation = 3 + 5 * turn++ % 12;
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_THAT(
          test::refusal<CommunicatorError>([&] {
            play_with_fault(
                p,
                2,
                operation,
                [] { std::this_thread::sleep_for(3 * kDeadline); },
                nullptr,
                kStall);
          }),
          testing::AllOf(
              HasSubstr("waited 500 ms in "),
              HasSubstr("for rank 2; that rank is stuck, slow or gone")));
      EXPECT_THAT(messages_, testing::Each(HasSubstr("for rank 2; that rank is stuck")));
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 10 * kDeadline + milliseconds(5000));
    }
  }
}

// From what the parameters take to just below the peak: every rank ends, and the message names op,
// request and budget.  With the peak that was measured it fits.
TEST_F(Faults, ABudgetThatIsTooSmall) {
  for (int repeat = 0; repeat < repeats(); ++repeat) {
    for (const LayerChoice& choice : choices()) {
      for (const Recompute level : {Recompute::none, Recompute::full}) {
        const Plan p = plan(choice, 3, level);
        GradientRequest r = request(p);
        std::int64_t peak = 0;
        for (const RankReport& rank : gradients(r).ranks) {
          peak = std::max(peak, rank.peak_bytes);
        }
        for (const double share : {0.01, 0.4, 0.6, 0.8, 0.9, 0.99}) {
          r.memory_per_rank = static_cast<std::int64_t>(share * static_cast<double>(peak));
          EXPECT_THAT(
              test::refusal<OutOfMemory>([&] { gradients(r); }),
              testing::AllOf(
                  testing::MatchesRegex(
                      "rank [0-2]: out of memory in .+: requested .+ with .+ of a "
                      "budget of .+ in use.+"),
                  HasSubstr("budget of " + bytes_text(r.memory_per_rank))));
        }
        r.memory_per_rank = peak;
        EXPECT_NO_THROW(gradients(r));
      }
    }
  }
}

// A loss that is no number is refused, on all ranks alike.
TEST_F(Faults, NaNWeightsAreRefused) {
  for (int repeat = 0; repeat < repeats(); ++repeat) {
    for (const LayerChoice& choice : choices()) {
      const Plan p = plan(choice, 3);
      GradientRequest r = request(p);
      r.fill = [&](Parameters& parameters) {
        test::fill(parameters, weights_);
        if (parameters.domain_rank() == 1) {
          parameters.parts()[1].stack.fill_(std::numeric_limits<double>::quiet_NaN());
        }
      };
      EXPECT_THROW(gradients(r), NotFinite);
    }
  }
}

// Weights that all ranks read from one file, and that are no weights of this model: cut off, with a
// header that lies about its length, tensors over each other, a type that is no weight's.
TEST_F(Faults, FilesThatAreNoWeights) {
  const test::Folder folder;
  const std::filesystem::path file = folder / "model.safetensors";
  test::Weights narrow;
  for (const auto& [name, tensor] : weights_) {
    narrow[name] = tensor.to(at::kFloat).contiguous();
  }
  test::write_tensors(file, narrow);
  std::ostringstream bytes;
  bytes << std::ifstream(file, std::ios::binary).rdbuf();
  const std::string whole = bytes.str();
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = whole;
    const std::size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return changed.replace(at, from.size(), to);
  };
  const std::vector<std::pair<std::string, std::string>> files = {
      {whole.substr(0, whole.size() / 2), "model.safetensors"},
      {whole.substr(0, 5), "model.safetensors"},
      {"\xff\xff\xff\xff\xff\xff\xff\x7f" + whole.substr(8), "model.safetensors"},
      {with("\"data_offsets\":[0,", "\"data_offsets\":[4,"), "model.safetensors"},
      {with("\"dtype\":\"F32\"", "\"dtype\":\"I32\""), "is stored as Int"},
      {with("\"dtype\":\"F32\"", "\"dtype\":\"F64\""), "model.safetensors"}};
  for (int repeat = 0; repeat < repeats(); ++repeat) {
    for (const auto& [content, said] : files) {
      std::ofstream(file, std::ios::binary | std::ios::trunc) << content;
      const Plan p = plan(choices()[0], 3);
      GradientRequest r = request(p);
      r.fill = [&](Parameters& parameters) { parameters.load(SafetensorsReader(file)); };
      EXPECT_THAT(test::refusal<std::runtime_error>([&] { gradients(r); }), HasSubstr(said));
    }
  }
}

TEST_F(Faults, TokenIdsOutsideTheVocabularyAreRefused) {
  for (const std::int32_t id : {-1, static_cast<std::int32_t>(model_.vocab)}) {
    const Plan p = plan(choices()[0], 3);
    GradientRequest r = request(p);
    auto documents = documents_;
    documents.back().back() = id;
    r.items = items_of(documents);
    EXPECT_THROW(gradients(r), std::invalid_argument);
  }
}

TEST_F(Faults, PlansThatDiffer) {
  for (int repeat = 0; repeat < repeats(); ++repeat) {
    const Plan one = plan(choices()[0], 3);
    const Plan other = plan(choices()[1], 3);
    std::vector<std::string> messages(3);
    const std::vector<Item> items = items_of(documents_);
    EXPECT_THROW(
        run_local_ranks(
            3,
            kLocal,
            [&](Communicators& communicators) {
              const auto me = static_cast<std::size_t>(communicators.rank());
              RankSession session(communicators, text_model(model_));
              test::fill(session.parameters(), weights_);
              try {
                session.play(me == 2 ? other : one, {.items = items}, /*backward=*/true);
              } catch (const std::exception& error) {
                messages[me] = error.what();
                throw;
              }
            }),
        CommunicatorError);
    for (const std::string& message : messages) {
      EXPECT_THAT(message, HasSubstr("rank 2 holds another plan than rank 0"));
    }
  }
}

// Documents that are not those of the plan.
TEST_F(Faults, DocumentsOfAnotherLength) {
  for (int repeat = 0; repeat < repeats(); ++repeat) {
    for (const LayerChoice& choice : choices()) {
      const Plan p = plan(choice, 3);
      GradientRequest r = request(p);
      r.items[2].tokens = r.items[2].tokens.first(r.items[2].tokens.size() - 1);
      EXPECT_THROW(gradients(r), std::invalid_argument);
    }
  }
}

}  // namespace
}  // namespace paradyse
