// How far one set of gradients is from another, as one number that a tolerance can judge.
#pragma once

#include <map>
#include <string>

#include <ATen/ATen.h>

namespace paradyse {

struct GradientError {
  std::string worst_name;  // empty when there are no gradients
  double worst = 0;
};

// Of each gradient g* of `expected` ||g - g*|| / max(||g*||, 1e-3 ||all g*||), by its name, in
// float64. The second term keeps a gradient that is nearly zero from being judged by its own noise.
// A gradient that is NaN or infinite on either side gives infinity, as does one that differs where
// all of `expected` is zero.
// `judged_as`: instead of its own length, that of the gradient it is mapped to: of one that is zero
// in exact arithmetic, whose error is rounding alone.
// Throws std::invalid_argument naming every gradient that only one side has, or whose shapes
// differ; an undefined tensor counts as absent.
std::map<std::string, double> gradient_errors(
    const std::map<std::string, at::Tensor>& actual,
    const std::map<std::string, at::Tensor>& expected,
    const std::map<std::string, std::string>& judged_as = {});

// The largest of them; throws like gradient_errors().
GradientError compare_gradients(
    const std::map<std::string, at::Tensor>& actual,
    const std::map<std::string, at::Tensor>& expected,
    const std::map<std::string, std::string>& judged_as = {});

}  // namespace paradyse
