#include "src/plan/profile/polynomial.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <set>

#include <Eigen/QR>

namespace paradyse {

namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;

struct Candidate {
  Polynomial polynomial;
  double squares = 0;  // sum of squared residuals
};

Candidate of_degree(int degree, const VectorXd& x, const VectorXd& y) {
  const double x_scale = std::max(x.cwiseAbs().maxCoeff(), std::numeric_limits<double>::min());
  MatrixXd powers(x.size(), degree + 1);
  powers.col(0).setOnes();
  for (int i = 1; i <= degree; ++i) {
    powers.col(i) = powers.col(i - 1).cwiseProduct(x / x_scale);
  }
  const VectorXd coefficients = powers.colPivHouseholderQr().solve(y);
  return {
      .polynomial =
          {.x_scale = x_scale, .coefficients = {coefficients.begin(), coefficients.end()}},
      .squares = (y - powers * coefficients).squaredNorm()};
}

}  // namespace

double Polynomial::operator()(double x) const {
  double sum = 0;
  for (auto c = coefficients.rbegin(); c != coefficients.rend(); ++c) {
    sum = sum * (x / x_scale) + *c;
  }
  return sum;
}

Polynomial polynomial_by_aic(std::span<const double> x_values, std::span<const double> y_values) {
  const auto n = static_cast<Index>(x_values.size());
  if (n == 0) {
    return {};
  }
  const VectorXd x = Eigen::Map<const VectorXd>(x_values.data(), n);
  const VectorXd y = Eigen::Map<const VectorXd>(y_values.data(), n);
  const auto places = static_cast<int>(std::set<double>(x.begin(), x.end()).size());
  // Below this residuals are rounding, and degrees equally good.
  const double rounding = std::pow(1e-12 * y.cwiseAbs().maxCoeff(), 2) * static_cast<double>(n) +
                          std::numeric_limits<double>::min();
  Candidate best = of_degree(std::min(1, places - 1), x, y);
  double least = std::numeric_limits<double>::infinity();
  for (int degree = 1; degree <= std::min(kMostDegree, places - 2); ++degree) {
    Candidate candidate = of_degree(degree, x, y);
    const auto count = static_cast<double>(n);
    const double aic =
        count * std::log(std::max(candidate.squares, rounding) / count) + 2.0 * (degree + 1);
    if (aic < least) {
      least = aic;
      best = std::move(candidate);
    }
  }
  return best.polynomial;
}

}  // namespace paradyse
