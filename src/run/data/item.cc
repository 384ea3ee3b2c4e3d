#include "paradyse/run/detail/item.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/plan/program.h"
#include "paradyse/run/accountant.h"
#include "src/run/data/document_file.h"
#include "src/run/data/held.h"

namespace paradyse {
namespace {

// The stream that the loss is of.
const Stream& scored_stream(const Model& model) {
  return model.stream(model.parts.back().part->reads.front());
}

}  // namespace

SampleInput::SampleInput(at::Tensor whole)
    : sizes_(whole.sizes().vec()), tensor_(std::move(whole)) {}

SampleInput::SampleInput(std::vector<std::int64_t> sizes, Make make)
    : sizes_(std::move(sizes)), make_(std::move(make)) {}

std::int64_t SampleInput::numel() const {
  return std::accumulate(sizes_.begin(), sizes_.end(), std::int64_t{1}, std::multiplies<>());
}

at::Tensor SampleInput::whole() const {
  if (!make_) {
    return tensor_;
  }
  const at::Tensor all = at::empty(sizes_, at::kDouble);
  std::vector<Piece> held;
  for (const std::int64_t size : sizes_) {
    held.push_back({{0, size}});
  }
  make_(held, all);
  return all;
}

void SampleInput::copy(std::span<const Piece> held, const at::Tensor& piece) const {
  if (!make_) {
    copy_held(tensor_, piece, held);
    return;
  }
  const HostScope host;  // what the rule needs for itself
  if (piece.is_cpu()) {
    make_(held, piece);
  } else {
    const at::Tensor on_host = at::empty(piece.sizes(), piece.options().device(at::kCPU));
    make_(held, on_host);
    piece.copy_(on_host);
  }
}

std::vector<std::int64_t> row_sizes(
    const std::vector<std::string>& rows, const std::map<std::string, std::int64_t>& dims) {
  std::vector<std::int64_t> sizes;
  for (const std::string& dim : rows) {
    if (dim == "batch") {
      continue;
    }
    const auto found = dims.find(dim);
    if (found == dims.end()) {
      throw std::invalid_argument(fmt::format("the plan's dims have no '{}'", dim));
    }
    sizes.push_back(found->second);
  }
  return sizes;
}

std::int64_t scored(const Item& item, const Model& model) {
  if (!model.of_samples()) {
    return scored_labels(item.labels.empty() ? item.tokens : item.labels, model.masked_lm);
  }
  const Part& last = *model.parts.back().part;
  if (last.input.empty()) {
    return std::ranges::count_if(item.labels, [](std::int32_t label) { return label >= 0; });
  }
  const std::int64_t all = item.inputs->at(last.input).numel();
  return last.shape.scored == 0 ? all : all / last.shape.predicted * last.shape.scored;
}

void check_sizes(
    const Item& item, const Model& model, const std::map<std::string, std::int64_t>& dims) {
  if (item.inputs == nullptr) {
    throw std::invalid_argument(
        fmt::format("a model of family '{}' takes samples, not documents", model.family));
  }
  for (const Stream& input : model.inputs()) {
    const auto found = item.inputs->find(input.name);
    if (found == item.inputs->end()) {
      throw std::invalid_argument(fmt::format("a sample has no '{}'", input.name));
    }
    std::vector<std::int64_t> sizes = row_sizes(input.rows, dims);
    sizes.push_back(input.columns);
    if (found->second.sizes() != at::IntArrayRef(sizes)) {
      throw std::invalid_argument(fmt::format(
          "'{}' of a sample is [{}], and model and plan want [{}]",
          input.name,
          fmt::join(found->second.sizes(), ", "),
          fmt::join(sizes, ", ")));
    }
  }
  if (!model.parts.back().part->input.empty()) {
    return;
  }
  std::int64_t rows = 1;
  for (const std::int64_t size : row_sizes(scored_stream(model).rows, dims)) {
    rows *= size;
  }
  if (static_cast<std::int64_t>(item.labels.size()) != rows) {
    throw std::invalid_argument(fmt::format(
        "a sample has {} labels for {} rows; each takes one", item.labels.size(), rows));
  }
}

void check_sample(
    const Item& item, const Model& model, const std::map<std::string, std::int64_t>& dims) {
  check_sizes(item, model, dims);
  const Part& last = *model.parts.back().part;
  for (const Stream& input : model.inputs()) {
    const at::Tensor& all = item.inputs->at(input.name).tensor();
    if (!all.defined()) {
      continue;
    }
    const bool some = input.name == last.input && last.shape.scored > 0;  // have a target
    const at::Tensor numbers =
        some ? all.unflatten(-1, {-1, last.shape.predicted}).narrow(-1, 0, last.shape.scored) : all;
    if (!at::isfinite(numbers).all().item<bool>()) {
      throw std::invalid_argument(
          fmt::format("'{}' of a sample has numbers that are not finite", input.name));
    }
    if (model.is_mask(input.name) && !at::logical_or(all == 0, all == 1).all().item<bool>()) {
      throw std::invalid_argument(fmt::format(
          "'{}' of a sample has numbers other than 0 and 1: a mask is 1 where a letter counts, "
          "else 0",
          input.name));
    }
  }
  if (!model.parts.back().part->input.empty()) {
    return;
  }
  const std::int64_t classes = model.parts.back().part->weights(1).matrices.front().rows;
  for (const std::int32_t label : item.labels) {
    if (label >= classes) {
      throw std::invalid_argument(
          fmt::format("label {} of a sample: there are {} classes, from 0", label, classes));
    }
  }
}

}  // namespace paradyse
