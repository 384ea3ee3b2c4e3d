// Ranks that are processes: the same bits and counts as threads, and whatever happens to one of
// them, all others end in bounded time with a message that says what happened.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>
#include <utility>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paradyse/plan/detail/transfer.h"
#include "paradyse/plan/plan.h"
#include "paradyse/run/accountant.h"
#include "paradyse/run/data.h"
#include "paradyse/run/gradients.h"
#include "paradyse/run/session.h"
#include "src/plan/model/text/text_shape.h"
#include "src/run/comm/gloo/backend.h"
#include "src/run/comm/gloo/wire.h"
#include "src/run/comm/observed.h"
#include "src/run/comm/rendezvous/address.h"
#include "tests/support/models.h"
#include "tests/support/processes.h"
#include "tests/support/random_plans.h"
#include "tests/support/recovery.h"
#include "tests/support/refusal.h"

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
  const Transfer table = transfer(
      matrix("rows", {n, 1}, even_cuts(n, world.size())), matrix("rows", {n, 1}), world.size());
  const std::int64_t count = table.source[static_cast<std::size_t>(world.rank())];
  const at::Tensor part = at::ones({count, 1}, at::kFloat);
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

LayerChoice layer(const std::string& attention, const std::string& mlp) {
  return text_layer(attention, mlp, Recompute::light, Recompute::none);
}

// Causal with rotary positions; and a masked LM with biases, learned positions and norms after
// sums, once.
std::vector<TextShape> families(int ranks) {
  std::vector<TextShape> models = {
      test::llama({.heads = 6, .kv_heads = 2, .ffn = 13, .vocab = 31})};
  if (ranks == 3) {
    models.push_back(without_dropout(test::model_of(R"({"model_type": "bert",
        "num_hidden_layers": 2, "hidden_size": 14, "num_attention_heads": 7,
        "intermediate_size": 13, "vocab_size": 31, "max_position_embeddings": 17})")));
  }
  return models;
}

// Every strategy in all layers, and two that differ between layers and parts.
std::vector<std::vector<LayerChoice>> ways() {
  std::vector<std::vector<LayerChoice>> all = {
      {layer("UlyssesZ", "hold"), layer("MegatronTS", "gather")},
      {layer("METP", "gather"), layer("MegatronCZ", "pass")}};
  for (const auto& [attention, mlp] : test::pure_strategies()) {
    all.emplace_back(2, layer(attention, mlp));
  }
  return all;
}

// The gradients of a batch, bit by bit those of threads; bytes, messages, saved bytes and peak
// those of the folds.
TEST(Gloo, GradientsAndCountsAreThoseOfThreads) {
  const std::vector<std::int64_t> lengths = {1, 9, 2, 17, 3};
  for (const int p : {2, 3, 4}) {
    test::expect_processes(p, [&](Backend& backend) {
      const std::shared_ptr<Backend> shared(&backend, [](Backend*) {});
      for (const TextShape& model : families(p)) {
        const test::Weights weights = test::random_weights(model, 11);
        const std::vector<Document> documents = test::labelled(
            test::random_documents(lengths, model.vocab, 7),
            test::random_labels(model, lengths, 7));
        for (const auto& layers : ways()) {
          SCOPED_TRACE(model.architecture + " " + name(layers[0]) + ", " + name(layers[1]));
          Plan plan = uniform_plan(model, lengths, p, layers);
          plan.messages = {.overlap = true, .reshard_after_forward = layers[0] == layers[1]};
          GradientRequest request{
              .model = text_model(model),
              .fill = [&](Parameters& parameters) { test::fill(parameters, weights); },
              .plan = &plan,
              .items = items_of(documents),
              .dtype = Dtype::float32,
              .backend = shared};
          const GradientAnswer mine = gradients(request);
          if (!backend.leads()) {
            EXPECT_TRUE(mine.ranks.empty());
            continue;
          }
          request.backend = local_backend();
          const GradientAnswer theirs = gradients(request);
          EXPECT_EQ(mine.batch.loss, theirs.batch.loss);
          EXPECT_EQ(mine.gradients.size(), theirs.gradients.size());
          for (const auto& [parameter, gradient] : theirs.gradients) {
            EXPECT_TRUE(at::equal(mine.gradients.at(parameter), gradient)) << parameter;
          }
          ASSERT_EQ(mine.ranks.size(), static_cast<std::size_t>(p));
          for (int r = 0; r < p; ++r) {
            const RankReport said =
                predicted_report(plan, text_model(model), r, precision_of(Dtype::float32));
            const RankReport& counted = mine.ranks[static_cast<std::size_t>(r)];
            EXPECT_EQ(counted.bytes_sent, said.bytes_sent) << "rank " << r;
            EXPECT_EQ(counted.messages, said.messages) << "rank " << r;
            EXPECT_EQ(counted.saved_bytes, said.saved_bytes) << "rank " << r;
            EXPECT_EQ(counted.peak_bytes, theirs.ranks[static_cast<std::size_t>(r)].peak_bytes)
                << "rank " << r;
          }
        }
      }
    });
  }
}

// Groups of any sizes side by side, as in tests/run/groups_test.cc, on fewer ranks than processes,
// too.
TEST(Gloo, RandomPlansOfGroupsGiveTheSameGradient) {
  const int plans = std::getenv("PARADYSE_TEST_LONG") != nullptr ? 300 : 24;
  test::expect_processes(4, [&](Backend& backend) {
    const std::shared_ptr<Backend> shared(&backend, [](Backend*) {});
    const std::vector<test::Case> cases = test::group_cases();
    for (int number = 0; number < plans; ++number) {
      SCOPED_TRACE("seed " + std::to_string(number));
      const test::Case& c = cases[static_cast<std::size_t>(number) % cases.size()];
      const int ranks = number % 7 == 6 ? 3 : 4;
      const Plan plan =
          test::random_plan(c.model, c.lengths, ranks, static_cast<std::uint64_t>(number));
      test::expect_equal(c, plan, Dtype::float64, 1e-10, shared);
    }
  });
}

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
  const auto rendezvous = serve_rendezvous("127.0.0.1", 0, "");
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

// A run of fewer ranks than processes, between others.
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

// Gloo's own threads, or all that a rank waits for may be stuck for ticks of the scheduler
// (wire.cc).
TEST(Gloo, ItsThreadTakesNoCoreFromThoseThatCompute) {
  if (sched_getscheduler(0) != SCHED_OTHER) {
    GTEST_SKIP() << "started under another scheduling policy, which is left as it is";
  }
  test::expect_processes(2, [](Backend& backend) {
    int background = 0;
    backend.run(2, [&](Communicators&) {
      EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
      for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        const int id = std::stoi(task.path().filename());
        background += sched_getscheduler(id) == SCHED_BATCH ? 1 : 0;
      }
    });
    EXPECT_GE(background, 1);
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

[[noreturn]] void break_disk() { throw std::domain_error("a broken disk"); }

// Rank repeat % 4 of 4 did break_disk(): all end at once, and the others name it.
void expect_broken_disk(int repeat, const std::vector<Ended>& ended) {
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
}

TEST(GlooFaults, AThrowingRankFreesAll) {
  repeatedly(
      [](int repeat) {
        return Processes(4, struck(repeat % 4, break_disk), patient(milliseconds(60000)));
      },
      expect_broken_disk);
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
          EXPECT_THAT(one.message, HasSubstr("--timeout"));
        }
      });
}

// Where ranks were said to take long, they are waited for; later no longer than the deadline.
TEST(GlooFaults, RanksMayBeAllowedMoreThanTheDeadline) {
  repeatedly(
      [](int) {
        const auto body = [](Backend& backend) {
          backend.run(2, [](Communicators& communicators) {
            const auto late = [&](const char* what) {
              if (communicators.rank() == 1) {
                std::this_thread::sleep_for(milliseconds(3500));
              }
              communicators.world().barrier({.op = what, .part = ""});
            };
            communicators.allow(milliseconds(60000));
            late("allowed");
            communicators.allow(milliseconds(0));
            late("forbidden");
          });
        };
        return Processes(2, body, patient(milliseconds(1500)));
      },
      [](int, const std::vector<Ended>& ended) {
        for (const Ended& one : ended) {
          EXPECT_EQ(one.code, 3);
          EXPECT_THAT(one.message, HasSubstr("waited 1500 ms in barrier of forbidden"));
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

// --- going on after an interruption --------------------------------------------------------------

// What a rank has of a matrix of n rows in operation `turn`; the same number in each of its rows.
float mark(int rank, int turn) { return static_cast<float>(1 + rank + 10 * turn); }

// A matrix of p times [rows, cols], one under the other (`dim` 0) or side by side (1), gathered on
// all ranks: as it lies in a message, or in strides.
Transfer gathered(int dim, std::int64_t rows, std::int64_t cols, int p) {
  const Layout pieces = dim == 0 ? matrix("rows", {rows * p, cols}, even_cuts(rows * p, p))
                                 : matrix("rows", {rows, cols * p}, {}, even_cuts(cols * p, p));
  return transfer(pieces, pieces.whole(), p);
}
at::Tensor gathered_whole(int dim, std::int64_t rows, std::int64_t cols, int p) {
  return dim == 0 ? at::zeros({rows * p, cols}) : at::zeros({rows, cols * p});
}
at::Tensor piece_of(const at::Tensor& whole, int dim, int rank, int p) {
  const std::int64_t size = whole.size(dim) / p;
  return whole.narrow(dim, rank * size, size);
}

// Kinds of operations.  Each comes in all groups that `among` is.
constexpr int kKinds = 9;
void operate(Communicator& among, int kind, int turn) {
  const int p = among.size();
  const int me = among.rank();
  const Call call{.op = "tokens", .part = "mlp", .layer = 3};
  const auto all_equal = [](const at::Tensor& x, double value) {
    EXPECT_TRUE(at::equal(x, at::full_like(x, value)));
  };
  double sum = 0;
  for (int r = 0; r < p; ++r) {
    sum += mark(r, turn);
  }
  switch (kind) {
    case 0:
    case 1:
    case 2: {  // gathered whole, in strides, and from a source that stays
      const int dim = kind == 1 ? 1 : 0;
      const Transfer table = gathered(dim, 5, 300, p);
      const at::Tensor mine = at::full({5, 300}, mark(me, turn));
      const at::Tensor all = gathered_whole(dim, 5, 300, p);
      Call named = call;
      named.stable_source = kind == 2;
      among.exchange(mine, all, table, named)->wait();
      for (int r = 0; r < p; ++r) {
        all_equal(piece_of(all, dim, r, p), mark(r, turn));
      }
      break;
    }
    case 3: {
      const Transfer table = transfer(
          matrix("rows", {5L * p, 300}, even_cuts(5L * p, p)), matrix("rows", {5L * p, 300}), p);
      const at::Tensor part = at::zeros({5, 300});
      among.exchange_sum(at::full({5L * p, 300}, mark(me, turn)), part, table, false, call)->wait();
      all_equal(part, sum);
      break;
    }
    case 4: {
      const at::Tensor x = at::full({1001}, mark(me, turn));
      among.all_reduce(x, call);
      all_equal(x, sum);
      break;
    }
    case 5: {
      const at::Tensor x = at::full({1001}, mark(me, turn));
      among.broadcast(x, p - 1, call);
      all_equal(x, mark(p - 1, turn));
      break;
    }
    case 6: {
      const at::Tensor x = at::full({1001}, mark(me, turn));
      among.reduce(x, 0, call);
      if (me == 0) {
        all_equal(x, sum);
      }
      break;
    }
    case 7: {
      const at::Tensor got = at::zeros({1001});
      among.shift(at::full({1001}, mark(me, turn)), got, 1, call)->wait();
      all_equal(got, mark((me + p - 1) % p, turn));
      break;
    }
    default:
      among.barrier(call);
  }
}

// Operations of every kind, over all ranks and over some, several under way.
void operate_all(Communicators& communicators, int turn) {
  for (int kind = 0; kind < kKinds; ++kind) {
    operate(communicators.world(), kind, turn);
    if (communicators.rank() < 2) {
      operate(communicators.group({0, 1}), kind, turn);
    }
  }
}

// Post: `body` was interrupted, everywhere with `reason`.
void expect_interrupted(const std::string& reason, const std::function<void()>& body) {
  try {
    body();
    ADD_FAILURE() << "not interrupted";
  } catch (const Aborted& aborted) {
    EXPECT_EQ(aborted.what(), reason);
  }
}

// In every kind of operation in turn one rank lacks memory where the others wait.
TEST(GlooRecovery, FromEveryKindOfOperation) {
  for (const int p : {2, 3, 4}) {
    test::expect_processes(p, [&](Backend& backend) {
      backend.run(p, [&](Communicators& communicators) {
        EXPECT_TRUE(communicators.recovers());
        for (int kind = 0; kind < kKinds; ++kind) {
          const int victim = kind % p;
          const std::string reason = "kind " + std::to_string(kind) + ": out of memory";
          const Communicator* const before = &communicators.world();
          const Counters counted = communicators.counters();
          expect_interrupted(reason, [&] {
            operate(communicators.world(), 4, kind);
            if (communicators.rank() == victim) {
              communicators.interrupt(reason);  // its own next operation is, too
            }
            operate(communicators.world(), kind, kind);
            while (true) {  // some kinds do not wait for every rank
              communicators.world().barrier({.op = "later", .part = ""});
            }
          });
          EXPECT_EQ(&communicators.world(), before);  // until recover()
          EXPECT_EQ(communicators.recover(), reason);
          EXPECT_GE(communicators.counters().bytes_sent, counted.bytes_sent);
          operate_all(communicators, kind);
        }
      });
    });
  }
}

// Of a big exchange one rank has posted its part alone, and one has not come; what is on its way
// is left at whatever byte it is.  No byte of it arrives where it should have or in the exchange of
// the same name afterwards.
TEST(GlooRecovery, NoByteUnderWayArrives) {
  for (const int p : {2, 3}) {
    test::expect_processes(p, [&](Backend& backend) {
      backend.run(p, [&](Communicators& communicators) {
        constexpr std::int64_t kRows = 1000;
        constexpr std::int64_t kWidth = 3000;
        const int me = communicators.rank();
        const Call call{.op = "tokens", .part = "attention", .layer = 1};
        for (int turn = 0; turn < 8; ++turn) {
          const int dim = turn % 2;
          const Transfer table = gathered(dim, kRows, kWidth, p);
          const at::Tensor mine = at::full({kRows, kWidth}, mark(me, turn));
          const at::Tensor all = gathered_whole(dim, kRows, kWidth, p);
          const auto begin = [&] { communicators.world().barrier({.op = "begin", .part = ""}); };
          if (me == 0) {
            begin();
            const auto part = communicators.world().exchange(mine, all, table, call);
            std::this_thread::sleep_for(milliseconds(turn));
            communicators.interrupt("rank 0: out of memory");
          } else if (me == 1) {
            // Through, or stopped half way.
            try {
              begin();
              communicators.world().exchange(mine, all, table, call)->wait();
              communicators.world().barrier({.op = "never", .part = ""});
              ADD_FAILURE() << "not interrupted";
            } catch (const Aborted&) {
            }
          } else {
            expect_interrupted("rank 0: out of memory", [&] {
              begin();
              communicators.group({0, 2}).barrier({.op = "elsewhere", .part = ""});
            });
          }
          // From here on the memory is for other things.
          all.fill_(-3);
          mine.fill_(-4);
          EXPECT_EQ(communicators.recover(), "rank 0: out of memory");
          const at::Tensor next = at::full({kRows, kWidth}, mark(me, turn + 100));
          const at::Tensor again = gathered_whole(dim, kRows, kWidth, p);
          communicators.world().exchange(next, again, table, call)->wait();
          for (int r = 0; r < p; ++r) {
            const at::Tensor part = piece_of(again, dim, r, p);
            EXPECT_TRUE(at::equal(part, at::full_like(part, mark(r, turn + 100)))) << turn;
          }
          operate_all(communicators, turn);
          EXPECT_TRUE(at::equal(all, at::full_like(all, -3))) << turn;
          EXPECT_TRUE(at::equal(mine, at::full_like(mine, -4))) << turn;
        }
      });
    });
  }
}

// All go on with the same reason; one rank may even lack memory before others are back.
TEST(GlooRecovery, TwoRanksAtOnceTwentyTimesInARow) {
  for (const int p : {2, 3, 4}) {
    test::expect_processes(p, [&](Backend& backend) {
      backend.run(p, [&](Communicators& communicators) {
        const int me = communicators.rank();
        const at::Tensor first = at::zeros({20}, at::kLong);  // whose word it was
        for (int turn = 0; turn < 20; ++turn) {
          const int one = turn % p;
          const int other = (turn + turn % 3) % p;  // the same rank at times
          if (me == one || me == other) {
            communicators.interrupt(std::to_string(me) + " in turn " + std::to_string(turn));
          } else if (turn % 2 == 0) {
            EXPECT_THROW(communicators.world().barrier({.op = "never", .part = ""}), Aborted);
          }
          const std::string reason = communicators.recover();
          EXPECT_THAT(reason, HasSubstr(" in turn " + std::to_string(turn)));
          first[turn] = reason.at(0) - '0';
        }
        const at::Tensor all = first.clone();
        communicators.world().broadcast(all, 0, {.op = "reason", .part = ""});
        EXPECT_TRUE(at::equal(first, all));
        operate_all(communicators, 20);
      });
    });
  }
}

// Runs of other numbers of ranks before and after are not concerned, even those that a rank which
// has no part in the interrupted one has begun.
TEST(GlooRecovery, BetweenRunsOfOtherNumbersOfRanks) {
  test::expect_processes(3, [](Backend& backend) {
    int run = 0;
    for (const int ranks : {3, 2, 3, 1, 2, 2, 3, 3}) {
      const bool interrupted = run % 2 == 1;
      backend.run(ranks, [&](Communicators& communicators) {
        const int last = communicators.size() - 1;
        for (int turn = 0; interrupted && turn < 2; ++turn) {
          expect_interrupted("out of memory", [&] {
            operate(communicators.world(), 4, run);
            if (communicators.rank() == last) {
              std::this_thread::sleep_for(milliseconds(100));
              communicators.interrupt("out of memory");
            }
            communicators.world().barrier({.op = "never", .part = ""});
          });
          EXPECT_EQ(communicators.recover(), "out of memory");
        }
        for (int kind = 0; kind < kKinds; ++kind) {
          operate(communicators.world(), kind, run);
        }
      });
      ++run;
    }
  });
}

// Lacks memory at an operation of this rank, once.
class Lacking final : public CommunicationObserver {
 public:
  void enter(Moment moment, const Call& /*call*/) override {
    if (moment == Moment::operation && operations_++ == at_) {
      at_ = -1;
      throw OutOfMemory("rank 1: out of memory");
    }
  }
  void leave() override {}
  // Gives how many operations there were since the last begin().
  int begin(int operation) {
    at_ = operation;
    return std::exchange(operations_, 0);
  }

 private:
  int at_ = -1;
  int operations_ = 0;
};

// Here and there in a step: it runs again to the same bits, and nothing of the first try is left.
TEST(GlooRecovery, AStepThatLacksMemoryRunsAgain) {
  constexpr int kRanks = 3;
  test::expect_processes(kRanks, [](Backend& backend) {
    install_accounting_allocator();
    const TextShape model = test::llama({.heads = 6, .kv_heads = 2, .ffn = 13, .vocab = 31});
    const std::vector<std::int64_t> lengths = {1, 9, 2, 17, 3};
    const test::Weights weights = test::random_weights(model, 11);
    const auto documents = test::random_documents(lengths, model.vocab, 7);
    const std::vector<Item> items = items_of(documents);
    for (const auto& choice : {layer("UlyssesZ", "gather"), layer("MegatronCZ", "hold")}) {
      const Plan plan = uniform_plan(model, lengths, kRanks, {choice, choice});
      backend.run(kRanks, [&](Communicators& communicators) {
        const int me = communicators.rank();
        Lacking lacking;
        ObservedCommunicators observed(communicators, lacking);
        RankSession session(observed, text_model(model));
        test::fill(session.parameters(), weights);
        int operations = 0;
        std::vector<at::Tensor> expected;
        for (int operation = -1; operation < operations; operation += 7) {
          lacking.begin(me == 1 ? operation : -1);
          test::play_until_memory_suffices(plan, items, session, "rank 1: out of memory");
          const std::vector<at::Tensor> found = test::held_gradients(session.parameters());
          if (operation == -1) {
            const at::Tensor mine = at::full({1}, lacking.begin(-1), at::kLong);
            communicators.world().broadcast(mine, 1, {.op = "operations", .part = ""});
            operations = mine.item<int>();
            EXPECT_GT(operations, 10);
            expected = found;
          }
          for (std::size_t i = 0; i < expected.size(); ++i) {
            EXPECT_TRUE(at::equal(found.at(i), expected[i])) << name(choice) << operation;
          }
        }
      });
    }
  });
}

// Nobody is freed by what is over; with nothing interrupted, meeting gives no reason.
TEST(GlooRecovery, OfNothing) {
  test::expect_processes(2, [](Backend& backend) {
    backend.run(2, [](Communicators& communicators) {
      EXPECT_EQ(communicators.recover(), "");
      operate_all(communicators, 0);
    });
  });
}

TEST(GlooRecovery, OperationsThatAreHeldAreRefused) {
  const auto body = [](Backend& backend) {
    backend.run(1, [](Communicators& communicators) {
      const at::Tensor x = at::ones({10});
      const at::Tensor y = at::ones({10});
      const auto held = communicators.world().shift(x, y, 1, {.op = "ring", .part = ""});
      communicators.interrupt("out of memory");
      communicators.recover();
    });
  };
  const auto ended = Processes(1, body, patient(milliseconds(60000))).wait();
  EXPECT_EQ(ended[0].code, 3);
  EXPECT_THAT(ended[0].message, HasSubstr("recover(): still held: shift of ring"));
}

// --- what can go wrong meanwhile -----------------------------------------------------------------

// Four ranks of which the one after `victim` lacks memory; rank `victim` does `strike` where the
// others recover.
std::function<void(Backend&)> struck_in_recovery(
    int victim, const std::function<void()>& strike, milliseconds delay = {}) {
  return [victim, strike, delay](Backend& backend) {
    backend.run(4, [&](Communicators& communicators) {
      try {
        communicators.world().barrier({.op = "before", .part = ""});
        if (communicators.rank() == (victim + 1) % 4) {
          communicators.interrupt("out of memory");
        }
        meet_for_ever(communicators);
      } catch (const Aborted&) {  // of the interruption, or what came of it
      }
      if (communicators.rank() == victim) {
        std::this_thread::sleep_for(delay);
        strike();
      }
      communicators.recover();
      meet_for_ever(communicators);
    });
  };
}

TEST(GlooRecoveryFaults, AKilledOrStoppedRankIsNamed) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    repeatedly(
        [signal](int repeat) {
          return Processes(
              4,
              struck_in_recovery(1 + repeat % 3, [signal] { raise(signal); }),
              patient(milliseconds(4000)));
        },
        [](int repeat, const std::vector<Ended>& ended) {
          const int victim = 1 + repeat % 3;
          expect_all_others_end(ended, victim, 4 + kSlackSeconds);
          for (std::size_t r = 0; r < 4; ++r) {
            if (static_cast<int>(r) != victim) {
              EXPECT_THAT(
                  ended[r].message,
                  AllOf(
                      HasSubstr("all ranks to abort the interrupted operation (out of memory)"),
                      HasSubstr("rank " + std::to_string(victim) + " did not arrive"),
                      HasSubstr("no sign of life from rank " + std::to_string(victim))));
            }
          }
        });
  }
}

// Rank 0 keeps the rendezvous at which they would meet.
TEST(GlooRecoveryFaults, RankZeroKilledOrStopped) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    repeatedly(
        [signal](int) {
          return Processes(
              4, struck_in_recovery(0, [signal] { raise(signal); }), patient(milliseconds(4000)));
        },
        [](int, const std::vector<Ended>& ended) {
          expect_all_others_end(ended, 0, 4 + kSlackSeconds);
          for (std::size_t r = 1; r < 4; ++r) {
            EXPECT_THAT(ended[r].message, HasSubstr("kept by rank 0, which is gone or stopped"));
          }
        });
  }
}

// Killed at any moment of one recovery after another: also while the others connect anew.
TEST(GlooRecoveryFaults, ARankKilledAtAnyMoment) {
  repeatedly(
      [](int repeat) {
        const auto body = [repeat](Backend& backend) {
          backend.run(3, [&](Communicators& communicators) {
            const int victim = 1 + repeat % 2;
            if (communicators.rank() == victim) {
              std::thread([repeat] {
                std::mt19937 random(static_cast<unsigned>(repeat));
                std::this_thread::sleep_for(milliseconds(random() % 1000));
                raise(SIGKILL);
              }).detach();
            }
            for (int turn = 0;; ++turn) {
              try {
                if (communicators.rank() == turn % 3) {
                  communicators.interrupt("out of memory");
                }
                meet_for_ever(communicators);
              } catch (const Aborted&) {
              }
              communicators.recover();
            }
          });
        };
        return Processes(3, body, patient(milliseconds(4000)));
      },
      [](int repeat, const std::vector<Ended>& ended) {
        const int victim = 1 + repeat % 2;
        const std::string name = "rank " + std::to_string(victim);
        EXPECT_EQ(ended[static_cast<std::size_t>(victim)].code, 128 + SIGKILL);
        expect_all_others_end(ended, victim, 4 + 10 + kSlackSeconds);
        for (std::size_t r = 0; r < 3; ++r) {
          if (static_cast<int>(r) != victim) {
            EXPECT_THAT(
                ended[r].message,
                AnyOf(
                    HasSubstr(name + " is gone"),
                    HasSubstr(name + " did not arrive"),
                    HasSubstr(name + " gives no sign of life"),
                    HasSubstr("no sign of life from " + name)));
          }
        }
      });
}

// Long before the deadline.
TEST(GlooRecoveryFaults, ARankThatFailsForGoodEndsAll) {
  repeatedly(
      [](int repeat) {
        return Processes(
            4,
            struck_in_recovery(repeat % 4, break_disk, milliseconds(100 * (repeat % 3))),
            patient(milliseconds(60000)));
      },
      expect_broken_disk);
}

// Lives, and does not come.
TEST(GlooRecoveryFaults, ASlowRankIsNamed) {
  repeatedly(
      [](int repeat) {
        return Processes(
            4,
            struck_in_recovery(
                repeat % 4, [] { std::this_thread::sleep_for(std::chrono::seconds(8)); }),
            patient(milliseconds(4000)));
      },
      [](int repeat, const std::vector<Ended>& ended) {
        for (const Ended& one : ended) {
          EXPECT_EQ(one.code, 3);
          EXPECT_THAT(
              one.message,
              AllOf(
                  HasSubstr("rank " + std::to_string(repeat % 4) + " did not arrive. Give"),
                  HasSubstr("--timeout")));
        }
      });
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
        for (const std::size_t r : {0U, 1U, 3U}) {
          EXPECT_THAT(
              ended[r].message, HasSubstr("rank 2 of 4 did not connect to the rendezvous at 127."));
        }
      });
}

TEST(GlooRendezvous, ThatIsNotThereIsNamedInTime) {
  GlooOptions options;
  options.patience = milliseconds(2000);
  const auto ended =
      Processes(3, [](Backend&) {}, options, [](int rank) { return rank == 0; }).wait();
  for (const std::size_t r : {1U, 2U}) {
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

// The kernel takes connections for a program that accepts none: nobody answers, or hangs up.
TEST(GlooRendezvous, WhereNobodyAnswersIsNamedInTime) {
  const int silent = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  ASSERT_EQ(::bind(silent, reinterpret_cast<sockaddr*>(&address), bytes), 0);
  ASSERT_EQ(::listen(silent, 16), 0);
  ASSERT_EQ(::getsockname(silent, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  GlooOptions options;
  options.rank = 1;
  options.size = 2;
  options.port = ntohs(address.sin_port);
  options.patience = milliseconds(1000);
  EXPECT_THAT(
      test::refusal<CommunicatorError>([&] { gloo_backend(options); }),
      AllOf(
          HasSubstr("could not reach the rendezvous at 127.0.0.1:"),
          HasSubstr("does not answer as a rendezvous")));
  ::close(silent);
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

// --- strangers -----------------------------------------------------------------------------------

TEST(GlooRendezvous, ASecondProcessOfARankIsTurnedAwayAndNamed) {
  const auto rendezvous = serve_rendezvous("127.0.0.1", 0, "a secret of this run");
  GlooOptions options;
  options.port = rendezvous->port();
  options.kept_elsewhere = true;
  options.secret = "a secret of this run";
  const auto first = gloo_backend(options);
  EXPECT_THAT(
      test::refusal<CommunicatorError>([&] { gloo_backend(options); }),
      AllOf(
          HasSubstr("rank 0 is taken: process " + std::to_string(getpid())),
          HasSubstr("SLURM_PROCID")));
  first->run(1, [](Communicators&) {});  // and the first goes on
  first->leave();
}

TEST(GlooRendezvous, AnotherSecretIsTurnedAwayAndTheOthersSayWhoIsMissing) {
  repeatedly(
      [](int) {
        GlooOptions options = patient(milliseconds(1500));
        options.secret = "a secret of this run";
        return Processes(
            3,
            [](Backend&) {},
            options,
            nullptr,
            [](int rank, GlooOptions& mine) {
              mine.secret = rank == 1 ? "the secret of another run" : mine.secret;
            });
      },
      [](int, const std::vector<Ended>& ended) {
        for (const Ended& one : ended) {
          EXPECT_EQ(one.code, 3);
          EXPECT_LT(one.seconds, kSlackSeconds);
        }
        EXPECT_THAT(ended[1].message, HasSubstr("refuses this process's secret"));
        for (const std::size_t r : {0U, 2U}) {
          EXPECT_THAT(
              ended[r].message,
              AllOf(HasSubstr("rank 1 of 3 did not connect"), HasSubstr("secret")));
        }
      });
}

// Where this process listens.
std::vector<int> listening_ports() {
  std::vector<int> ports;
  for (int fd = 0; fd < 1024; ++fd) {
    int listens = 0;
    socklen_t length = sizeof(listens);
    sockaddr_in mine{};
    socklen_t bytes = sizeof(mine);
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens != 0 &&
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&mine), &bytes) == 0) {
      EXPECT_EQ(ntohl(mine.sin_addr.s_addr), INADDR_LOOPBACK);  // the address that was chosen
      ports.push_back(ntohs(mine.sin_port));
    }
  }
  return ports;
}

// While ranks compute, each is its own stranger: connections to where it listens are refused, or
// idle, or say what Gloo and c10d's store would listen to.
TEST(GlooStrangers, EndNoRun) {
  GlooOptions options = patient(milliseconds(60000));
  options.secret = "a secret of this run";
  const auto body = [](Backend& backend) {
    backend.run(3, [&](Communicators& communicators) {
      const auto sums = [&] {
        for (int i = 0; i < 20; ++i) {
          const at::Tensor x = at::ones({1000});
          communicators.world().all_reduce(x, {.op = "tokens", .part = "attention"});
          EXPECT_TRUE(at::equal(x, at::full({1000}, 3.0)));
        }
      };
      sums();
      const std::vector<int> ports = listening_ports();
      EXPECT_EQ(ports.size(), backend.first_rank() == 0 ? 2U : 1U);  // Gloo's, and the rendezvous
      std::vector<rendezvous::Socket> strangers;
      int let_in = 0;
      for (const int port : ports) {
        const std::string words[] = {
            std::string(16, '\0'),                   // Gloo's number of a connection
            std::string("\x07\x01\x00\x00\x00", 5),  // a query of c10d's store
            std::string(4000, 'x'),
            ""};
        for (int i = 0; i < 40; ++i) {
          try {
            const auto soon = std::chrono::steady_clock::now() + milliseconds(i == 0 ? 300 : 50);
            strangers.push_back(rendezvous::connected("127.0.0.1", port, soon));
            ++let_in;
            const std::string& said = words[i % 4];
            ::send(strangers.back().fd(), said.data(), said.size(), MSG_NOSIGNAL);
          } catch (const rendezvous::Unreached&) {
          }
        }
      }
      // Nobody reaches Gloo's; all reach the rendezvous, which tells them nothing.
      EXPECT_EQ(let_in, backend.first_rank() == 0 ? 40 : 0);
      sums();
      strangers.clear();
      sums();
    });
  };
  const auto ended = Processes(3, body, options).wait();
  for (const Ended& one : ended) {
    EXPECT_EQ(one.code, 0) << one.message;
  }
}

// torchrun has a store of its own at the address that ranks are told.
TEST(GlooRendezvous, IsFoundThroughTorchrunsStore) {
  const auto body = [](Backend& backend) {
    backend.run(3, [](Communicators& communicators) {
      communicators.world().barrier({.op = "all", .part = ""});
    });
  };
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t agent = ::fork();  // before this process has threads
  if (agent == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const auto [kept, port] = gloo::serve_agent();
    if (::write(ends[1], &port, sizeof(port)) == sizeof(port)) {
      ::pause();
    }
    ::_exit(0);
  }
  GlooOptions options = patient(milliseconds(20000));
  ASSERT_EQ(::read(ends[0], &options.agent_port, sizeof(int)), static_cast<ssize_t>(sizeof(int)));
  options.agent_host = "127.0.0.1";
  options.secret = "a secret of this run";
  const auto ended = Processes(3, body, options).wait();
  for (const Ended& one : ended) {
    EXPECT_EQ(one.code, 0) << one.message;
  }
  ::kill(agent, SIGKILL);
  ::waitpid(agent, nullptr, 0);
}

}  // namespace
}  // namespace paradyse
