// Every operation against plain judges, on ranks that are threads and on ranks that are processes;
// and everything that can go wrong between threads (gloo_test.cc: between processes).
#include "paradyse/run/communicator.h"

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/detail/transfer.h"
#include "tests/support/layouts.h"
#include "tests/support/processes.h"

namespace paradyse {
namespace {

using std::chrono::milliseconds;
using test::Random;

// Rank failures inside a body are recorded here: EXPECT_ works on any thread, and a process with
// one ends with an exit code that says so.
class Backends : public testing::TestWithParam<const char*> {
 protected:
  static bool gloo() { return std::string(GetParam()) == "gloo"; }
  // Processes are three orders of magnitude slower to meet.
  static int repeats(int on_threads) { return gloo() ? on_threads / 6 + 1 : on_threads; }

  static void run(int ranks, const std::function<void(Communicators&)>& body) {
    if (gloo()) {
      test::expect_processes(ranks, [&](Backend& backend) { backend.run(ranks, body); });
    } else {
      run_local_ranks(ranks, {}, body);
    }
  }
};

class Exchange : public Backends {};
class Operations : public Backends {};
class Groups : public Backends {};
class UnderWay : public Backends {};
class Stress : public Backends {};
const auto kBackends = testing::Values("local", "gloo");
std::string backend_name(const testing::TestParamInfo<const char*>& info) { return info.param; }
INSTANTIATE_TEST_SUITE_P(On, Exchange, kBackends, backend_name);
INSTANTIATE_TEST_SUITE_P(On, Operations, kBackends, backend_name);
INSTANTIATE_TEST_SUITE_P(On, Groups, kBackends, backend_name);
INSTANTIATE_TEST_SUITE_P(On, UnderWay, kBackends, backend_name);
INSTANTIATE_TEST_SUITE_P(On, Stress, kBackends, backend_name);

int fault_repeats() { return std::getenv("PARADYSE_TEST_LONG") != nullptr ? 50 : 3; }

bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && at::equal(a, b);
}

std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

// exchange and exchange_sum of one random pair of layouts, on all ranks of `communicator`; every
// rank derives the same case from `seed`.
void expect_exchanges(Communicator& communicator, std::uint64_t seed, at::ScalarType type) {
  Random random(seed);
  const int p = communicator.size();
  const int me = communicator.rank();
  const Extent whole{test::pick(random, 0, 9), test::pick(random, 1, 9)};
  const auto placed = [&](bool overlapping) {
    if (test::pick(random, 0, 4) == 0) {
      return matrix("rows", whole);
    }
    const int dim = static_cast<int>(test::pick(random, 0, 1));
    return test::cut_along(
        dim, whole, test::random_cuts(dim == 0 ? whole.rows : whole.cols, p, random, overlapping));
  };
  const Layout from = placed(test::pick(random, 0, 2) == 0);
  Layout to = placed(true);
  if (to != to.whole() && test::pick(random, 0, 3) == 0) {  // leave holes
    Dim& dim = to.dims[to.cuts_rows() ? 0 : 1];
    dim.cuts[at(static_cast<int>(test::pick(random, 0, p - 1)))].clear();
  }
  SCOPED_TRACE(
      testing::Message() << "seed " << seed << ", rank " << me << " of " << p << ": " << whole.rows
                         << " x " << whole.cols << " " << to_string(from) << " -> "
                         << to_string(to));
  const Transfer table = transfer(from, to, p);
  const Call call{.op = "random", .part = "exchange"};

  const at::Tensor matrix = test::whole_numbers(whole, random).to(type);
  const at::Tensor got = at::full_like(test::local(matrix, to, me), 77);
  communicator.exchange(test::local(matrix, from, me), got, table, call)->wait();
  EXPECT_TRUE(same(got, test::local(matrix, to, me)));

  std::vector<at::Tensor> given;
  for (int r = 0; r < p; ++r) {
    const Extent extent = to.extent(r);
    given.push_back(test::whole_numbers(extent, random).to(type));
  }
  const at::Tensor expected = test::transposed_copy(from, to, given)[at(me)];
  const at::ScalarType wide = type == at::kBFloat16 ? at::kFloat : type;
  for (const at::ScalarType sum_type : {type, wide}) {
    const at::Tensor fresh = at::full(expected.sizes(), 55, sum_type);
    communicator.exchange_sum(given[at(me)], fresh, table, false, call)->wait();
    EXPECT_TRUE(same(fresh, expected.to(sum_type)));
    const at::Tensor added = at::full(expected.sizes(), 5, sum_type);
    communicator.exchange_sum(given[at(me)], added, table, true, call)->wait();
    EXPECT_TRUE(same(added, (expected + 5).to(sum_type)));
  }
}

TEST_P(Exchange, RandomLayoutsEqualTheDefinition) {
  for (int p = 1; p <= 5; ++p) {
    run(p, [&](Communicators& communicators) {
      const at::ScalarType types[] = {at::kDouble, at::kFloat, at::kBFloat16};
      for (std::uint64_t seed = 0; seed < static_cast<std::uint64_t>(repeats(120)); ++seed) {
        expect_exchanges(communicators.world(), seed, types[seed % 3]);
      }
    });
  }
}

// A rectangle that two readers share in part, and a hole of the same size that nobody reads.
TEST_P(Exchange, SumOverlappingPiecesWithAHole) {
  run(2, [](Communicators& communicators) {
    Communicator& world = communicators.world();
    const Layout from = matrix("rows", {1, 8}, {}, {{{0, 8}}, {}});
    const Layout to = matrix("rows", {1, 8}, {}, {{{0, 4}}, {{2, 6}}});
    const Transfer table = transfer(from, to, 2);
    const at::Tensor given = at::ones({1, 4}, at::kDouble) * (1 + world.rank());
    const at::Tensor sum = at::full({1, world.rank() == 0 ? 8 : 0}, 99.0, at::kDouble);
    world.exchange_sum(given, sum, table, false, {.op = "hole", .part = ""})->wait();
    if (world.rank() == 0) {
      EXPECT_TRUE(same(sum, at::tensor({1, 1, 3, 3, 2, 2, 0, 0}, at::kDouble).view({1, 8})));
    }
  });
}

// Operands are whole pieces: columns of a wider matrix are refused, on every rank alike.
TEST_P(Exchange, RefusesWhatIsNotContiguous) {
  run(3, [](Communicators& communicators) {
    Communicator& world = communicators.world();
    const Layout from = matrix("rows", {12, 5}, even_cuts(12, 3));
    const Layout to = matrix("rows", {12, 5}, {}, even_cuts(5, 3));
    const Transfer table = transfer(from, to, 3);
    const Extent there = to.extent(world.rank());
    const at::Tensor wide = at::zeros({4, 9}, at::kDouble);
    const at::Tensor small = at::zeros({3, 5}, at::kDouble);
    const at::Tensor out = at::zeros({there.rows, there.cols}, at::kDouble);
    const Call call{.op = "strided", .part = ""};
    EXPECT_THROW(world.exchange(wide.narrow(1, 2, 5), out, table, call), std::logic_error);
    EXPECT_THROW(world.exchange(small, out, table, call), std::logic_error);
    EXPECT_THROW(
        world.exchange_sum(out, wide.narrow(1, 2, 5), table, false, call), std::logic_error);
  });
}

// A change of the order in which dims are stored, of frames and tokens of a video, is one pass; its
// transpose takes it back.
TEST_P(Exchange, ChangesTheOrderOfDims) {
  for (int p = 1; p <= 4; ++p) {
    run(p, [&](Communicators& communicators) {
      Communicator& world = communicators.world();
      const int me = world.rank();
      const Layout whole{.dims = {{"frames", 5}, {"tokens", 6}, {"columns", 3}}};
      const Layout from = whole.cut("frames", even_cuts(5, p));
      const Layout to = whole.along("frames").cut("tokens", even_cuts(6, p));
      const Transfer table = transfer(from, to, p);
      const at::Tensor all = at::arange(90, at::kDouble).view({5, 6, 3});
      const Interval frames{me * 5 / p, (me + 1) * 5 / p};
      const Interval tokens{me * 6 / p, (me + 1) * 6 / p};
      const at::Tensor mine = all.narrow(0, frames.begin, frames.size()).contiguous();
      const at::Tensor expected =
          all.narrow(1, tokens.begin, tokens.size()).transpose(0, 1).contiguous();
      const Call call{.op = "permute", .part = ""};
      const at::Tensor got = at::full_like(expected, -1);
      world.exchange(mine, got, table, call)->wait();
      EXPECT_TRUE(at::equal(got, expected));
      const at::Tensor back = at::full_like(mine, -1);
      world.exchange_sum(got, back, table, false, call)->wait();
      EXPECT_TRUE(at::equal(back, mine));
    });
  }
}

TEST_P(Exchange, CountersAreTheTables) {
  for (int p = 1; p <= 5; ++p) {
    run(p, [&](Communicators& communicators) {
      Communicator& world = communicators.world();
      Random random(17);
      for (int i = 0; i < repeats(20); ++i) {
        const Layout from = matrix("rows", {11, 7}, test::random_cuts(11, p, random, true));
        const Layout to = matrix("rows", {11, 7}, {}, test::random_cuts(7, p, random, true));
        const Transfer table = transfer(from, to, p);
        const Extent mine = from.extent(world.rank());
        const Extent theirs = to.extent(world.rank());
        const at::Tensor a = at::zeros({mine.rows, mine.cols}, at::kBFloat16);
        const at::Tensor b = at::zeros({theirs.rows, theirs.cols}, at::kBFloat16);
        const at::Tensor sum = at::zeros({mine.rows, mine.cols}, at::kFloat);
        const Call call{.op = "counted", .part = ""};
        const auto expect_counted = [&](Sent sent, const auto& operation) {
          world.barrier(call);
          const Counters before = communicators.counters();
          world.barrier(call);
          operation();
          world.barrier(call);
          const Counters after = communicators.counters();
          EXPECT_EQ(after.bytes_sent - before.bytes_sent, 2 * sent.elements);
          EXPECT_EQ(after.messages - before.messages, sent.messages);
          world.barrier(call);
        };
        expect_counted(table.sent(false)[at(world.rank())], [&] {
          world.exchange(a, b, table, call)->wait();
        });
        expect_counted(table.sent(true)[at(world.rank())], [&] {
          world.exchange_sum(b, sum, table, true, call)->wait();
        });
      }
    });
  }
}

TEST_P(Operations, AllReduceBroadcastReduceShift) {
  for (int p = 1; p <= 5; ++p) {
    run(p, [&](Communicators& communicators) {
      Communicator& world = communicators.world();
      const int me = world.rank();
      for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kLong}) {
        for (const std::int64_t n : {0, 1, 2, 3, 7, 2500}) {
          const Call call{.op = "plain", .part = "operation", .layer = 3};
          const at::Tensor base = at::arange(n, at::kLong).remainder(5);
          const auto of = [&](int rank) { return (base + rank).to(type); };
          at::Tensor sum = of(0);
          for (int r = 1; r < p; ++r) {
            sum = sum + of(r);
          }
          const at::Tensor all = of(me).clone();
          world.all_reduce(all, call);
          EXPECT_TRUE(same(all, sum));
          for (int root = 0; root < p; ++root) {
            const at::Tensor b = of(me).clone();
            world.broadcast(b, root, call);
            EXPECT_TRUE(same(b, of(root)));
            const at::Tensor r = of(me).clone();
            world.reduce(r, root, call);
            EXPECT_TRUE(same(r, me == root ? sum : of(me)));
          }
          for (int hops = -p - 1; hops <= p + 1; ++hops) {
            const at::Tensor from = of(me).clone();
            const at::Tensor to = at::zeros_like(from);
            world.shift(from, to, hops, call)->wait();
            EXPECT_TRUE(same(to, of(((me - hops) % p + p) % p)));
          }
        }
      }
    });
  }
}

// all_reduce of values whose sum depends on the order: the same bits on all ranks and each time.
TEST(Threads, SumsHaveTheSameBitsEveryTime) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    std::mutex mutex;
    std::vector<at::Tensor> results;
    for (int repeat = 0; repeat < 10; ++repeat) {
      run_local_ranks(4, {}, [&](Communicators& communicators) {
        Random random(static_cast<std::uint64_t>(communicators.rank()));
        std::normal_distribution<float> normal;
        const at::Tensor mine = at::empty({5000}, at::kFloat);
        for (std::int64_t i = 0; i < mine.numel(); ++i) {
          mine.mutable_data_ptr<float>()[i] = normal(random);
        }
        const at::Tensor sum = mine.to(type).clone();
        if (repeat % 2 == 1) {
          std::this_thread::sleep_for(milliseconds(communicators.rank() * 2));
        }
        communicators.world().all_reduce(sum, {.op = "bits", .part = ""});
        const std::lock_guard lock(mutex);
        results.push_back(sum);
      });
    }
    for (const at::Tensor& result : results) {
      EXPECT_TRUE(same(result, results.front()));
    }
  }
}

TEST_P(Groups, SideBySideInOneWorld) {
  run(5, [](Communicators& communicators) {
    const int me = communicators.rank();
    const std::vector<std::vector<int>> groups = {
        {0, 1, 2, 3, 4}, {0, 1}, {2, 3, 4}, {0, 3}, {1, 4}, {2}};
    Random random(static_cast<std::uint64_t>(me));
    const auto rounds = static_cast<std::uint64_t>(repeats(40));
    for (std::uint64_t round = 0; round < rounds; ++round) {
      for (const auto& ranks : groups) {
        if (std::find(ranks.begin(), ranks.end(), me) == ranks.end()) {
          continue;
        }
        Communicator& group = communicators.group(ranks);
        EXPECT_EQ(group.size(), static_cast<int>(ranks.size()));
        EXPECT_EQ(ranks[at(group.rank())], me);
        EXPECT_EQ(&group, &communicators.group(ranks));
        if (test::pick(random, 0, 9) == 0) {
          std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
        expect_exchanges(group, round, at::kDouble);
        const at::Tensor sum = at::full({3}, me, at::kLong);
        group.all_reduce(sum, {.op = "group", .part = ""});
        std::int64_t expected = 0;
        for (const int r : ranks) {
          expected += r;
        }
        EXPECT_TRUE(at::equal(sum, at::full({3}, expected, at::kLong)));
      }
    }
  });
}

TEST_P(Groups, MustAscendAndContainTheRank) {
  run(3, [](Communicators& communicators) {
    if (communicators.rank() == 0) {
      EXPECT_THROW(communicators.group({1, 2}), std::invalid_argument);
      EXPECT_THROW(communicators.group({1, 0}), std::invalid_argument);
    }
  });
}

// Issue several, wait in any order; stable sources let fast ranks run ahead.
TEST_P(UnderWay, SeveralUnderWay) {
  for (const bool stable : {false, true}) {
    run(4, [&](Communicators& communicators) {
      Communicator& world = communicators.world();
      const int me = world.rank();
      Random same_on_all(5);
      Random own(static_cast<std::uint64_t>(me));
      const Transfer table =
          transfer(matrix("rows", {8, 3}, even_cuts(8, 4)), matrix("rows", {8, 3}), 4);
      for (int round = 0; round < repeats(50); ++round) {
        const std::size_t count = static_cast<std::size_t>(test::pick(same_on_all, 1, 8));
        std::vector<at::Tensor> sources;
        std::vector<at::Tensor> results;
        std::vector<std::unique_ptr<Pending>> pending;
        std::vector<std::size_t> order;
        for (std::size_t i = 0; i < count; ++i) {
          sources.push_back(at::full(
              {2, 3},
              static_cast<double>(me * 100 + round) + 0.1 * static_cast<double>(i),
              at::kDouble));
          results.push_back(at::empty({8, 3}, at::kDouble));
          pending.push_back(world.exchange(
              sources[i],
              results[i],
              table,
              {.op = "several",
               .part = "",
               .layer = static_cast<std::int64_t>(i),
               .stable_source = stable}));
          order.push_back(i);
        }
        std::shuffle(order.begin(), order.end(), same_on_all);
        if (test::pick(own, 0, 5) == 0) {
          std::this_thread::sleep_for(std::chrono::microseconds(300));
        }
        for (const std::size_t i : order) {
          pending[i]->wait();
          pending[i]->wait();  // again: nothing
          for (int r = 0; r < 4; ++r) {
            EXPECT_EQ(
                results[i][2 * r][0].item<double>(),
                static_cast<double>(r * 100 + round) + 0.1 * static_cast<double>(i));
          }
          if (!stable) {  // may be changed at once
            sources[i].fill_(-1);
          }
        }
      }
      world.barrier({.op = "end", .part = ""});
    });
  }
}

// The oldest are completed early, whether their sources are stable or not; waiting for them is then
// no wait.
TEST_P(UnderWay, MoreThanThereIsRoomForCompletesTheOldest) {
  for (const bool stable : {false, true}) {
    run(3, [&](Communicators& communicators) {
      const int me = communicators.rank();
      const Transfer table =
          transfer(matrix("rows", {3, 1}, even_cuts(3, 3)), matrix("rows", {3, 1}), 3);
      std::vector<std::unique_ptr<Pending>> pending;
      std::vector<at::Tensor> all;
      for (int i = 0; i < 40; ++i) {
        all.push_back(at::full({3, 1}, -1));
        pending.push_back(communicators.world().exchange(
            at::full({1, 1}, 100 * i + me),
            all.back(),
            table,
            {.op = "many", .part = "", .layer = i, .stable_source = stable}));
      }
      for (std::size_t i = 0; i < all.size(); ++i) {
        pending[i]->wait();
        for (int r = 0; r < 3; ++r) {
          EXPECT_EQ(all[i][r].item<std::int64_t>(), 100 * static_cast<std::int64_t>(i) + r);
        }
      }
      communicators.world().barrier({.op = "end", .part = ""});
    });
  }
}

// --- what can go wrong ---------------------------------------------------------------------------

// Runs body on `ranks` and returns the message of each rank's exception ("" for none); the first
// failure must come out of run_local_ranks as Error.
template <typename Error>
std::vector<std::string> failing(
    int ranks, LocalOptions options, const std::function<void(Communicators&)>& body) {
  std::vector<std::string> messages(at(ranks));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(
      run_local_ranks(
          ranks,
          options,
          [&](Communicators& communicators) {
            try {
              body(communicators);
            } catch (const std::exception& error) {
              messages[at(communicators.rank())] = error.what();
              throw;
            }
          }),
      Error);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10 * options.deadline + milliseconds(5000));
  return messages;
}

constexpr LocalOptions kShort{.deadline = milliseconds(500), .grace = milliseconds(20000)};

TEST(Faults, RanksThatDisagreeAreNamedOnAllRanks) {
  for (int repeat = 0; repeat < fault_repeats(); ++repeat) {
    const auto messages = failing<CommunicatorError>(3, kShort, [](Communicators& communicators) {
      const at::Tensor x = at::zeros({3});
      if (communicators.rank() == 1) {
        communicators.world().all_reduce(x, {.op = "losses", .part = ""});
      } else {
        communicators.world().broadcast(x, 0, {.op = "plan hash", .part = "", .layer = 2});
      }
    });
    for (const std::string& message : messages) {
      EXPECT_THAT(message, testing::HasSubstr("ranks disagree"));
      EXPECT_THAT(message, testing::HasSubstr("exchange_sum of losses"));
      EXPECT_THAT(message, testing::HasSubstr("broadcast of layer 2 plan hash"));
      EXPECT_THAT(message, testing::HasSubstr("rank 1"));
    }
  }
}

// The same name but another table: found before memory is read that is not there.
TEST(Faults, RanksWithOtherShapesAreFound) {
  for (int repeat = 0; repeat < fault_repeats(); ++repeat) {
    const auto messages = failing<CommunicatorError>(2, kShort, [](Communicators& communicators) {
      const std::int64_t n = communicators.rank() == 0 ? 1000 : 4;
      const Transfer table =
          transfer(matrix("rows", {n, 2}, even_cuts(n, 2)), matrix("rows", {n, 2}), 2);
      const at::Tensor to = at::zeros({n, 2});
      communicators.world()
          .exchange(at::zeros({n / 2, 2}), to, table, {.op = "gather", .part = ""})
          ->wait();
    });
    EXPECT_THAT(messages[0], testing::HasSubstr("ranks disagree about exchange of gather"));
    failing<CommunicatorError>(2, kShort, [](Communicators& communicators) {
      const at::Tensor x = at::zeros({communicators.rank() == 0 ? 10000 : 2});
      communicators.world().broadcast(x, 1, {.op = "b", .part = ""});
    });
    failing<CommunicatorError>(2, kShort, [](Communicators& communicators) {
      const at::Tensor x = at::zeros({4}, communicators.rank() == 0 ? at::kFloat : at::kDouble);
      communicators.world().all_reduce(x, {.op = "types", .part = ""});
    });
  }
}

TEST(Faults, DeadlineNamesTheOperationAndTheLateRanks) {
  for (int repeat = 0; repeat < fault_repeats(); ++repeat) {
    const auto messages = failing<CommunicatorError>(4, kShort, [](Communicators& communicators) {
      if (communicators.rank() == 1 || communicators.rank() == 3) {
        std::this_thread::sleep_for(milliseconds(1500));
      }
      communicators.world().barrier({.op = "tokens", .part = "attention", .layer = 5});
    });
    for (const std::string& message : messages) {  // late ones are told when they come
      EXPECT_THAT(message, testing::HasSubstr("barrier of layer 5 attention tokens"));
      EXPECT_THAT(message, testing::HasSubstr("for ranks 1, 3"));
      EXPECT_THAT(message, testing::HasSubstr("500 ms"));
    }
  }
}

// Where ranks were said to take long, they are waited for; later no longer than the deadline.
TEST(Faults, RanksMayBeAllowedMoreThanTheDeadline) {
  for (int repeat = 0; repeat < fault_repeats(); ++repeat) {
    const auto messages = failing<CommunicatorError>(2, kShort, [](Communicators& communicators) {
      const auto late = [&](const char* what) {
        if (communicators.rank() == 1) {
          std::this_thread::sleep_for(milliseconds(1200));
        }
        communicators.world().barrier({.op = what, .part = ""});
      };
      communicators.allow(milliseconds(20000));
      late("allowed");
      communicators.allow(milliseconds(0));
      late("forbidden");
    });
    EXPECT_THAT(messages[0], testing::HasSubstr("rank 0 waited 500 ms in barrier of forbidden"));
  }
}

// A rank that issued its part but does not come back to read keeps the others from going on.
TEST(Faults, ARankThatDoesNotReadIsNamed) {
  for (int repeat = 0; repeat < fault_repeats(); ++repeat) {
    const auto messages = failing<CommunicatorError>(3, kShort, [](Communicators& communicators) {
      const at::Tensor from = at::zeros({2});
      const at::Tensor to = at::zeros({2});
      const auto pending = communicators.world().shift(from, to, 1, {.op = "ring", .part = ""});
      if (communicators.rank() == 2) {
        std::this_thread::sleep_for(milliseconds(1500));
      }
      pending->wait();
    });
    EXPECT_THAT(messages[0], testing::HasSubstr("shift of ring (to read its results) for rank 2;"));
  }
}

TEST(Faults, AThrowingRankFreesAllThatWait) {
  struct Own : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  for (int repeat = 0; repeat < fault_repeats(); ++repeat) {
    const LocalOptions patient{.deadline = milliseconds(60000), .grace = milliseconds(60000)};
    const auto begin = std::chrono::steady_clock::now();
    const auto messages = failing<Own>(5, patient, [](Communicators& communicators) {
      const int me = communicators.rank();
      if (me == 2) {
        std::this_thread::sleep_for(milliseconds(20));
        throw Own("rank 2 has had enough");
      }
      // wait in different places: the world, groups, a slot
      if (me < 2) {
        communicators.group({0, 1}).barrier({.op = "before", .part = ""});
        communicators.world().barrier({.op = "world", .part = ""});
      } else {
        communicators.group({2, 3, 4}).barrier({.op = "group", .part = ""});
      }
    });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(30000));
    for (int r = 0; r < 5; ++r) {
      EXPECT_THAT(messages[at(r)], testing::HasSubstr("rank 2 has had enough")) << r;
    }
  }
}

TEST(Faults, OperationsAfterAnAbortFailToo) {
  for (int repeat = 0; repeat < fault_repeats(); ++repeat) {
    EXPECT_THROW(
        run_local_ranks(
            3,
            kShort,
            [](Communicators& communicators) {
              if (communicators.rank() == 0) {
                throw std::domain_error("at once");
              }
              for (int i = 0; i < 3; ++i) {
                EXPECT_THROW(communicators.group({1, 2}).barrier({.op = "never", .part = ""});
                             communicators.world().barrier({.op = "never", .part = ""}), Aborted);
              }
            }),
        std::domain_error);
  }
}

TEST(Faults, NoSuchNumberOfRanks) {
  EXPECT_THROW(run_local_ranks(0, {}, [](Communicators&) {}), std::invalid_argument);
}

// A thread cannot be stopped: a rank that never comes back ends the process, with a message.
TEST(FaultsDeathTest, ARankThatNeverReturnsEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      run_local_ranks(
          2,
          {.deadline = milliseconds(50), .grace = milliseconds(100)},
          [](Communicators& communicators) {
            if (communicators.rank() == 1) {
              std::this_thread::sleep_for(std::chrono::hours(1));
            }
            communicators.world().barrier({.op = "meet", .part = ""});
          }),
      testing::ExitedWithCode(70),
      "barrier of meet for rank 1(.|\n)*1 of 2 ranks did not stop");
}

// 2000 small operations of random kinds, some of them under way at once, with random delays.
TEST_P(Stress, RandomOperationsOnFourRanks) {
  run(4, [](Communicators& communicators) {
    Random script(99);  // the same on all ranks
    Random own(static_cast<std::uint64_t>(communicators.rank()));
    std::vector<Communicator*> groups = {&communicators.world()};
    const int me = communicators.rank();
    groups.push_back(&communicators.group(me < 2 ? std::vector{0, 1} : std::vector{2, 3}));
    groups.push_back(&communicators.group(me % 2 == 0 ? std::vector{0, 2} : std::vector{1, 3}));
    for (int i = 0; i < repeats(2000); ++i) {
      Communicator& c = *groups[static_cast<std::size_t>(test::pick(script, 0, 2))];
      const std::int64_t kind = test::pick(script, 0, 6);
      const std::int64_t n = test::pick(script, 1, 40);
      const int p = c.size();
      const int root = static_cast<int>(test::pick(script, 0, 1));
      if (test::pick(own, 0, 19) == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(test::pick(own, 0, 300)));
      }
      const Call call{.op = "stress", .part = "", .layer = i};
      const at::Tensor x = at::full({n}, c.rank() + i, at::kLong);
      const std::int64_t sum = std::int64_t{p} * i + p * (p - 1) / 2;
      const auto expect = [&](const at::Tensor& tensor, std::int64_t value) {
        ASSERT_TRUE(tensor.eq(value).all().item<bool>()) << "operation " << i << " kind " << kind;
      };
      if (kind == 0) {
        c.all_reduce(x, call);
        expect(x, sum);
      } else if (kind == 1) {
        c.broadcast(x, root, call);
        expect(x, root + i);
      } else if (kind == 2) {
        c.reduce(x, root, call);
        expect(x, c.rank() == root ? sum : c.rank() + i);
      } else if (kind == 3) {
        c.barrier(call);
      } else if (kind == 4) {
        const at::Tensor a = at::empty_like(x);
        const at::Tensor b = at::empty_like(x);
        const auto first = c.shift(x, a, 1, call);
        const auto second = c.shift(x, b, -1, call);
        second->wait();
        first->wait();
        expect(a, (c.rank() + p - 1) % p + i);
        expect(b, (c.rank() + 1) % p + i);
      } else {
        expect_exchanges(c, static_cast<std::uint64_t>(i), at::kFloat);
      }
    }
  });
}

}  // namespace
}  // namespace paradyse
