// The same of a model of several dims: the planned layout and every rival's, at every recompute
// level.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "paradyse/plan/model.h"
#include "paradyse/run/detail/item.h"
#include "src/plan/base/progress_hook.h"
#include "src/run/check/check.h"
#include "src/run/reference/reference.h"

namespace paradyse {

// By the reference.
reference::Answer expected_of_samples(
    const Model& model, const reference::Weights& weights, const std::vector<Item>& samples);

struct LayoutCheckRequest {
  std::string name;  // of the model, for messages
  Model model;
  std::vector<int> ranks = {1, 2, 3, 4};
  std::vector<Dtype> dtypes = {Dtype::float64, Dtype::float32};
  std::shared_ptr<Backend> backend = local_backend();
  c10::Device device = c10::Device(c10::kCPU);
  // The judge; a test puts a wrong one here.
  std::function<reference::Answer(
      const Model& model, const reference::Weights& weights, const std::vector<Item>& samples)>
      expected = expected_of_samples;
  ProgressHook progress = {};
};

// On samples of sizes that few ranks divide: two clips of 5 frames and 6 patches, or an alignment
// of 5 sequences and 7 residues.  Rows as check() makes them; a way is "planned", "dsp", "dap", ...
std::vector<CheckRow> check_layouts(const LayoutCheckRequest& request);

}  // namespace paradyse
