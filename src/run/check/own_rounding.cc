#include "src/run/check/own_rounding.h"

#include <algorithm>
#include <cmath>

#include <ATen/CPUGeneratorImpl.h>

#include "paradyse/run/gradients.h"

namespace paradyse {
namespace {

constexpr int kDraws = 8;
// Of a gradient's own rounding.  Measured over the built-in subjects, a small video and a small
// protein model, all ways and recompute levels: 3.9 at most, 8.9 behind scores.
constexpr double kOwnRoundings = 5;
// Gradients of scores sum to zero over the keys of a query.  What rounding leaves of that sum is
// multiplied by what all keys have in common, however much that is; rounding weights leaves it
// zero.
constexpr double kBehindScores = 2;
// Roundings of one number, whatever the condition.  Measured: 26 at most.
constexpr double kLeastRoundings = 4;
constexpr double kMostRoundings = 30;
// In roundings.  What weights move less is zero in exact arithmetic, of no condition: it is judged
// by the length of all gradients (gradients.h).  Measured: 13 at most.
constexpr double kUnmoved = 1e-3;

}  // namespace

double rounding(Dtype dtype) { return dtype == Dtype::bfloat16 ? 0x1p-8 : 0x1p-11; }

std::map<std::string, double> own_rounding(
    const reference::Weights& weights,
    const std::function<std::map<std::string, at::Tensor>(const reference::Weights& weights)>&
        gradients_of,
    Dtype dtype,
    const std::map<std::string, std::string>& judged_as) {
  const std::map<std::string, at::Tensor> expected = gradients_of(weights);
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(1);
  std::map<std::string, double> squares;  // mean over the draws
  for (int draw = 0; draw < kDraws; ++draw) {
    reference::Weights rounded = weights;
    for (auto& [name, weight] : rounded) {
      const at::Tensor share = 2 * at::rand(weight.sizes(), generator, at::kDouble) - 1;
      weight = weight * (1 + rounding(dtype) * share);
    }
    for (const auto& [name, error] : gradient_errors(gradients_of(rounded), expected, judged_as)) {
      squares[name] += error * error / kDraws;
    }
  }
  std::map<std::string, double> own;
  for (const auto& [name, square] : squares) {
    const auto as = judged_as.find(name);
    const double other = as == judged_as.end() ? 0 : squares.at(as->second);
    own[name] = std::sqrt(std::max(square, other));
  }
  return own;
}

double narrow_limit(double own, Dtype dtype, bool behind_scores) {
  const double one = rounding(dtype);
  if (own < kUnmoved * one) {
    return widest_narrow_limit(dtype);
  }
  const double limit = std::max(kOwnRoundings * own, kLeastRoundings * one);
  return std::min((behind_scores ? kBehindScores : 1) * limit, widest_narrow_limit(dtype));
}

double widest_narrow_limit(Dtype dtype) { return kMostRoundings * rounding(dtype); }

}  // namespace paradyse
