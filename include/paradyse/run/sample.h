// A sample of a model of several dims: what a batch brings in place of tokens.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/model.h"

namespace paradyse {

struct Sample {
  // By the names of Model::inputs(), with their dims but "batch" in their order, on the host.
  std::map<std::string, at::Tensor> inputs;
  // Of a model that predicts letters: for each row of the stream that the loss is of, in the order
  // of its dims, the class to predict; negative: none.  Empty: the model predicts an input.
  std::vector<std::int32_t> labels = {};
};

// Of a sample: the sizes of these row dims, but "batch".  Throws std::invalid_argument for one that
// `dims` (Plan::dims) have not got.
std::vector<std::int64_t> row_sizes(
    const std::vector<std::string>& rows, const std::map<std::string, std::int64_t>& dims);

// What the loss of a sample is the mean of: labels that count, or elements of what is predicted.
std::int64_t scored(const Sample& sample, const Model& model);

// Throws std::invalid_argument, naming input and sizes, where one is missing or not as the model
// and `dims` (Plan::dims) have it, and for labels of another number than rows.
void check_sizes(
    const Sample& sample, const Model& model, const std::map<std::string, std::int64_t>& dims);
// The same, and for inputs that are not finite and labels that are no classes.
void check_sample(
    const Sample& sample, const Model& model, const std::map<std::string, std::int64_t>& dims);

}  // namespace paradyse
