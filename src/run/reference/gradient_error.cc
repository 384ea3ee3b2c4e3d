#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "paradyse/run/gradients.h"

namespace paradyse {
namespace {

using Gradients = std::map<std::string, at::Tensor>;

bool has(const Gradients& gradients, const std::string& name) {
  const auto found = gradients.find(name);
  return found != gradients.end() && found->second.defined();
}

void check_alike(const Gradients& actual, const Gradients& expected) {
  std::ostringstream complaints;
  for (const auto& [name, gradient] : expected) {
    if (!has(actual, name)) {
      complaints << "\n  " << name << ": expected, but not there";
    } else if (!has(expected, name)) {
      complaints << "\n  " << name << ": there, but not expected";
    } else if (gradient.sizes() != actual.at(name).sizes()) {
      complaints << "\n  " << name << ": has shape " << actual.at(name).sizes() << ", expected "
                 << gradient.sizes();
    }
  }
  for (const auto& [name, gradient] : actual) {
    if (!expected.contains(name)) {
      complaints << "\n  " << name << ": there, but not expected";
    }
  }
  if (!complaints.str().empty()) {
    throw std::invalid_argument(
        "gradients cannot be compared: both sides need the same names and shapes" +
        complaints.str());
  }
}

at::Tensor in_float64(const at::Tensor& tensor) { return tensor.detach().to(at::kDouble); }

double length(const at::Tensor& tensor) { return tensor.norm().item<double>(); }

}  // namespace

std::map<std::string, double> gradient_errors(
    const Gradients& actual,
    const Gradients& expected,
    const std::map<std::string, std::string>& judged_as) {
  check_alike(actual, expected);
  double all_squared = 0;
  for (const auto& [name, gradient] : expected) {
    all_squared += std::pow(length(in_float64(gradient)), 2);
  }
  const double all = std::sqrt(all_squared);

  std::map<std::string, double> errors;
  for (const auto& [name, gradient] : expected) {
    const at::Tensor wanted = in_float64(gradient);
    const double difference = length(in_float64(actual.at(name)) - wanted);
    const auto as = judged_as.find(name);
    const at::Tensor size = as == judged_as.end() ? wanted : in_float64(expected.at(as->second));
    const double scale = std::max(length(size), 1e-3 * all);
    const double ratio = difference == 0 ? 0 : difference / scale;
    errors[name] = std::isfinite(ratio) ? ratio : std::numeric_limits<double>::infinity();
  }
  return errors;
}

GradientError compare_gradients(
    const Gradients& actual,
    const Gradients& expected,
    const std::map<std::string, std::string>& judged_as) {
  GradientError worst;
  for (const auto& [name, error] : gradient_errors(actual, expected, judged_as)) {
    if (worst.worst_name.empty() || error > worst.worst) {
      worst = {.worst_name = name, .worst = error};
    }
  }
  return worst;
}

}  // namespace paradyse
