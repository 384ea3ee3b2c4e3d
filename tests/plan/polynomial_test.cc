// The polynomial that Akaike's criterion chooses.
#include "src/plan/profile/polynomial.h"

#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace paradyse {
namespace {

std::vector<double> lengths(int count) {
  std::vector<double> x;
  for (int i = 0; i < count; ++i) {
    x.push_back(std::round(128 * std::pow(2.0, 0.75 * i)));
  }
  return x;
}

double cubic(const std::vector<double>& c, double x) {
  return c[0] + x * (c[1] + x * (c[2] + x * c[3]));
}

// Of each degree, exact data give that degree and go on exactly.
TEST(Polynomial, ExactDataGiveTheirDegree) {
  const std::vector<std::vector<double>> cases = {
      {1e-3, 2e-6, 0, 0}, {1e-3, 2e-6, 3e-10, 0}, {1e-3, 2e-6, 3e-10, 1e-14}};
  for (std::size_t degree = 1; degree <= 3; ++degree) {
    const std::vector<double>& c = cases[degree - 1];
    const std::vector<double> x = lengths(10);
    std::vector<double> y;
    for (const double at : x) {
      y.push_back(cubic(c, at));
    }
    const Polynomial found = polynomial_by_aic(x, y);
    EXPECT_EQ(found.coefficients.size(), degree + 1);
    for (const double at : {100.0, 5000.0, 4 * x.back()}) {
      EXPECT_NEAR(found(at) / cubic(c, at), 1, 1e-8) << "degree " << degree << " at " << at;
    }
  }
}

// By the definition: no other degree has a lower criterion.
TEST(Polynomial, NoDegreeHasALowerCriterion) {
  std::mt19937 random(1);
  std::vector<int> chosen(4);
  for (int round = 0; round < 300; ++round) {
    const std::vector<double> x = lengths(4 + static_cast<int>(random() % 8));
    std::vector<double> y;
    const double bend = round % 3 == 0 ? 0 : round % 3 == 1 ? 3e-10 : 3e-9;
    for (const double at : x) {
      const double noise = 1 + 0.05 * std::normal_distribution<double>()(random);
      y.push_back((1e-3 + 2e-6 * at + bend * at * at) * noise);
    }
    const Polynomial found = polynomial_by_aic(x, y);
    const auto degree = found.coefficients.size() - 1;
    ASSERT_GE(degree, 1);
    ASSERT_LE(degree, 3);
    ++chosen[degree];
    // A polynomial of the same degree that is a little different fits worse.
    const auto squares = [&](const Polynomial& p) {
      double sum = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        sum += (y[i] - p(x[i])) * (y[i] - p(x[i]));
      }
      return sum;
    };
    for (std::size_t i = 0; i <= degree; ++i) {
      for (const double change : {-1e-3, 1e-3}) {
        Polynomial other = found;
        other.coefficients[i] += change * (std::abs(other.coefficients[i]) + 1e-6);
        EXPECT_GT(squares(other), squares(found)) << "round " << round;
      }
    }
  }
  EXPECT_GT(chosen[1], 20);
  EXPECT_GT(chosen[2], 20);
}

TEST(Polynomial, FewPointsGiveWhatTheyCan) {
  EXPECT_EQ(polynomial_by_aic({}, {})(7), 0);
  const std::vector<double> x = {2, 4, 4};
  const std::vector<double> y = {1, 2, 2};
  EXPECT_NEAR(polynomial_by_aic(std::span(x).first(1), std::span(y).first(1))(9), 1, 1e-12);
  EXPECT_NEAR(polynomial_by_aic(std::span(x).first(2), std::span(y).first(2))(10), 5, 1e-12);
  EXPECT_NEAR(polynomial_by_aic(x, y)(10), 5, 1e-12);  // two places
  const std::vector<double> x3 = {1, 2, 3};
  const std::vector<double> y3 = {1, 4, 9};
  EXPECT_EQ(polynomial_by_aic(x3, y3).coefficients.size(), 2);  // a parabola would leave none over
}

}  // namespace
}  // namespace paradyse
