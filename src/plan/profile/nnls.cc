#include "src/plan/profile/nnls.h"

#include <cstddef>
#include <limits>
#include <vector>

#include <Eigen/QR>

#include "paradyse/plan/detail/index.h"

namespace paradyse {

namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;

// Least squares over the columns that are free; 0 elsewhere.
VectorXd solve_free(const MatrixXd& A, const VectorXd& b, const std::vector<Index>& free) {
  VectorXd x = VectorXd::Zero(A.cols());
  x(free) = A(Eigen::all, free).colPivHouseholderQr().solve(b);
  return x;
}

}  // namespace

VectorXd nonnegative_least_squares(const MatrixXd& A, const VectorXd& b) {
  const Index columns = A.cols();
  VectorXd scale = A.colwise().norm();
  scale = (scale.array() > 0).select(scale, 1.0);
  const MatrixXd S = A * scale.cwiseInverse().asDiagonal();

  // *Free* columns may be positive, all others are 0.  `tried`: was freed since x last changed and
  // fell back at once, by rounding.
  VectorXd x = VectorXd::Zero(columns);
  std::vector<bool> is_free(idx(columns), false);
  std::vector<bool> tried = is_free;
  const double tiny = 10 * std::numeric_limits<double>::epsilon() *
                      static_cast<double>(A.rows() + columns) * b.norm();
  const auto free_columns = [&] {
    std::vector<Index> free;
    for (Index j = 0; j < columns; ++j) {
      if (is_free[idx(j)]) {
        free.push_back(j);
      }
    }
    return free;
  };
  // Each round lowers the residual, so no set of free columns comes twice; the bound is for
  // rounding.
  for (Index round = 0; round < 30 * (columns + 1); ++round) {
    const VectorXd downhill = S.transpose() * (b - S * x);
    Index best = -1;
    for (Index j = 0; j < columns; ++j) {
      const auto at = idx(j);
      if (!is_free[at] && !tried[at] && downhill(j) > tiny &&
          (best < 0 || downhill(j) > downhill(best))) {
        best = j;
      }
    }
    if (best < 0) {
      break;
    }
    is_free[idx(best)] = true;
    const VectorXd before = x;
    for (;;) {
      const std::vector<Index> free = free_columns();
      const VectorXd target = solve_free(S, b, free);
      // As far towards the target as nothing gets negative; what stops it is free no more.
      double step = 1;
      Index stop = -1;
      for (const Index j : free) {
        const double most = target(j) < 0 ? x(j) / (x(j) - target(j)) : 1;
        if (most < step) {
          step = most;
          stop = j;
        }
      }
      if (stop < 0) {
        x = target;
        break;
      }
      x += step * (target - x);
      x(stop) = 0;
      is_free[idx(stop)] = false;
      x = x.cwiseMax(0);  // rounding
    }
    if (x == before) {
      tried[idx(best)] = true;
    } else {
      tried.assign(tried.size(), false);
    }
  }
  return x.cwiseQuotient(scale);
}

}  // namespace paradyse
