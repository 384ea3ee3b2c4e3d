#include <algorithm>
#include <map>
#include <random>

#include "paradyse/plan/index.h"
#include "paradyse/run/data.h"
#include "src/plan/model/small_models.h"
#include "src/run/check/check.h"
#include "src/run/check/check_case.h"

namespace paradyse {
namespace {

// The same numbers on every machine: the standard's distributions differ between libraries.
std::vector<std::vector<std::int32_t>> random_documents(
    const std::vector<std::int64_t>& lengths, std::int64_t vocab) {
  std::mt19937_64 random(7);
  std::vector<std::vector<std::int32_t>> documents;
  for (const std::int64_t length : lengths) {
    auto& document = documents.emplace_back();
    for (std::int64_t i = 0; i < length; ++i) {
      document.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocab)));
    }
  }
  return documents;
}

// Of a masked LM: about every third token is another one.
std::vector<std::vector<std::int32_t>> labels_of(
    const Model& model, const std::vector<std::vector<std::int32_t>>& documents) {
  if (!model.masked_lm) {
    return {};
  }
  std::mt19937_64 random(8);
  std::vector<std::vector<std::int32_t>> labels = documents;
  for (auto& of_document : labels) {
    for (std::int32_t& label : of_document) {
      const auto id =
          static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(model.vocab()));
      label = random() % 3 == 0 ? id : kNoLabel;
    }
  }
  return labels;
}

// Weights wide enough, and norms apart enough from one, that no mistake hides behind them.
void fill_widely(Parameters& parameters) {
  parameters.initialize(11);
  for (PartParameters& part : parameters.parts()) {
    for (const at::Tensor& vector : part.vectors) {
      add_wave(vector, 0.25, 1);
    }
    keep_from_corners(part, parameters.model());
  }
}

}  // namespace

CheckSubject check_subject(
    const std::string& name,
    const Model& model,
    const std::function<void(Parameters& parameters)>& fill,
    const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> within = lengths;
  const LengthLimit& limit = model.limits.longest;
  for (std::int64_t& length : within) {
    length = limit.allows(length) ? length : limit.tokens;
  }
  const auto documents = random_documents(within, model.vocab());
  return {
      .name = name,
      .model = model,
      .fill = fill,
      .documents = documents,
      .labels = labels_of(model, documents)};
}

std::vector<CheckSubject> built_in_subjects() {
  const std::map<std::string, std::vector<std::int64_t>> lengths = {
      {"gqa 6/2", {1, 9, 2, 17, 3}},
      {"mqa 5/1 tied", {3, 1, 8, 2}},
      {"mha 2/2", {1, 2, 6}},
      {"window", {9, 1, 4}}};
  std::vector<CheckSubject> subjects;
  for (const auto& [name, model] : small_models()) {
    const auto own = lengths.find(name);
    subjects.push_back(check_subject(
        name,
        model,
        fill_widely,
        own == lengths.end() ? std::vector<std::int64_t>{3, 1, 8} : own->second));
  }
  return subjects;
}

}  // namespace paradyse
