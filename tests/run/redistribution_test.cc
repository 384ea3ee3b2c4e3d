// The redistribute op at run time, for every pair of layouts that programs use: forward by its
// definition, adjoint by the transpose's, and <C x, y> = <x, C^T y>.
#include <gtest/gtest.h>

#include "tests/support/layouts.h"
#include "tests/support/models.h"
#include "tests/support/one_op.h"

namespace paradyse {
namespace {

using test::Random;

struct Row {
  Layout from;
  Layout to;
};

double inner_product(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) * b.to(at::kDouble)).sum().item<double>();
}

double over_ranks(Communicator& world, double mine) {
  const at::Tensor sum = at::full({1}, mine, at::kDouble);
  world.all_reduce(sum, {.op = "dot", .part = ""});
  return sum.item<double>();
}

// A piece of what the ranks hold together, by the meaning of the layout.
at::Tensor expected_forward(
    const std::vector<at::Tensor>& given, const at::Tensor& whole, const Row& row, int rank) {
  at::Tensor tensor = whole;
  if (row.from.partial) {
    tensor = at::zeros_like(whole);
    for (const at::Tensor& part : given) {
      tensor = tensor + part;
    }
  }
  return test::local(tensor, row.to, rank);
}

void expect_row(const Row& row, Extent whole, int p, std::uint64_t seed, test::Types types) {
  SCOPED_TRACE(
      testing::Message() << "seed " << seed << ", p " << p << ", " << whole.rows << " x "
                         << whole.cols << ": " << to_string(row.from) << " -> "
                         << to_string(row.to));
  const bool partial = row.from.partial;
  // The program as Writer::redistribute makes it.
  Program program = test::one_op(packed({whole.rows}, p, true));
  const ValueId x = test::add_value(program, "x", row.from);
  const ValueId y = test::add_value(program, "y", row.to);
  Op move = test::op_of(OpKind::redistribute, {x}, {y});
  move.transposed = partial;
  move.copies = {
      partial ? Redistribution(row.to, row.to.whole(), p) : Redistribution(row.from, row.to, p)};
  test::add_ops(program, {move});

  Random random(seed);
  const at::Tensor matrix = test::whole_numbers(whole, random);
  std::vector<at::Tensor> given;
  std::vector<at::Tensor> gradients;
  for (int r = 0; r < p; ++r) {
    given.push_back(
        partial ? test::whole_numbers(whole, random) : test::local(matrix, row.from, r));
    gradients.push_back(test::whole_numbers(row.to.extent(r), random));
  }

  run_local_ranks(p, {}, [&](Communicators& communicators) {
    const c10::InferenceMode no_autograd;
    Communicator& world = communicators.world();
    const int me = world.rank();
    const auto i = static_cast<std::size_t>(me);
    const test::Local local{.inputs = {{x, given[i].to(types.activation)}}};
    for (const bool accumulate : {false, true}) {
      if (partial && accumulate) {
        continue;  // a partial sum has one reader: refused
      }
      test::OpRun run(program, test::llama({}), world, local, 1, types);
      EXPECT_TRUE(
          at::equal(run.value(y).to(at::kDouble), expected_forward(given, matrix, row, me)));
      run.gradient(y) = gradients[i].to(types.activation);
      if (accumulate) {
        run.gradient(x) = at::full_like(local.inputs.at(x), 3);
      }
      run.backward();
      const at::Tensor back = run.gradient(x).to(at::kDouble) - (accumulate ? 3 : 0);
      if (partial) {  // everybody gets all pieces
        for (int r = 0; r < p; ++r) {
          EXPECT_TRUE(
              at::equal(test::local(back, row.to, r), gradients[static_cast<std::size_t>(r)]));
        }
      } else {
        EXPECT_TRUE(at::equal(back, test::transposed_copy(row.from, row.to, gradients)[i]));
      }
      EXPECT_EQ(
          over_ranks(world, inner_product(run.value(y), gradients[i])),
          over_ranks(world, inner_product(given[i], back)));
    }
  });
}

constexpr int kRounds = 12;

template <typename MakeRow>
void for_random_cases(MakeRow make_row) {
  for (int p = 1; p <= 5; ++p) {
    for (std::uint64_t seed = 0; seed < kRounds; ++seed) {
      Random random(seed * 31 + static_cast<std::uint64_t>(p));
      const Extent whole{test::pick(random, 1, 13), test::pick(random, 1, 9)};
      const test::Types types = seed % 3 == 2   ? test::Types{at::kBFloat16, at::kFloat}
                                : seed % 3 == 1 ? test::Types{at::kFloat, at::kFloat}
                                                : test::Types{};
      expect_row(make_row(whole, p, random), whole, p, seed, types);
      if (testing::Test::HasFailure()) {
        return;
      }
    }
  }
}

Cuts cuts_of(Extent whole, int dim, int p, Random& random, bool overlapping) {
  return test::random_cuts(dim == 0 ? whole.rows : whole.cols, p, random, overlapping);
}

// Tokens to heads and back (overlapping: shared key/value heads), and between cuts of one dim.
TEST(Redistribution, ShardToShard) {
  for (const auto& [from, to] : {std::pair{0, 1}, std::pair{1, 0}, std::pair{0, 0}}) {
    for (const bool overlapping : {false, true}) {
      for_random_cases([&](Extent whole, int p, Random& random) {
        return Row{
            test::cut_along(from, whole, cuts_of(whole, from, p, random, false)),
            test::cut_along(to, whole, cuts_of(whole, to, p, random, overlapping))};
      });
    }
  }
}

// Rows of the tensor to pieces of rows and columns (overlapping: shared key/value heads), and back
// from a grid of them.
TEST(Redistribution, ShardToPiecesCutBothWays) {
  for_random_cases([&](Extent whole, int p, Random& random) {
    return Row{
        matrix("rows", whole, cuts_of(whole, 0, p, random, false)),
        matrix(
            "rows", whole, cuts_of(whole, 0, p, random, true), cuts_of(whole, 1, p, random, true))};
  });
  for_random_cases([&](Extent whole, int p, Random& random) {
    const int u = p == 4 ? 2 : p;  // of a row
    const Cuts rows = cuts_of(whole, 0, p / u, random, false);
    const Cuts columns = cuts_of(whole, 1, u, random, false);
    Cuts grid_rows;
    Cuts grid_columns;
    for (int r = 0; r < p; ++r) {
      grid_rows.push_back(rows[static_cast<std::size_t>(r / u)]);
      grid_columns.push_back(columns[static_cast<std::size_t>(r % u)]);
    }
    const Layout grid = matrix("rows", whole, grid_rows, grid_columns);
    return Row{grid, matrix("rows", whole, cuts_of(whole, 0, p, random, true))};
  });
}

TEST(Redistribution, ShardToReplicate) {
  for (const int dim : {0, 1}) {
    for (const bool overlapping : {false, true}) {
      for_random_cases([&](Extent whole, int p, Random& random) {
        return Row{
            test::cut_along(dim, whole, cuts_of(whole, dim, p, random, overlapping)),
            matrix("rows", whole)};
      });
    }
  }
}

TEST(Redistribution, ReplicateToShard) {
  for (const int dim : {0, 1}) {
    for_random_cases([&](Extent whole, int p, Random& random) {
      return Row{
          matrix("rows", whole), test::cut_along(dim, whole, cuts_of(whole, dim, p, random, true))};
    });
  }
}

TEST(Redistribution, PartialToShard) {
  for (const int dim : {0, 1}) {
    for_random_cases([&](Extent whole, int p, Random& random) {
      return Row{
          matrix("rows", whole).sum(),
          test::cut_along(dim, whole, cuts_of(whole, dim, p, random, false))};
    });
  }
}

}  // namespace
}  // namespace paradyse
