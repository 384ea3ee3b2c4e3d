#include "paradyse/plan/detail/compared_steps.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include <fmt/format.h>

#include "src/plan/base/number_text.h"
#include "src/plan/report/compared_json.h"

namespace paradyse {
namespace {

// Of Student's t with so many degrees of freedom, 1 at least: within +- this lie 95 %.
double t_of_95_percent(std::size_t freedom) {
  constexpr std::array kOf = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365,
                              2.306,  2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
                              2.131,  2.120, 2.110, 2.101, 2.093, 2.086};
  return freedom <= kOf.size() ? kOf[freedom - 1]
                               : 1.96 + 2.5 / static_cast<double>(freedom);  // to 0.002
}

}  // namespace

std::optional<MeasuredComparison> measured_comparison(std::span<const ComparedStep> steps) {
  if (steps.empty()) {
    return std::nullopt;
  }
  MeasuredComparison found{.strategy = steps.back().strategy};
  std::vector<double> logs;
  double mean = 0;
  for (const ComparedStep& step : steps) {
    if (step.strategy != found.strategy) {
      continue;
    }
    if (!(step.seconds > 0) || !(step.ours > 0)) {
      ++found.did_not_fit;
      continue;
    }
    found.seconds += step.seconds;
    found.ours += step.ours;
    logs.push_back(std::log(step.seconds / step.ours));
    mean += logs.back();
  }
  const auto n = static_cast<double>(logs.size());
  found.steps = static_cast<std::int64_t>(logs.size());
  if (logs.empty()) {
    return found;
  }
  mean /= n;
  found.ratio = std::exp(mean);
  if (logs.size() > 1) {
    double squares = 0;
    for (const double log : logs) {
      squares += (log - mean) * (log - mean);
    }
    const double off = t_of_95_percent(logs.size() - 1) * std::sqrt(squares / (n - 1) / n);
    found.low = std::exp(mean - off);
    found.high = std::exp(mean + off);
  }
  return found;
}

std::string text_of(const MeasuredComparison& one) {
  if (one.steps == 0) {
    return fmt::format(
        "the best static plan ({}) could not be measured: it did not fit into memory in {}",
        one.strategy,
        counted(one.did_not_fit, "step"));
  }
  std::string text = fmt::format(
      "measured comparison with the best static plan ({}, {}): ",
      one.strategy,
      counted(one.steps, "step"));
  if (one.steps == 1) {
    text += fmt::format("{:.2f} times its speed, but one step shows no difference", one.ratio);
  } else if (one.differs()) {
    text += fmt::format("{:.2f} times its speed ({:.2f} to {:.2f})", one.ratio, one.low, one.high);
  } else {
    text += fmt::format(
        "no difference that {} steps could show ({:.2f} to {:.2f} times its speed)",
        one.steps,
        one.low,
        one.high);
  }
  if (one.did_not_fit > 0) {
    text += fmt::format("; it did not fit into memory in {} more", one.did_not_fit);
  }
  return text;
}

nlohmann::ordered_json json_of(const std::optional<MeasuredComparison>& one) {
  if (!one) {
    return nullptr;
  }
  nlohmann::ordered_json json = {
      {"strategy", one->strategy},
      {"steps", one->steps},
      {"did_not_fit", one->did_not_fit},
      {"static_seconds", one->seconds},
      {"seconds", one->ours},
      {"ratio", nullptr},
      {"interval", nullptr}};
  if (one->steps > 0) {
    json["ratio"] = one->ratio;
  }
  if (one->steps > 1) {
    json["interval"] = {one->low, one->high};
  }
  return json;
}

}  // namespace paradyse
