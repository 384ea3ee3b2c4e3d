// Non-negative least squares against every set of columns.
#include "src/plan/profile/nnls.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <Eigen/QR>
#include <gtest/gtest.h>

namespace paradyse {
namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;

// The least residual over all sets of columns whose least squares are not negative.
double least_residual(const MatrixXd& A, const VectorXd& b) {
  double least = b.norm();
  for (unsigned set = 1; set < (1U << A.cols()); ++set) {
    std::vector<Index> columns;
    for (Index j = 0; j < A.cols(); ++j) {
      if ((set >> j & 1U) != 0) {
        columns.push_back(j);
      }
    }
    const MatrixXd some = A(Eigen::all, columns);
    const VectorXd x = some.colPivHouseholderQr().solve(b);
    if (x.minCoeff() >= 0) {
      least = std::min(least, (b - some * x).norm());
    }
  }
  return least;
}

// Of whole numbers, so that zeros, equal and collinear columns are common; columns of very
// different sizes.
TEST(Nnls, IsAsGoodAsTryingAllSetsOfColumns) {
  std::mt19937 random(1);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 5000; ++round) {
    const int rows = pick(1, 7);
    const int columns = pick(1, 5);
    const bool coarse = pick(0, 1) == 0;
    MatrixXd A(rows, columns);
    VectorXd b(rows);
    for (Index i = 0; i < rows; ++i) {
      for (Index j = 0; j < columns; ++j) {
        A(i, j) = coarse ? pick(-2, 3) : std::normal_distribution<double>()(random);
      }
      b(i) = coarse ? pick(-3, 5) : std::normal_distribution<double>()(random);
    }
    const double least = least_residual(A, b);  // whatever the columns' sizes
    for (Index j = 0; j < columns; ++j) {
      A.col(j) *= std::pow(10.0, pick(-9, 9));
    }
    const VectorXd x = nonnegative_least_squares(A, b);
    ASSERT_EQ(x.size(), columns);
    EXPECT_GE(x.minCoeff(), 0) << "round " << round;
    EXPECT_NEAR((b - A * x).norm(), least, 1e-9 * (1 + b.norm())) << "round " << round << "\n"
                                                                  << A << "\n= " << b.transpose();
  }
}

TEST(Nnls, FindsWhatMadeTheData) {
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    MatrixXd A(20, 7);
    VectorXd x(7);
    for (Index j = 0; j < A.cols(); ++j) {
      x(j) = j % 3 == 0 ? 0 : std::pow(10.0, std::uniform_real_distribution<double>(-9, 0)(random));
      for (Index i = 0; i < A.rows(); ++i) {
        A(i, j) = std::uniform_real_distribution<double>(0, 1)(random) / (x(j) + 1e-6);
      }
    }
    const VectorXd found = nonnegative_least_squares(A, A * x);
    EXPECT_LT(((found - x).array() / (x.array() + 1e-6)).abs().maxCoeff(), 1e-8)
        << "round " << round;
  }
}

TEST(Nnls, TrivialCases) {
  EXPECT_EQ(nonnegative_least_squares(MatrixXd::Zero(3, 2), VectorXd::Ones(3)), VectorXd::Zero(2));
  EXPECT_EQ(nonnegative_least_squares(MatrixXd::Ones(3, 2), VectorXd::Zero(3)), VectorXd::Zero(2));
  EXPECT_EQ(nonnegative_least_squares(MatrixXd(0, 2), VectorXd(0)), VectorXd::Zero(2));
  EXPECT_EQ(nonnegative_least_squares(MatrixXd(3, 0), VectorXd::Ones(3)).size(), 0);
}

}  // namespace
}  // namespace paradyse
