// Polynomials of degree 1 to 3, the degree chosen by Akaike's criterion: what the publication puts
// beyond the profiled range.
#pragma once

#include <span>
#include <vector>

namespace paradyse {

inline constexpr int kMostDegree = 3;

// Sum of coefficients[i] (x / x_scale)^i.
struct Polynomial {
  double x_scale = 1;
  std::vector<double> coefficients;  // of rising powers; empty: 0 everywhere

  [[nodiscard]] double operator()(double x) const;
  friend bool operator==(const Polynomial&, const Polynomial&) = default;
};

// Least squares (not weighted, as published) of each degree from 1 to 3 that leaves at least one
// point over; of these the one with the least AIC = n ln(RSS / n) + 2 (degree + 1).  Of fewer than
// three points the line, or constant, through them.
Polynomial polynomial_by_aic(std::span<const double> x, std::span<const double> y);

}  // namespace paradyse
