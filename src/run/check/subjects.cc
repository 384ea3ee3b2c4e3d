#include <algorithm>
#include <iterator>
#include <map>
#include <random>

#include "paradyse/plan/detail/index.h"
#include "paradyse/run/data.h"
#include "src/plan/model/small_models.h"
#include "src/run/check/check.h"
#include "src/run/check/check_case.h"

namespace paradyse {
namespace {

// The same numbers on every machine: the standard's distributions differ between libraries.  Of a
// masked LM about every third token is to be predicted, as another one.
std::vector<Document> random_documents(
    const Model& model, const std::vector<std::int64_t>& lengths) {
  std::mt19937_64 of_tokens(7);
  std::mt19937_64 of_labels(8);
  const auto id = [&](std::mt19937_64& random) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(model.vocab()));
  };
  std::vector<Document> documents;
  for (const std::int64_t length : lengths) {
    Document& document = documents.emplace_back();
    std::generate_n(std::back_inserter(document.tokens), length, [&] { return id(of_tokens); });
    if (model.masked_lm) {
      std::generate_n(std::back_inserter(document.labels.emplace()), length, [&] {
        const std::int32_t label = id(of_labels);
        return of_labels() % 3 == 0 ? label : kNoLabel;
      });
    }
  }
  return documents;
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
  return {.name = name, .model = model, .fill = fill, .documents = random_documents(model, within)};
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
