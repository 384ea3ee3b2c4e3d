// Ranks that are processes: the same bits and counts as threads, and whatever happens to one of
// them, all others end in bounded time with a message that says what happened.
#include <csignal>
#include <cstdlib>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "paradyse/gradients.h"
#include "paradyse/planner.h"
#include "src/run/comm/gloo/backend.h"
#include "tests/support/models.h"
#include "tests/support/processes.h"

namespace paradyse {
namespace {

using std::chrono::milliseconds;
using test::Ended;
using test::Processes;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

int fault_repeats() { return std::getenv("PARADYSE_TEST_LONG") != nullptr ? 50 : 3; }

GlooOptions patient(milliseconds deadline) {
  GlooOptions options;
  options.deadline = deadline;
  return options;
}

// Starts a fault's repeats three at a time (they mostly wait) and checks how each ended.
void repeatedly(
    const std::function<Processes(int repeat)>& start,
    const std::function<void(int repeat, const std::vector<Ended>& ended)>& check) {
  constexpr int kAtOnce = 3;
  for (int first = 0; first < fault_repeats(); first += kAtOnce) {
    std::vector<Processes> sets;
    for (int repeat = first; repeat < std::min(first + kAtOnce, fault_repeats()); ++repeat) {
      sets.push_back(start(repeat));
    }
    for (std::size_t i = 0; i < sets.size(); ++i) {
      check(first + static_cast<int>(i), sets[i].wait());
    }
  }
}

// What the others wait at most beyond a deadline: for the store, and for a process to end.
constexpr double kSlackSeconds = 25;

// --- the same as threads -------------------------------------------------------------------------

at::Tensor numbers(std::int64_t n, int seed) {
  at::Tensor x = at::empty({n, 1}, at::kFloat);
  std::mt19937 random(static_cast<unsigned>(seed));
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < n; ++i) {
    x.mutable_data_ptr<float>()[i] = normal(random);
  }
  return x;
}

// Sums whose bits depend on the order of ranks.
std::vector<at::Tensor> sums(Communicators& communicators, at::ScalarType type) {
  Communicator& world = communicators.world();
  const std::int64_t n = 3000;
  const at::Tensor mine = numbers(n, world.rank()).to(type);
  const at::Tensor all = mine.clone();
  world.all_reduce(all, {.op = "all", .part = ""});
  const Transfer table =
      transfer({n, 1}, shard(0, even_cuts(n, world.size())), replicate(), world.size());
  const Extent extent = table.source[static_cast<std::size_t>(world.rank())];
  const at::Tensor part = at::ones({extent.rows, 1}, at::kFloat);
  world.exchange_sum(mine, part, table, true, {.op = "part", .part = ""})->wait();
  const at::Tensor rooted = mine.clone();
  world.reduce(rooted, world.size() - 1, {.op = "root", .part = ""});
  return {all, part, rooted};
}

TEST(Gloo, SumsHaveTheBitsOfThreads) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    test::expect_processes(4, [&](Backend& backend) {
      std::vector<at::Tensor> mine;
      backend.run(4, [&](Communicators& communicators) { mine = sums(communicators, type); });
      run_local_ranks(4, {}, [&](Communicators& communicators) {
        const auto theirs = sums(communicators, type);
        if (communicators.rank() == backend.first_rank()) {
          for (std::size_t i = 0; i < mine.size(); ++i) {
            EXPECT_TRUE(at::equal(mine[i], theirs[i])) << "sum " << i;
          }
        }
      });
    });
  }
}

LayerChoice layer(const char* attention, const char* mlp) {
  return {attention, mlp, Recompute::light, Recompute::none};
}

// The gradients of a batch, bit by bit those of threads; bytes, messages, saved bytes and peak
// those of the folds.
TEST(Gloo, GradientsAndCountsAreThoseOfThreads) {
  const std::vector<std::vector<LayerChoice>> ways = {
      {layer("MegatronTS", "hold"), layer("MegatronTS", "hold")},
      {layer("UlyssesZ", "gather"), layer("UlyssesZ", "gather")},
      {layer("DataZ", "gather"), layer("DataZ", "gather")},
      {layer("UlyssesZ", "hold"), layer("MegatronTS", "gather")}};
  for (const int p : {2, 3, 4}) {
    test::expect_processes(p, [&](Backend& backend) {
      const std::shared_ptr<Backend> shared(&backend, [](Backend*) {});
      const ModelShape model = test::llama({.heads = 6, .kv_heads = 2, .ffn = 13, .vocab = 31});
      const std::vector<std::int64_t> lengths = {1, 9, 2, 17, 3};
      const test::Weights weights = test::random_weights(model, 11);
      for (const auto& layers : ways) {
        const Plan plan = uniform_plan(model, lengths, p, layers);
        GradientRequest request{
            .model = &model,
            .fill = [&](Parameters& parameters) { test::fill(parameters, weights); },
            .plan = &plan,
            .documents = test::random_documents(lengths, model.vocab, 7),
            .dtype = "float32",
            .backend = shared};
        const GradientAnswer mine = gradients(request);
        if (!backend.leads()) {
          EXPECT_TRUE(mine.ranks.empty());
          continue;
        }
        request.backend = local_backend();
        const GradientAnswer theirs = gradients(request);
        const std::string name = layers[0].attention + "+" + layers[1].attention;
        EXPECT_EQ(mine.batch.loss, theirs.batch.loss) << name;
        EXPECT_FALSE(mine.gradients.empty());
        for (const auto& [parameter, gradient] : theirs.gradients) {
          EXPECT_TRUE(at::equal(mine.gradients.at(parameter), gradient)) << name << parameter;
        }
        ASSERT_EQ(mine.ranks.size(), static_cast<std::size_t>(p));
        for (int r = 0; r < p; ++r) {
          const RankReport said = predicted_report(
              plan, model, r, precision_of("float32"), 8 * stored_elements(model, p, r));
          const RankReport& counted = mine.ranks[static_cast<std::size_t>(r)];
          EXPECT_EQ(counted.bytes_sent, said.bytes_sent) << name << " rank " << r;
          EXPECT_EQ(counted.messages, said.messages) << name << " rank " << r;
          EXPECT_EQ(counted.saved_bytes, said.saved_bytes) << name << " rank " << r;
          EXPECT_EQ(counted.peak_bytes, theirs.ranks[static_cast<std::size_t>(r)].peak_bytes)
              << name << " rank " << r;
        }
      }
    });
  }
}

// A run of fewer ranks than processes, between others.
// What the `nccl` backend is made of: its communicators come before gloo's.
TEST(Gloo, ALayerHasEveryRun) {
  struct Passing final : gloo::Layer {
    std::unique_ptr<gloo::RankCommunicators> over(
        std::unique_ptr<gloo::RankCommunicators> beneath, int ranks) override {
      EXPECT_EQ(beneath->size(), ranks);
      ++runs;
      return beneath;
    }
    int runs = 0;
  };
  const auto rendezvous = serve_rendezvous("127.0.0.1", 0);
  GlooOptions options;
  options.port = rendezvous->port();
  options.kept_elsewhere = true;
  Passing* layer = nullptr;
  const auto backend =
      gloo::layered_backend(options, "layered", [&](gloo::Store& store, gloo::Watch& watch) {
        store.set("a layer's", "key");
        watch.check();
        auto made = std::make_unique<Passing>();
        layer = made.get();
        return made;
      });
  EXPECT_EQ(backend->name(), "layered");
  backend->run(1, [](Communicators&) {});
  backend->run(1, [](Communicators&) {});
  ASSERT_NE(layer, nullptr);
  EXPECT_EQ(layer->runs, 2);
  backend->leave();
}

TEST(Gloo, FewerRanksThanProcesses) {
  test::expect_processes(3, [](Backend& backend) {
    int runs = 0;
    for (const int ranks : {3, 1, 2, 3}) {
      backend.run(ranks, [&](Communicators& communicators) {
        EXPECT_EQ(communicators.size(), ranks);
        EXPECT_LT(communicators.rank(), ranks);
        const at::Tensor x = at::ones({5});
        communicators.world().all_reduce(x, {.op = "sum", .part = ""});
        EXPECT_TRUE(at::equal(x, at::full({5}, static_cast<double>(ranks))));
        ++runs;
      });
    }
    EXPECT_EQ(runs, backend.first_rank() == 0 ? 4 : backend.first_rank() == 1 ? 3 : 2);
    EXPECT_THROW(backend.run(4, [](Communicators&) {}), std::invalid_argument);
  });
}

// --- what can go wrong ---------------------------------------------------------------------------

void meet_for_ever(Communicators& communicators) {
  const at::Tensor x = at::ones({1000});
  while (true) {
    communicators.world().all_reduce(x, {.op = "tokens", .part = "attention", .layer = 5});
  }
}

// A body in which rank `victim` does `strike` after some operations.
std::function<void(Backend&)> struck(int victim, const std::function<void()>& strike) {
  return [victim, strike](Backend& backend) {
    backend.run(4, [&](Communicators& communicators) {
      for (int i = 0; i < 5; ++i) {
        communicators.world().barrier({.op = "before", .part = ""});
      }
      if (communicators.rank() == victim) {
        strike();
      }
      meet_for_ever(communicators);
    });
  };
}

void expect_all_others_end(const std::vector<Ended>& ended, int victim, double seconds) {
  for (std::size_t r = 0; r < ended.size(); ++r) {
    if (static_cast<int>(r) != victim) {
      EXPECT_EQ(ended[r].code, 3) << "rank " << r;
      EXPECT_LT(ended[r].seconds, seconds) << "rank " << r;
    }
  }
}

TEST(GlooFaults, AKilledRankIsNamed) {
  repeatedly(
      [](int repeat) {
        return Processes(
            4, struck(1 + repeat % 3, [] { raise(SIGKILL); }), patient(milliseconds(60000)));
      },
      [](int repeat, const std::vector<Ended>& ended) {
        const int victim = 1 + repeat % 3;
        EXPECT_EQ(ended[static_cast<std::size_t>(victim)].code, 128 + SIGKILL);
        expect_all_others_end(ended, victim, kSlackSeconds);  // long before the deadline
        for (std::size_t r = 0; r < 4; ++r) {
          if (static_cast<int>(r) != victim) {
            EXPECT_THAT(
                ended[r].message,
                AllOf(
                    HasSubstr("rank " + std::to_string(victim) + " is gone"),
                    HasSubstr("of layer 5 attention tokens")));
          }
        }
      });
}

// Rank 0 keeps the rendezvous, too, by which the others would agree.
TEST(GlooFaults, RankZeroKilled) {
  repeatedly(
      [](int) {
        return Processes(4, struck(0, [] { raise(SIGKILL); }), patient(milliseconds(60000)));
      },
      [](int, const std::vector<Ended>& ended) {
        expect_all_others_end(ended, 0, kSlackSeconds);
        for (std::size_t r = 1; r < 4; ++r) {
          EXPECT_THAT(
              ended[r].message,
              AnyOf(
                  HasSubstr("rank 0 is gone"),
                  HasSubstr("kept by rank 0, which is gone or stopped")));
        }
      });
}

TEST(GlooFaults, AStoppedRankIsNamed) {
  repeatedly(
      [](int repeat) {
        return Processes(
            4, struck(1 + repeat % 3, [] { raise(SIGSTOP); }), patient(milliseconds(3000)));
      },
      [](int repeat, const std::vector<Ended>& ended) {
        const int victim = 1 + repeat % 3;
        expect_all_others_end(ended, victim, 3 + kSlackSeconds);
        for (std::size_t r = 0; r < 4; ++r) {
          if (static_cast<int>(r) != victim) {
            EXPECT_THAT(
                ended[r].message,
                AllOf(
                    HasSubstr("waited 3000 ms in exchange"),
                    HasSubstr("of layer 5 attention tokens"),
                    HasSubstr("rank " + std::to_string(victim) + " gives no sign of life")));
          }
        }
      });
}

TEST(GlooFaults, RankZeroStopped) {
  repeatedly(
      [](int) {
        return Processes(4, struck(0, [] { raise(SIGSTOP); }), patient(milliseconds(3000)));
      },
      [](int, const std::vector<Ended>& ended) {
        expect_all_others_end(ended, 0, 3 + kSlackSeconds);
        for (std::size_t r = 1; r < 4; ++r) {
          EXPECT_THAT(ended[r].message, HasSubstr("kept by rank 0, which is gone or stopped"));
        }
      });
}

TEST(GlooFaults, AThrowingRankFreesAll) {
  repeatedly(
      [](int repeat) {
        return Processes(
            4,
            struck(repeat % 4, [] { throw std::domain_error("a broken disk"); }),
            patient(milliseconds(60000)));
      },
      [](int repeat, const std::vector<Ended>& ended) {
        const int victim = repeat % 4;
        for (std::size_t r = 0; r < 4; ++r) {
          EXPECT_EQ(ended[r].code, 3);
          EXPECT_LT(ended[r].seconds, kSlackSeconds);
          EXPECT_EQ(
              ended[r].message,
              static_cast<int>(r) == victim
                  ? "a broken disk"
                  : "rank " + std::to_string(victim) + " failed: a broken disk");
        }
      });
}

// A rank that lives but does not come, and one that waits for it in another group: the one to
// blame is named by all.
TEST(GlooFaults, ASlowRankIsNamedThroughAChain) {
  repeatedly(
      [](int) {
        const auto body = [](Backend& backend) {
          backend.run(3, [](Communicators& communicators) {
            const int me = communicators.rank();
            if (me == 0) {
              communicators.group({0, 1}).barrier({.op = "front", .part = ""});
              return;
            }
            if (me == 2) {
              std::this_thread::sleep_for(std::chrono::seconds(5));
            }
            communicators.group({1, 2}).barrier({.op = "back", .part = ""});
          });
        };
        return Processes(3, body, patient(milliseconds(2500)));
      },
      [](int, const std::vector<Ended>& ended) {
        for (const Ended& one : ended) {
          EXPECT_EQ(one.code, 3);
          EXPECT_THAT(one.message, HasSubstr("rank 2 is stuck or slow"));
          EXPECT_THAT(one.message, HasSubstr("barrier of back"));
          EXPECT_THAT(one.message, HasSubstr("--deadline"));
        }
      });
}

// Long before the deadline, with both names, on all ranks; also where only the sizes differ.
TEST(GlooFaults, RanksThatDisagreeAreNamed) {
  for (const bool sizes : {false, true}) {
    repeatedly(
        [sizes](int) {
          const auto body = [sizes](Backend& backend) {
            backend.run(3, [&](Communicators& communicators) {
              const bool odd = communicators.rank() == 1;
              const at::Tensor x = at::zeros({odd && sizes ? 7 : 3});
              if (odd && !sizes) {
                communicators.world().all_reduce(x, {.op = "losses", .part = ""});
              } else {
                communicators.world().broadcast(x, 2, {.op = "plan hash", .part = "", .layer = 2});
                communicators.world().barrier({.op = "never", .part = ""});
              }
            });
          };
          return Processes(3, body, patient(milliseconds(60000)));
        },
        [sizes](int, const std::vector<Ended>& ended) {
          for (const Ended& one : ended) {
            EXPECT_EQ(one.code, 3);
            EXPECT_LT(one.seconds, kSlackSeconds);
            EXPECT_THAT(
                one.message, HasSubstr("ranks disagree about operation 0 of ranks 0, 1, 2"));
            EXPECT_THAT(
                one.message,
                HasSubstr(sizes ? "(7 elements of Float)" : "in exchange_sum of losses"));
            EXPECT_THAT(
                one.message, HasSubstr("broadcast of layer 2 plan hash (3 elements of Float)"));
          }
        });
  }
}

// --- ranks that do not meet ----------------------------------------------------------------------

TEST(GlooRendezvous, ARankThatNeverComesIsNamed) {
  repeatedly(
      [](int) {
        return Processes(
            4, [](Backend&) {}, patient(milliseconds(1500)), [](int rank) { return rank == 2; });
      },
      [](int, const std::vector<Ended>& ended) {
        expect_all_others_end(ended, 2, kSlackSeconds);
        for (const std::size_t r : {0, 1, 3}) {
          EXPECT_THAT(
              ended[r].message, HasSubstr("rank 2 of 4 did not come to the rendezvous at 127."));
        }
      });
}

TEST(GlooRendezvous, ThatIsNotThereIsNamedInTime) {
  GlooOptions options;
  options.patience = milliseconds(2000);
  const auto ended =
      Processes(3, [](Backend&) {}, options, [](int rank) { return rank == 0; }).wait();
  for (const std::size_t r : {1, 2}) {
    EXPECT_EQ(ended[r].code, 3);
    EXPECT_LT(ended[r].seconds, 10);
    EXPECT_THAT(
        ended[r].message,
        AllOf(
            HasSubstr("could not reach the rendezvous at 127.0.0.1:"),
            HasSubstr("within 2 s"),
            HasSubstr("Connection refused")));
  }
}

TEST(GlooRendezvous, BadNamesAreRefused) {
  GlooOptions options;
  options.host = "no-such-host.invalid";
  EXPECT_THROW(gloo_backend(options), std::invalid_argument);
  options = {};
  options.interface = "no-such-0";
  EXPECT_THROW(gloo_backend(options), std::invalid_argument);
  options = {};
  options.rank = 3;
  EXPECT_THROW(gloo_backend(options), std::invalid_argument);
}

}  // namespace
}  // namespace paradyse
