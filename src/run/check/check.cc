#include "src/run/check/check.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/model.h"
#include "paradyse/plan/plan.h"
#include "src/run/check/check_case.h"
#include "src/run/device/device.h"

namespace paradyse {
namespace {

// Key biases move all scores of a query alike where nothing turns keys by their places: their
// gradient is zero in exact arithmetic.  What is left is rounding, of the size of the query bias's.
std::map<std::string, std::string> key_biases(const Model& model) {
  std::map<std::string, std::string> found;
  if (model.learned_positions() == 0) {
    return found;
  }
  for (const ModelPart& one : model.parts) {
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

// Of the same models: weights and biases of queries and keys.
bool of_queries_or_keys(
    const std::map<std::string, std::string>& key_biases, const std::string& name) {
  const auto stem = [](const std::string& full) { return full.substr(0, full.rfind('.')); };
  return std::ranges::any_of(key_biases, [&](const auto& pair) {
    return stem(pair.first) == stem(name) || stem(pair.second) == stem(name);
  });
}

}  // namespace

std::vector<CheckWay> check_ways(const std::vector<std::string>& wanted) {
  std::vector<CheckWay> all;
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
  CheckWay mixed{.name = "mixed layers", .layers = {}};
  for (const CheckWay& way : all) {
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

std::size_t all_check_cases(const CheckRequest& request) {
  return request.dtypes.size() * check_ways(request.strategies).size() * std::size(kCheckedLevels) *
         request.ranks.size() * request.subjects.size();
}

namespace {

std::vector<CheckChoice> every_case(const CheckRequest& request) {
  std::vector<CheckChoice> all;
  const std::size_t ways = check_ways(request.strategies).size();
  for (std::size_t dtype = 0; dtype < request.dtypes.size(); ++dtype) {
    for (std::size_t way = 0; way < ways; ++way) {
      for (std::size_t level = 0; level < std::size(kCheckedLevels); ++level) {
        for (std::size_t ranks = 0; ranks < request.ranks.size(); ++ranks) {
          for (std::size_t subject = 0; subject < request.subjects.size(); ++subject) {
            all.push_back(
                {.dtype = dtype, .way = way, .level = level, .ranks = ranks, .subject = subject});
          }
        }
      }
    }
  }
  return all;
}

// Words.  A *line* is a way in a type.  In each *round* a line takes the next level, and on each
// number of ranks the next subject: in as many rounds as there are levels and subjects all pairs of
// them.  Where there is no room for a round, lines leave numbers of ranks out in turn.
std::vector<CheckChoice> quick_cases(const CheckRequest& request) {
  constexpr std::size_t kLevels = std::size(kCheckedLevels);
  const std::size_t ways = check_ways(request.strategies).size();
  const std::size_t lines = request.dtypes.size() * ways;
  const std::size_t sizes = request.ranks.size();
  const std::size_t subjects = request.subjects.size();
  if (lines == 0 || sizes == 0 || subjects == 0) {
    return {};
  }
  const std::size_t taken = std::clamp<std::size_t>(kQuickCases / lines, 1, sizes);
  const std::size_t rounds =
      std::clamp<std::size_t>(kQuickCases / (lines * taken), 1, kLevels * subjects);
  std::size_t stride = 3;  // from subject to subject; all of them are met
  while (std::gcd(stride, subjects) != 1) {
    ++stride;
  }
  std::vector<CheckChoice> chosen;
  for (std::size_t line = 0; line < lines; ++line) {
    const std::size_t dtype = line / ways;
    const std::size_t way = line % ways;
    for (std::size_t round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < taken; ++i) {
        const std::size_t ranks = (way + way / sizes + dtype + i) % sizes;
        const std::size_t turn = line + ranks + round;
        chosen.push_back(
            {.dtype = dtype,
             .way = way,
             .level = (way + 2 * dtype + round) % kLevels,
             .ranks = ranks,
             .subject = (line + stride * i + round % kLevels + round / kLevels) % subjects,
             .messages = {.overlap = turn % 3 != 0, .reshard_after_forward = turn % 7 != 3}});
      }
    }
  }
  std::ranges::sort(chosen, {}, [](const CheckChoice& one) {
    return std::tuple(one.dtype, one.way, one.level, one.ranks, one.subject);
  });
  if (chosen.size() > kQuickCases) {  // more lines than there is room for
    for (std::size_t i = 0; i < kQuickCases; ++i) {
      chosen[i] = chosen[i * chosen.size() / kQuickCases];
    }
    chosen.resize(kQuickCases);
  }
  return chosen;
}

}  // namespace

std::vector<CheckChoice> check_cases(const CheckRequest& request) {
  return request.quick ? quick_cases(request) : every_case(request);
}

Plan plan_of(const CheckRequest& request, const CheckChoice& choice) {
  const CheckSubject& subject = request.subjects[choice.subject];
  const CheckWay way = check_ways(request.strategies)[choice.way];
  std::vector<LayerChoice> layers;
  for (std::int64_t l = 0; l < subject.model.layers; ++l) {
    const auto& [attention, mlp] = way.layers[idx(l) % way.layers.size()];
    layers.push_back(text_layer(attention, mlp));
    set_recompute(layers.back(), kCheckedLevels[choice.level]);
  }
  std::vector<std::int64_t> lengths;
  for (const auto& document : subject.documents) {
    lengths.push_back(std::ssize(document.tokens));
  }
  Plan plan = uniform_plan(subject.model, lengths, request.ranks[choice.ranks], layers);
  plan.messages = choice.messages;
  // On a GPU those that runs take; where weights are not kept, a CPU's, of several vocabulary
  // tiles.
  if (choice.messages.reshard_after_forward || request.device.is_cpu()) {
    plan.tiles = tiles_for(request.device, subject.model, request.dtypes[choice.dtype]);
  }
  return plan;
}

reference::Answer expected_answer(const CheckSubject& subject, Dtype dtype) {
  return reference::answer(
      subject.model, whole_weights(subject.model, subject.fill, dtype), {.items = subject.items()});
}

const CheckError& CheckRow::worst(std::size_t i) const {
  return gradients[i].share() > losses[i].share() ? gradients[i] : losses[i];
}

bool CheckRow::near() const {
  return std::ranges::all_of(losses, &CheckError::near) &&
         std::ranges::all_of(gradients, &CheckError::near);
}

std::vector<CheckRow> check(const CheckRequest& request) {
  struct Judged {
    CheckCase of;
    reference::Answer expected;
  };
  std::vector<CheckRow> rows;
  std::vector<std::optional<Judged>> judged;  // of the type at hand, by subject
  const std::vector<CheckWay> ways = check_ways(request.strategies);
  CheckChoice before{.dtype = request.dtypes.size()};
  const std::vector<CheckChoice> cases = check_cases(request);
  for (const CheckChoice& choice : cases) {
    const Dtype dtype = request.dtypes[choice.dtype];
    if (choice.dtype != before.dtype) {
      judged.assign(request.subjects.size(), std::nullopt);
    }
    if (choice.dtype != before.dtype || choice.way != before.way || choice.level != before.level) {
      rows.push_back(empty_row(
          ways[choice.way].name, kCheckedLevels[choice.level], dtype, request.ranks.size()));
    }
    before = choice;
    const CheckSubject& subject = request.subjects[choice.subject];
    if (request.progress) {
      request.progress(
          &choice - cases.data(), std::ssize(cases), rows.back().way + " on " + subject.name);
    }
    std::optional<Judged>& judge = judged[choice.subject];
    if (!judge) {
      judge = Judged{
          .of =
              {.name = subject.name,
               .model = subject.model,
               .fill = subject.fill,
               .items = subject.items(),
               .narrow_judged_as = key_biases(subject.model),
               .behind_scores =
                   [biases = key_biases(subject.model)](const std::string& name) {
                     return of_queries_or_keys(biases, name);
                   },
               .backend = request.backend,
               .device = request.device},
          .expected = request.expected(subject, dtype)};
      judge->of.narrow_limits =
          narrow_limits(judge->of, whole_weights(subject.model, subject.fill, dtype), dtype);
    }
    run_case(judge->of, plan_of(request, choice), judge->expected, choice.ranks, rows.back());
  }
  return request.backend->leads() ? rows : std::vector<CheckRow>{};
}

}  // namespace paradyse
