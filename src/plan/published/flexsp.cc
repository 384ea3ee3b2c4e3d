#include "src/plan/published/flexsp.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

namespace paradyse {
namespace {

// Released with the publication; 16 L h s bytes is its 4 tensors x 2 passes x 2 bytes.
constexpr std::array<FlexspModel, 3> kModels = {{
    {"flexsp-7b", 4.4804, 5.128e-6, 0.1839576, 629.36, 7.117, 7.850, 32, 4096},
    {"flexsp-13b", 4.2204, 9.2852e-6, 0.3060189, 1132.56, 13.116, 14.032, 40, 5120},
    {"flexsp-30b", 3.4174, 15.4262e-6, 0.8035742, 2789.36, 31.525, 32.715, 60, 6656},
}};
constexpr std::array<double, 6> kAllToAll = {119.54, 104.07, 96.5, 10.33, 5.94, 4.87};  // 2, 4, ...
constexpr int kNode = 8;
constexpr double kBytesOfState = 16;  // of a parameter, over all ranks

double of_power_of_two(int log2_ranks) {
  if (log2_ranks == 0) {
    return std::numeric_limits<double>::infinity();
  }
  constexpr int kMeasured = static_cast<int>(kAllToAll.size());
  return log2_ranks <= kMeasured
             ? kAllToAll[idx(log2_ranks - 1)]
             : kAllToAll.back() * std::pow(0.9, log2_ranks - kMeasured);
}

}  // namespace

double FlexspModel::parameters(std::int64_t context) const {
  const double thousands = static_cast<double>(context) / 1000;
  return parameters_192k + (parameters_384k - parameters_192k) * (thousands - 192) / 192;
}

std::span<const FlexspModel> flexsp_models() { return kModels; }

const FlexspModel* flexsp_model(const std::string& name) {
  for (const FlexspModel& model : kModels) {
    if (name == model.name) {
      return &model;
    }
  }
  return nullptr;
}

double flexsp_all_to_all(int ranks) {
  const int above = std::bit_width(static_cast<unsigned>(ranks - 1));  // log2, rounded up
  if (std::has_single_bit(static_cast<unsigned>(ranks)) || ranks > kNode) {
    return of_power_of_two(above);
  }
  const double part = std::log2(ranks) - (above - 1);
  return std::pow(of_power_of_two(above - 1), 1 - part) * std::pow(of_power_of_two(above), part);
}

std::int64_t flexsp_tokens_per_rank(const FlexspSetting& setting) {
  const double states =
      kBytesOfState * 1024 * setting.model->parameters(setting.context) / setting.ranks;
  return static_cast<std::int64_t>(
      std::floor((setting.memory_mb - states) / setting.model->activation_mb));
}

GroupingTask flexsp_task(const FlexspSetting& setting, std::vector<std::int64_t> lengths) {
  const FlexspModel& model = *setting.model;
  const auto invalid = [&](const std::string& what) {
    return std::invalid_argument(std::string(model.name) + ": " + what);
  };
  if (setting.ranks < 1) {
    throw invalid(std::to_string(setting.ranks) + " ranks: at least 1 is needed");
  }
  const std::int64_t room = flexsp_tokens_per_rank(setting);
  if (room < 1) {
    throw invalid(
        "16 bytes a parameter over " + std::to_string(setting.ranks) +
        " ranks leave no memory for a token: give more ranks or memory");
  }
  GroupingTask task{
      .ranks = setting.ranks,
      .lengths = std::move(lengths),
      .types = {},
      .seconds = {},
      .micro_batch_seconds = model.b1_ms / 1000};
  for (int d = 1; d <= setting.ranks; d *= 2) {
    task.types.push_back(
        {.name = std::to_string(d) + " x UlyssesZ", .ranks = d, .capacity = d * room});
    const double linear =
        model.a2_ms + 16.0 * model.layers * model.hidden / (1024 * 1024) / flexsp_all_to_all(d);
    for (const std::int64_t length : task.lengths) {
      const auto s = static_cast<double>(length);
      task.seconds.push_back((model.a1_ms * s * s + linear * s) / d / 1000);
    }
  }
  check(task);
  return task;
}

}  // namespace paradyse
