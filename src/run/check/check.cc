#include "src/run/check/check.h"

#include <algorithm>
#include <map>

#include "paradyse/plan/index.h"
#include "paradyse/plan/model.h"
#include "paradyse/plan/plan.h"
#include "src/run/check/check_case.h"

namespace paradyse {
namespace {

// Key biases move all scores of a query alike where nothing turns keys by their places: their
// gradient is zero in exact arithmetic.  What is left is rounding, of the size of the query bias's.
std::map<std::string, std::string> key_biases(const ModelShape& model) {
  std::map<std::string, std::string> found;
  if (!model.learned_positions) {
    return found;
  }
  const Model built = text_model(model);
  for (const ModelPart& one : built.parts) {
    const PartWeights weights = one.part->weights(1);
    const Interval biases = weights.vectors_of(Role::in_bias);
    if (one.part->kind == "attention" && biases.size() == 3) {  // q, k, v apart
      const auto name = [&](std::int64_t i) {
        return layer_prefix(weights, one.layer) + weights.vectors[idx(i)].name;
      };
      found[name(biases.begin + 1)] = name(biases.begin);
    }
  }
  return found;
}

// What one layer runs, and the layer after it, and so on in turn.
struct Way {
  std::string name;                                         // "UlyssesZ"
  std::vector<std::pair<std::string, std::string>> layers;  // attention, mlp
};

// Every strategy with its own verb and with the others; layers that differ.
std::vector<Way> ways(const std::vector<std::string>& wanted) {
  std::vector<Way> all;
  for (const Strategy& s : strategies("attention")) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), s.name) == wanted.end()) {
      continue;
    }
    for (const Verb mlp : {Verb::hold, Verb::gather, Verb::pass}) {
      if (!s.one_rank || mlp == Verb::gather) {  // one rank is not the whole domain
        all.push_back(
            {.name = s.name + "+" + to_string(mlp), .layers = {{s.name, to_string(mlp)}}});
      }
    }
  }
  Way mixed{.name = "mixed layers", .layers = {}};
  for (const Way& way : all) {
    if (!strategy("attention", way.layers[0].first).one_rank) {
      mixed.layers.push_back(way.layers[0]);
    }
  }
  std::reverse(mixed.layers.begin(), mixed.layers.end());
  if (mixed.layers.size() > 2) {
    // neighbours differ in both parts
    mixed.layers = {mixed.layers.front(), mixed.layers.back()};
    all.push_back(mixed);
  }
  return all;
}

Plan plan_of(const CheckSubject& subject, const Way& way, LayerRecompute level, int ranks) {
  std::vector<LayerChoice> layers;
  for (std::int64_t l = 0; l < subject.model.layers; ++l) {
    const auto& [attention, mlp] = way.layers[idx(l) % way.layers.size()];
    layers.push_back(text_layer(attention, mlp));
    set_recompute(layers.back(), level);
  }
  std::vector<std::int64_t> lengths;
  for (const auto& document : subject.documents) {
    lengths.push_back(static_cast<std::int64_t>(document.size()));
  }
  Plan plan = uniform_plan(subject.model, lengths, ranks, layers);
  plan.messages.overlap = true;
  return plan;
}

}  // namespace

reference::Answer expected_answer(const CheckSubject& subject, Dtype dtype) {
  return reference::model(
      subject.model,
      whole_weights(text_model(subject.model), subject.fill, dtype),
      subject.documents,
      subject.labels);
}

const CheckError& CheckRow::worst(std::size_t i) const {
  return gradients[i].error > losses[i].error ? gradients[i] : losses[i];
}

bool CheckRow::near() const {
  return std::ranges::all_of(losses, &CheckError::near) &&
         std::ranges::all_of(gradients, &CheckError::near);
}

std::vector<CheckRow> check(const CheckRequest& request) {
  std::vector<CheckRow> rows;
  for (const Dtype dtype : request.dtypes) {
    std::vector<reference::Answer> expected;
    std::vector<CheckCase> cases;
    for (const CheckSubject& subject : request.subjects) {
      expected.push_back(request.expected(subject, dtype));
      cases.push_back(
          {.name = subject.name,
           .model = text_model(subject.model),
           .fill = subject.fill,
           .documents = subject.documents,
           .labels = subject.labels,
           .narrow_judged_as = key_biases(subject.model),
           .backend = request.backend,
           .device = request.device});
    }
    for (const Way& way : ways(request.strategies)) {
      for (const LayerRecompute level : kCheckedLevels) {
        CheckRow row = empty_row(way.name, level, dtype, request.ranks.size());
        for (std::size_t i = 0; i < request.ranks.size(); ++i) {
          for (std::size_t s = 0; s < request.subjects.size(); ++s) {
            const CheckSubject& subject = request.subjects[s];
            const Plan plan = plan_of(subject, way, level, request.ranks[i]);
            run_case(cases[s], plan, expected[s], i, row);
          }
        }
        rows.push_back(std::move(row));
      }
    }
  }
  return request.backend->leads() ? rows : std::vector<CheckRow>{};
}

}  // namespace paradyse
