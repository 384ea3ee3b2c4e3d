// Ranks that share the device: their exchanges, and a step's loss, gradients and counts against one
// rank in float64.

#include <gtest/gtest.h>

#include "paradyse/plan/detail/transfer.h"
#include "src/run/device/device.h"
#include "tests/device/device.h"
#include "tests/support/equality.h"
#include "tests/support/layouts.h"
#include "tests/support/plans.h"

namespace paradyse {
namespace {

using test::device;
using test::Random;

// Ranks in streams of their own, as a step has them.
void on_ranks(int ranks, const std::function<void(Communicator& world)>& body) {
  run_local_ranks(ranks, {}, [&](Communicators& communicators) {
    const DeviceScope streams(device());
    body(communicators.world());
  });
}

// What every rank knows beforehand, and how it comes to lie on the device: by work that is still
// under way when the exchange is issued.
at::Tensor made_there(const at::Tensor& on_host) {
  at::Tensor tensor = on_host.to(device());
  for (int i = 0; i < 8; ++i) {
    tensor = tensor + 1;
  }
  return tensor - 8;
}

bool same(const at::Tensor& is, const at::Tensor& expected) {
  return is.sizes() == expected.sizes() && is.scalar_type() == expected.scalar_type() &&
         at::equal(is.to(c10::Device(at::kCPU)), expected);
}

// Between two random layouts of a random matrix, and back as sums.
void expect_exchange(Communicator& world, std::uint64_t seed, at::ScalarType type) {
  Random random(seed);
  const int p = world.size();
  const int me = world.rank();
  const Extent whole{test::pick(random, 1, 40), test::pick(random, 1, 40)};
  const auto placed = [&](bool overlapping) {
    const int dim = static_cast<int>(test::pick(random, 0, 1));
    return test::cut_along(
        dim, whole, test::random_cuts(dim == 0 ? whole.rows : whole.cols, p, random, overlapping));
  };
  const Layout from = placed(false);
  const Layout to = placed(true);
  SCOPED_TRACE(
      "seed " + std::to_string(seed) + ", rank " + std::to_string(me) + " of " + std::to_string(p) +
      ": " + to_string(from) + " -> " + to_string(to));
  const Transfer table = transfer(from, to, p);
  const Call call{.op = "random", .part = "exchange"};

  const at::Tensor matrix = test::whole_numbers(whole, random).to(type);
  const at::Tensor expected = test::local(matrix, to, me);
  const at::Tensor got = at::full_like(expected, 77).to(device());
  world.exchange(made_there(test::local(matrix, from, me)), got, table, call)->wait();
  EXPECT_TRUE(same(got + 0, expected));

  std::vector<at::Tensor> given;
  for (int r = 0; r < p; ++r) {
    given.push_back(test::whole_numbers(to.extent(r), random).to(type));
  }
  const at::Tensor sum =
      test::transposed_copy(from, to, given)[static_cast<std::size_t>(me)].to(test::sums_of(type));
  const at::Tensor added = (at::zeros_like(sum) + 5).to(device());
  world.exchange_sum(made_there(given[static_cast<std::size_t>(me)]), added, table, true, call)
      ->wait();
  EXPECT_TRUE(same(added + 0, sum + 5));
}

TEST(Ranks, ExchangeRandomLayouts) {
  for (const int p : {1, 2, 4}) {
    on_ranks(p, [](Communicator& world) {
      for (std::uint64_t seed = 0; seed < 24; ++seed) {
        const at::ScalarType types[] = {at::kDouble, at::kFloat, at::kBFloat16};
        expect_exchange(world, seed, types[seed % 3]);
      }
    });
  }
}

TEST(Ranks, AddUpPassRoundAndGoRound) {
  for (const int p : {1, 2, 4}) {
    on_ranks(p, [p](Communicator& world) {
      const int me = world.rank();
      for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kLong}) {
        for (const std::int64_t n : {1, 7, 5000}) {
          const Call call{.op = "plain", .part = "operation"};
          const at::Tensor base = at::arange(n, at::kLong).remainder(5);
          const auto of = [&](int rank) { return (base + rank).to(type); };
          at::Tensor sum = of(0);
          for (int r = 1; r < p; ++r) {
            sum = sum + of(r);
          }
          const at::Tensor all = made_there(of(me));
          world.all_reduce(all, call);
          EXPECT_TRUE(same(all + 0, sum));
          for (int root = 0; root < p; ++root) {
            const at::Tensor broadcast = made_there(of(me));
            world.broadcast(broadcast, root, call);
            EXPECT_TRUE(same(broadcast + 0, of(root)));
            const at::Tensor reduced = made_there(of(me));
            world.reduce(reduced, root, call);
            EXPECT_TRUE(same(reduced + 0, me == root ? sum : of(me)));
          }
          const at::Tensor from = made_there(of(me));
          const at::Tensor to = at::zeros_like(from);
          world.shift(from, to, 1, call)->wait();
          EXPECT_TRUE(same(to + 0, of((me - 1 + p) % p)));
        }
      }
    });
  }
}

// Heads that torch's flash kernel takes, query heads that share keys, sizes that 4 does not divide.
test::Case small_case() {
  return {
      "device",
      test::llama({.heads = 6, .kv_heads = 2, .head_dim = 8, .hidden = 24, .ffn = 13, .vocab = 31}),
      {1, 9, 2, 17, 3}};
}

Plan plan_of(
    const test::Case& c,
    int ranks,
    const std::string& attention,
    const std::string& mlp,
    Recompute level) {
  Plan plan =
      test::uniform_plan(c.model, c.lengths, ranks, text_layer(attention, mlp, level, level));
  plan.messages.overlap = true;
  return plan;
}

void expect_steps(int ranks) {
  const test::Case c = small_case();
  for (const auto& [attention, mlp] : test::pure_strategies()) {
    for (const Recompute level : {Recompute::none, Recompute::full}) {
      const Plan plan = plan_of(c, ranks, attention, mlp, level);
      test::expect_equal(c, plan, Dtype::float64, 1e-10, local_backend(), device());
      test::expect_equal(c, plan, Dtype::float32, 2e-5, local_backend(), device());
    }
    test::expect_within_rounding(
        c,
        plan_of(c, ranks, attention, mlp, Recompute::light),
        Dtype::bfloat16,
        kAttentionDenseFrom,
        device());
  }
}

TEST(Steps, OneRank) { expect_steps(1); }
TEST(Steps, TwoRanks) { expect_steps(2); }
TEST(Steps, FourRanks) { expect_steps(4); }

}  // namespace
}  // namespace paradyse
