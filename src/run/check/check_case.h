// One model, batch and plan: what its run comes to, and how it is judged.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "paradyse/plan/plan.h"
#include "paradyse/run/detail/item.h"
#include "src/run/check/check.h"

namespace paradyse {

// With the tolerances of the type, before anything ran, for so many numbers of ranks.
CheckRow empty_row(const std::string& way, LayerRecompute level, Dtype dtype, std::size_t ranks);

// Adds values that differ from one number to the next.
void add_wave(const at::Tensor& vector, double height, double step);
// Narrow types move a sum that is nearly zero to the other side of a relu's corner, and a row or
// two less or more changes all gradients of a model this small: biases of a part whose function
// that is keep most sums away from it.
void keep_from_corners(PartParameters& part, const Model& model);

struct CheckCase {
  std::string name;
  Model model;
  std::function<void(Parameters& parameters)> fill;
  std::vector<Item> items = {};
  // In narrow types: gradients that are judged by the size of another (gradient_errors()), those
  // behind scores (own_rounding.h), and how far each may be off.
  std::map<std::string, std::string> narrow_judged_as = {};
  std::function<bool(const std::string& name)> behind_scores = [](const std::string&) {
    return false;
  };
  std::map<std::string, double> narrow_limits = {};
  std::shared_ptr<Backend> backend = local_backend();
  c10::Device device = c10::Device(c10::kCPU);
};

// The weights as a rank of this dtype holds them, whole and in float64.
std::map<std::string, at::Tensor> whole_weights(
    const Model& model, const std::function<void(Parameters& parameters)>& fill, Dtype dtype);

// What CheckCase::narrow_limits is, by the reference on that batch; none of a type that is not
// narrow, or where the backend does not lead.
std::map<std::string, double> narrow_limits(
    const CheckCase& of, const reference::Weights& weights, Dtype dtype);

// Runs it on the i-th number of ranks and notes in the row what it comes to.
void run_case(
    const CheckCase& of,
    const Plan& plan,
    const reference::Answer& expected,
    std::size_t i,
    CheckRow& row);

}  // namespace paradyse
