// The costs file: docs/internals/costs.md.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/json_node.h"
#include "src/plan/base/json_text.h"
#include "src/plan/base/sha256.h"
#include "src/plan/base/text_match.h"
#include "src/plan/profile/fit.h"
#include "src/plan/profile/header_json.h"
#include "src/plan/profile/held_out_json.h"
#include "src/plan/profile/hybrid.h"
#include "src/plan/profile/structured.h"

namespace paradyse {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kCostsFormat = "paradyse-costs";
constexpr std::int64_t kCostsVersion = 2;
constexpr std::array<const char*, 3> kUseNames = {"by-range", "forest", "polynomial"};
constexpr int kFeatures = 2;

// The names of rates: those of amounts, and "phase" for the constant.
std::vector<std::string> rate_names() {
  std::vector<std::string> names(Amounts::kNames.begin(), Amounts::kNames.end());
  names.emplace_back("spilled_bytes");
  names.emplace_back("phase");
  return names;
}

std::vector<std::string> phase_names() { return {kPhaseNames.begin(), kPhaseNames.end()}; }

// --- writing -------------------------------------------------------------------------------------

double readable(double value, const char* what) {
  if (!(std::abs(value) <= kMostNumber)) {
    throw std::invalid_argument(fmt::format(
        "costs: {} is {}, and a costs file has numbers up to {}: fit again",
        what,
        value,
        kMostNumber));
  }
  return value;
}

Json json_of(const PhaseRates& rates) {
  Json json = Json::object();
  const std::vector<std::string> names = rate_names();
  for (std::size_t phase = 0; phase < kPartPhases; ++phase) {
    for (std::size_t i = 0; i < Rates::kCount; ++i) {
      json[kPhaseNames[phase]][names[i]] = readable(rates[phase].values[i], "a rate");
    }
  }
  return json;
}

void put(const FittedRates& fitted, Json& into) {
  into["longest"] = fitted.longest;
  into["error_inside"] = readable(fitted.error_inside, "an error");
  into["error_beyond"] = readable(fitted.error_beyond, "an error");
  into["rates"] = json_of(fitted.rates);
}

Json json_of(const Structured& model) {
  Json json = {
      {"machine", Json::object()}, {"parts", Json::array()}, {"strategies", Json::array()}};
  put(model.machine, json["machine"]);
  for (const auto& [part, fitted] : model.parts) {
    Json one = {{"part", part}};
    put(fitted, one);
    json["parts"].push_back(std::move(one));
  }
  for (const auto& [name, fitted] : model.strategies) {
    Json one = {{"part", name.first}, {"strategy", name.second}};
    put(fitted, one);
    json["strategies"].push_back(std::move(one));
  }
  for (const auto& [name, sizes] : model.sizes) {
    for (const auto& [ranks, fitted] : sizes.rates) {
      Json one = {{"part", name.first}, {"strategy", name.second}, {"ranks", ranks}};
      put(fitted, one);
      json["sizes"].push_back(std::move(one));
    }
  }
  return json;
}

Json json_of(const Polynomial& polynomial) {
  for (const double coefficient : polynomial.coefficients) {
    readable(coefficient, "a coefficient");
  }
  return {
      {"x_scale", readable(polynomial.x_scale, "a scale")},
      {"coefficients", polynomial.coefficients}};
}

Json json_of(const HybridFit& fit) {
  Json json = {
      {"use", kUseNames[idx(fit.use)]},
      {"error_inside", readable(fit.error_inside, "an error")},
      {"error_beyond", readable(fit.error_beyond, "an error")},
      {"levels", Json::array()}};
  for (const auto& [level, fitted] : fit.levels) {
    Json one = {{"recompute", to_string(level)}, {"longest", fitted.longest}};
    for (std::size_t i = 0; i < kPartPhases && fit.use != HybridFit::Use::forest; ++i) {
      one["polynomials"][kPhaseNames[i]] = json_of(fitted.polynomials[i]);
    }
    json["levels"].push_back(std::move(one));
  }
  for (std::size_t i = 0; i < kPartPhases && fit.use != HybridFit::Use::polynomial; ++i) {
    json["forests"][kPhaseNames[i]] = json_of(fit.forests[i]);
  }
  return json;
}

Json json_of(const HybridModel& model) {
  Json json = {{"strategies", Json::array()}};
  for (const auto& [key, fit] : model.fits) {
    Json one = {{"part", key.part}, {"strategy", key.strategy}, {"ranks", key.ranks}};
    one.update(json_of(fit));
    json["strategies"].push_back(std::move(one));
  }
  return json;
}

template <typename Model>
const Model& own(const std::shared_ptr<const TimeModel>& model, const char* name) {
  const auto* its = dynamic_cast<const Model*>(model.get());
  if (its == nullptr) {
    throw std::invalid_argument(
        std::string("costs: the ") + name +
        " model was not made by fit(): only such models can be written");
  }
  return *its;
}

Json json_of(const Costs& costs) {
  Json json = {
      {"format", kCostsFormat},
      {"version", kCostsVersion},
      {"header", json_of(costs.header)},
      {"best", costs.best},
      {"memory_overhead", readable(costs.memory_overhead, "memory_overhead")},
      {"optimizer_seconds_per_byte",
       readable(costs.optimizer_seconds_per_byte, "optimizer_seconds_per_byte")},
      {"step_seconds", readable(costs.step_seconds, "step_seconds")}};
  if (costs.attention_dense_from) {
    json["attention_dense_from"] = *costs.attention_dense_from;
  }
  json["errors"] = Json::array();
  for (const HeldOutError& error : costs.errors) {
    json["errors"].push_back(json_of(error));
  }
  json["structured"] = json_of(own<Structured>(costs.structured, "structured"));
  json["hybrid"] = json_of(own<HybridModel>(costs.hybrid, "hybrid"));
  return json;
}

// --- reading -------------------------------------------------------------------------------------

// Rates above 0: seconds rise with every amount.
double rate_from(const JsonNode& node) {
  const double rate = node.number_from_0();
  if (!(rate > 0)) {
    node.fail("a rate is above 0, found " + std::to_string(rate) + "; fit again");
  }
  return rate;
}

PhaseRates rates_from(const JsonNode& node) {
  node.allow(phase_names());
  PhaseRates rates;
  const std::vector<std::string> names = rate_names();
  for (std::size_t phase = 0; phase < kPartPhases; ++phase) {
    const JsonNode of_phase = node.at(kPhaseNames[phase]);
    of_phase.allow(names);
    for (std::size_t i = 0; i < Rates::kCount; ++i) {
      rates[phase].values[i] = rate_from(of_phase.at(names[i]));
    }
  }
  return rates;
}

FittedRates fitted_from(const JsonNode& node, std::vector<std::string> names) {
  names.insert(names.end(), {"longest", "error_inside", "error_beyond", "rates"});
  node.allow(names);
  return {
      .rates = rates_from(node.at("rates")),
      .longest = node.at("longest").integer<std::int64_t>(0),
      .error_inside = node.at("error_inside").number_from_0(),
      .error_beyond = node.at("error_beyond").number_from_0()};
}

// Throws unless `key` is new in the map.
template <typename Map, typename Key, typename Value>
void put_new(Map& map, const Key& key, Value value, const JsonNode& node) {
  if (!map.emplace(key, std::move(value)).second) {
    node.fail("appears twice; keep one");
  }
}

std::shared_ptr<Structured> structured_from(const JsonNode& node) {
  node.allow({"machine", "parts", "strategies", "sizes"});
  auto model = std::make_shared<Structured>();
  model->machine = fitted_from(node.at("machine"), {});
  for (const JsonNode& one : node.at("parts").elements()) {
    const FittedRates fitted = fitted_from(one, {"part"});
    put_new(model->parts, one.at("part").text(), fitted, one);
  }
  for (const JsonNode& one : node.at("strategies").elements()) {
    const FittedRates fitted = fitted_from(one, {"part", "strategy"});
    const std::pair name(one.at("part").text(), one.at("strategy").text());
    put_new(model->strategies, name, fitted, one);
  }
  if (node.has("sizes")) {  // files of before have none
    for (const JsonNode& one : node.at("sizes").elements()) {
      const FittedRates fitted = fitted_from(one, {"part", "strategy", "ranks"});
      const std::pair name(one.at("part").text(), one.at("strategy").text());
      put_new(model->sizes[name].rates, one.at("ranks").integer<int>(1), fitted, one);
    }
  }
  return model;
}

// Of tokens, the longest measured document being 1; its powers stay within a double.
Polynomial polynomial_from(const JsonNode& node) {
  node.allow({"x_scale", "coefficients"});
  const JsonNode coefficients = node.at("coefficients");
  Polynomial polynomial{
      .x_scale = node.at("x_scale").number(1, kMostNumber),
      .coefficients = coefficients.numbers(-kMostNumber, kMostNumber)};
  if (polynomial.coefficients.size() > kMostDegree + 1) {
    coefficients.fail(fmt::format(
        "expected at most {} of them, found {}; fit again",
        kMostDegree + 1,
        polynomial.coefficients.size()));
  }
  return polynomial;
}

// The name's place among `names`.
template <std::size_t n>
std::size_t place_of(const JsonNode& node, const std::array<const char*, n>& names) {
  const std::string text = node.text();
  const auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end()) {
    const std::vector<std::string> known(names.begin(), names.end());
    node.fail(
        "'" + text + "' is not known" + did_you_mean(text, known) + "; there are " +
        joined(known, ", "));
  }
  return idx(found - names.begin());
}

Recompute recompute_from(const JsonNode& node) {
  const std::string text = node.text();
  try {
    return recompute(text);
  } catch (const std::invalid_argument& error) {
    node.fail(error.what());
  }
}

HybridFit hybrid_fit_from(const JsonNode& node) {
  node.allow(
      {"part", "strategy", "ranks", "use", "error_inside", "error_beyond", "levels", "forests"});
  HybridFit fit{
      .use = static_cast<HybridFit::Use>(place_of(node.at("use"), kUseNames)),
      .error_inside = node.at("error_inside").number_from_0(),
      .error_beyond = node.at("error_beyond").number_from_0()};
  for (const JsonNode& one : node.at("levels").elements()) {
    HybridFit::Level level{.longest = one.at("longest").integer<std::int64_t>(0)};
    if (fit.use == HybridFit::Use::forest) {
      one.allow({"recompute", "longest"});
    } else {
      one.allow({"recompute", "longest", "polynomials"});
      const JsonNode polynomials = one.at("polynomials");
      polynomials.allow(phase_names());
      for (std::size_t i = 0; i < kPartPhases; ++i) {
        level.polynomials[i] = polynomial_from(polynomials.at(kPhaseNames[i]));
      }
    }
    put_new(fit.levels, recompute_from(one.at("recompute")), std::move(level), one);
  }
  if (fit.use != HybridFit::Use::polynomial) {
    const JsonNode forests = node.at("forests");
    forests.allow(phase_names());
    for (std::size_t i = 0; i < kPartPhases; ++i) {
      fit.forests[i] = forest_from(forests.at(kPhaseNames[i]), kFeatures);
    }
  } else if (node.has("forests")) {
    node.at("forests").fail("is not used where 'use' is polynomial; remove it");
  }
  return fit;
}

std::shared_ptr<HybridModel> hybrid_from(const JsonNode& node) {
  node.allow({"strategies"});
  auto model = std::make_shared<HybridModel>();
  for (const JsonNode& one : node.at("strategies").elements()) {
    HybridFit fit = hybrid_fit_from(one);
    const HybridKey key{
        .part = one.at("part").text(),
        .strategy = one.at("strategy").text(),
        .ranks = one.at("ranks").integer<int>(1)};
    put_new(model->fits, key, std::move(fit), one);
  }
  return model;
}

// A negative one says that ranks take less than is counted: a person may write it, training
// survives it (retries).
double overhead(const JsonNode& node) {
  const double ratio = node.number(-kMostNumber, kMostNumber);
  if (ratio <= -1) {
    node.fail("expected a ratio above -1, found " + std::to_string(ratio));
  }
  return ratio;
}

Costs costs_from(const JsonNode& root) {
  expect_format(
      root,
      kCostsFormat,
      kCostsVersion,
      "this is not a costs file; give one that `paradyse fit` wrote",
      "fit again");
  root.allow(
      {"format",
       "version",
       "header",
       "best",
       "memory_overhead",
       "optimizer_seconds_per_byte",
       "step_seconds",
       "attention_dense_from",
       "errors",
       "structured",
       "hybrid"});
  constexpr std::array<const char*, 2> kModels = {"structured", "hybrid"};
  Costs costs{
      .header = header_from(root.at("header")),
      .best = kModels[place_of(root.at("best"), kModels)],
      .memory_overhead = overhead(root.at("memory_overhead")),
      .optimizer_seconds_per_byte = root.at("optimizer_seconds_per_byte").number_from_0(),
      .step_seconds = root.at("step_seconds").number_from_0()};
  if (root.has("attention_dense_from")) {
    costs.attention_dense_from = root.at("attention_dense_from").integer<std::int64_t>(1);
  }
  for (const JsonNode& error : root.at("errors").elements()) {
    costs.errors.push_back(held_out_error_from(error));
  }
  const auto structured = structured_from(root.at("structured"));
  const auto hybrid = hybrid_from(root.at("hybrid"));
  hybrid->otherwise = structured;
  costs.structured = structured;
  costs.hybrid = hybrid;
  return costs;
}

}  // namespace

std::string fingerprint(const Costs& costs) { return sha256_hex(json_text(json_of(costs))); }

void write_costs(const Costs& costs, const std::filesystem::path& file) {
  replace_file(file, json_text(json_of(costs)));
}

Costs read_costs(const std::filesystem::path& file) {
  const std::string text =
      content_of_named(file, "make it with `paradyse fit` (docs/internals/costs.md)");
  const JsonSource source{.name = file.string(), .whole = "the costs"};
  const nlohmann::json json = parse_json(text, source);
  return costs_from(JsonNode(json, source));
}

}  // namespace paradyse
