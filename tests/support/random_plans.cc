#include "tests/support/random_plans.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "paradyse/plan/detail/index.h"
#include "src/plan/model/text/text_shape.h"

namespace paradyse::test {
namespace {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}

  // 0 to n - 1.
  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }
  int between(int low, int high) { return low + below(high - low + 1); }
  bool one_in(int n) { return below(n) == 0; }
  template <typename T>
  const T& of(const std::vector<T>& values) {
    return values[idx(below(static_cast<int>(values.size())))];
  }
  template <typename T>
  T& of(std::vector<T>& values) {
    return values[idx(below(static_cast<int>(values.size())))];
  }
  template <typename T>
  void shuffle(std::vector<T>& values) {
    for (int i = static_cast<int>(values.size()) - 1; i > 0; --i) {
      std::swap(values[idx(i)], values[idx(below(i + 1))]);
    }
  }
  // From e^-4 to e^4.
  double share() { return std::exp(8.0 * below(1001) / 1000 - 4); }

 private:
  std::mt19937_64 random_;
};

// One random plan in the making.
class PlanMaker {
 public:
  PlanMaker(const TextShape& model, Plan plan, std::uint64_t seed)
      : model_(text_model(model)), plan_(std::move(plan)), dice_(seed), sizes_(~seed) {}

  Plan make() {
    plan_.programs.clear();
    plan_.micro_batches.clear();
    plan_.weight_domain = dice_.one_in(3) ? dice_.of(divisors(plan_.ranks)) : plan_.ranks;
    if (sizes_.one_in(3)) {
      plan_.messages = {.reshard_after_forward = false, .reshard_after_backward = false};
    }
    whole_ = whole_weights(plan_);
    std::vector<std::int64_t> documents(plan_.lengths.size());
    std::iota(documents.begin(), documents.end(), std::int64_t{0});
    dice_.shuffle(documents);
    const int micro_batches = dice_.between(1, 4);
    for (const auto& of_micro : dealt(documents, micro_batches)) {
      PlanMicroBatch& micro = plan_.micro_batches.emplace_back();
      const int domains = plan_.ranks / ranks_that_meet(plan_);
      const auto of_domains = dealt(of_micro, domains);
      for (int domain = 0; domain < domains; ++domain) {
        add_domain(micro, domain * ranks_that_meet(plan_), of_domains[idx(domain)]);
      }
      dice_.shuffle(micro.groups);
    }
    plan_.messages.overlap = dice_.one_in(2);
    plan_.messages.reshard_after_forward = dice_.one_in(2) && plan_.messages.reshard_after_backward;
    return std::move(plan_);
  }

 private:
  static std::vector<int> divisors(int n) {
    std::vector<int> all;
    for (int d = 1; d <= n; ++d) {
      if (n % d == 0) {
        all.push_back(d);
      }
    }
    return all;
  }

  // In `piles` piles, some of them perhaps empty.
  std::vector<std::vector<std::int64_t>> dealt(
      const std::vector<std::int64_t>& documents, int piles) {
    std::vector<std::vector<std::int64_t>> all(idx(piles));
    for (const std::int64_t document : documents) {
      dice_.of(all).push_back(document);
    }
    return all;
  }

  // Groups over the ranks of a weight domain.
  void add_domain(PlanMicroBatch& micro, int first, const std::vector<std::int64_t>& documents) {
    std::vector<int> ranks(idx(ranks_that_meet(plan_)));
    std::iota(ranks.begin(), ranks.end(), first);
    if (!documents.empty() && dice_.one_in(5)) {
      add_group(micro, std::move(ranks), documents);
      return;
    }
    const int all = ranks_that_meet(plan_);
    const int alike = sizes_.of(divisors(all));
    if (alike < all && sizes_.one_in(2) && std::ssize(documents) * alike >= all) {
      add_alike(micro, ranks, alike, documents);
      return;
    }
    dice_.shuffle(ranks);
    std::vector<std::vector<int>> groups;
    for (std::size_t next = 0; next < ranks.size();) {
      const int size = dice_.between(1, static_cast<int>(ranks.size() - next));
      const auto begin = ranks.begin() + static_cast<std::ptrdiff_t>(next);
      groups.emplace_back(begin, begin + size);
      next += idx(size);
    }
    const auto piles = dealt(documents, static_cast<int>(groups.size()));
    gathers_ = groups.size() > 1;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      std::ranges::sort(groups[g]);
      if (!piles[g].empty()) {
        add_group(micro, groups[g], piles[g]);
        continue;
      }
      gathers_ = gathers_ || groups[g].size() > 1;
      for (const int rank : groups[g]) {
        add_group(micro, {rank}, {});
      }
    }
    gathers_ = false;
  }

  // Groups of one size, one after the other, which may hold weights.
  void add_alike(
      PlanMicroBatch& micro,
      const std::vector<int>& ranks,
      int size,
      const std::vector<std::int64_t>& documents) {
    for (const char* kind : {"attention", "mlp"}) {
      verbs_[kind] = sizes_.one_in(2) ? Verb::hold : Verb::gather;
    }
    const std::size_t count = ranks.size() / idx(size);
    std::vector<std::vector<std::int64_t>> piles(count);
    for (std::size_t d = 0; d < documents.size(); ++d) {
      piles[d < count ? d : idx(sizes_.below(static_cast<int>(count)))].push_back(documents[d]);
    }
    for (std::size_t g = 0; g < count; ++g) {
      const auto begin = ranks.begin() + static_cast<std::ptrdiff_t>(g * idx(size));
      add_group(micro, {begin, begin + size}, piles[g]);
    }
    verbs_.clear();
  }

  void add_group(
      PlanMicroBatch& micro, std::vector<int> ranks, std::vector<std::int64_t> documents) {
    PlanGroup group{.ranks = std::move(ranks), .documents = std::move(documents), .program = {}};
    const auto size = static_cast<int>(group.ranks.size());
    if (size > 1 && dice_.one_in(5)) {
      for (int r = 0; r < size; ++r) {
        group.shares.push_back(dice_.share());
      }
    } else if (size > 1 && dice_.one_in(5)) {
      const int rows = dice_.of(divisors(size));
      group.mesh = {rows, size / rows};
    }
    std::vector<LayerChoice> layers;
    const bool made_again = plan_.lengths.size() % 2 == 0;  // in all groups of a domain, or in none
    for (std::int64_t layer = 0; layer < plan_.layers; ++layer) {
      layers.push_back(
          layers.empty() || dice_.one_in(2)
              ? LayerChoice{part("attention", group), part("mlp", group)}
              : layers.back());
      for (PartChoice& choice : layers.back()) {
        choice.with_layer = made_again && layer % 2 == 0;
      }
    }
    const LayerRuns program = runs_of(layers);
    const auto known = std::ranges::find_if(
        plan_.programs, [&](const auto& entry) { return entry.second == program; });
    group.program =
        known != plan_.programs.end() ? known->first : "p" + std::to_string(plan_.programs.size());
    plan_.programs[group.program] = program;
    micro.groups.push_back(std::move(group));
  }

  PartChoice part(const std::string& kind, const PlanGroup& group) {
    const auto size = static_cast<int>(group.ranks.size());
    std::vector<const Strategy*> fit;
    for (const Strategy& one : strategies(kind)) {
      const bool whole_domain = size == plan_.weight_domain && !gathers_;
      const auto verb = verbs_.find(kind);
      const bool lock_step = whole_ ? size == 1 || one.verb != Verb::pass  // nobody meets
                             : verb != verbs_.end() ? one.verb == verb->second
                                                    : whole_domain || one.verb == Verb::gather;
      if ((size == 1 || !one.one_rank) && lock_step) {
        fit.push_back(&one);
      }
    }
    const Strategy& chosen = *dice_.of(fit);
    PartChoice choice = canonical(
        {.part = kind,
         .strategy = chosen.name,
         .recompute = kRecomputeLevels[dice_.below(static_cast<int>(std::size(kRecomputeLevels)))],
         .offload = dice_.one_in(8)});
    const Task task =
        task_of(model_, kind, packed({3}, size, model_.causal), whole_ ? 1 : plan_.weight_domain);
    for (const Option& option : chosen.options) {
      if (dice_.one_in(2)) {
        choice.options[option.name] = dice_.between(1, 8);
        if (!misfits(task, choice).empty()) {
          choice.options.erase(option.name);
        }
      }
    }
    const bool from_anywhere = kind == "attention"
                                   ? chosen.name == "UlyssesZ" || chosen.name == "AllGatherKV"
                                   : chosen.verb != Verb::hold;
    if (from_anywhere && (!group.mesh.empty() || dice_.one_in(10))) {
      const int axes = std::max(1, static_cast<int>(group.mesh.size()));
      Placement& x = choice.in["x"];
      x.assign(idx(axes), "R");
      if (dice_.one_in(2)) {
        dice_.of(x) = "S(tokens)";
      }
    }
    return choice;
  }

  Model model_;
  Plan plan_;
  Dice dice_;
  Dice sizes_;                         // of groups that are alike
  bool whole_ = false;                 // weights are, while a step lasts
  bool gathers_ = false;               // all groups of the domain do
  std::map<std::string, Verb> verbs_;  // of all groups of the domain, by kind of part
};

// A group of a plan with ranks, or null.
PlanGroup* some_group(Plan& plan, Dice& dice) {
  if (plan.micro_batches.empty()) {
    return nullptr;
  }
  PlanMicroBatch& micro = dice.of(plan.micro_batches);
  if (micro.groups.empty()) {
    return nullptr;
  }
  PlanGroup& group = dice.of(micro.groups);
  return group.ranks.empty() ? nullptr : &group;
}

PartChoice& some_part(Plan& plan, Dice& dice) {
  auto program = plan.programs.begin();
  std::advance(program, dice.below(static_cast<int>(plan.programs.size())));
  return dice.of(dice.of(program->second).choice);
}

std::string some_strategy(const std::string& kind, Dice& dice) {
  std::vector<std::string> names = {"Ulyses"};
  for (const Strategy& one : strategies(kind)) {
    names.push_back(one.name);
  }
  return dice.of(names);
}

std::int64_t some_number(Dice& dice) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  return dice.of(
      std::vector<std::int64_t>{-kMost - 1, -1, 0, 1, 2, 3, 4, 5, 7, 100, 1 << 20, kMost});
}

double some_share(Dice& dice) {
  return dice.of(std::vector<double>{
      -1, 0, 1, 1e-300, 1e300, 1e308, std::nan(""), std::numeric_limits<double>::infinity()});
}

std::string edit_group(PlanGroup& group, Plan& plan, Dice& dice) {
  switch (dice.below(12)) {
    case 0:
      group.ranks.push_back(dice.between(-1, plan.ranks));
      return "a rank more";
    case 1:
      group.ranks.erase(group.ranks.begin() + dice.below(static_cast<int>(group.ranks.size())));
      return "a rank less";
    case 2:
      dice.of(group.ranks) = dice.between(0, plan.ranks - 1);
      return "another rank";
    case 3:
      std::ranges::reverse(group.ranks);
      return "ranks the other way round";
    case 4:
      group.documents.push_back(dice.between(-1, static_cast<int>(plan.lengths.size())));
      return "a document more";
    case 5:
      if (!group.documents.empty()) {
        group.documents.pop_back();
      }
      return "a document less";
    case 6:
      dice.shuffle(group.documents);
      return "documents in another order";
    case 7: {
      auto program = plan.programs.begin();
      std::advance(program, dice.below(static_cast<int>(plan.programs.size())));
      group.program = dice.one_in(6) ? "p" : program->first;
      return "another program";
    }
    case 8:
      group.shares.resize(group.ranks.size(), 1.0);
      if (!group.shares.empty()) {
        dice.of(group.shares) = some_share(dice);
      }
      return "a share";
    case 9:
      group.shares.push_back(1);
      return "a share more";
    case 10:
      group.mesh.push_back(dice.between(-1, 4));
      return "an axis more";
    default:
      group.mesh = {static_cast<int>(group.ranks.size()), 1};
      return "a mesh";
  }
}

std::string edit_part(PartChoice& part, Dice& dice) {
  switch (dice.below(8)) {
    case 0:
      part.strategy = some_strategy(part.part, dice);
      return "another strategy";
    case 1:
      part.recompute = kRecomputeLevels[dice.below(static_cast<int>(std::size(kRecomputeLevels)))];
      return "another recompute level";
    case 2:
      part.offload = !part.offload;
      return "offload or not";
    case 3: {
      std::vector<std::string> names = {"tiles"};
      for (const Option& option : all_options()) {
        names.emplace_back(option.name);
      }
      const std::string name = dice.of(names);
      part.options[name] = some_number(dice);
      return "option " + name;
    }
    case 4:
      part.in[dice.of(std::vector<std::string>{"x", "x", "y"})] = dice.of(
          std::vector<Placement>{{"R"}, {"S(tokens)"}, {"S(heads)"}, {"?"}, {}, {"R", "R"}});
      return "a placement";
    case 5:
      part.with_layer = !part.with_layer;
      return "made again with its layer or not";
    case 6:
      part.part = dice.of(std::vector<std::string>{"attention", "mlp", "head", ""});
      return "another part";
    default:
      part.out["x"] = {dice.of(std::vector<std::string>{"R", "S(tokens)"})};
      return "an expected placement";
  }
}

std::string edit_batch(Plan& plan, Dice& dice) {
  switch (dice.below(plan.micro_batches.empty() ? 6 : 10)) {
    case 0:
      plan.weight_domain = dice.between(-1, plan.ranks + 1);
      return "another weight domain";
    case 1:
      plan.ranks += dice.one_in(2) ? 1 : -1;
      return "another number of ranks";
    case 2:
      plan.layers = some_number(dice);
      return "another number of layers";
    case 3:
      dice.of(plan.lengths) = dice.of(
          std::vector<std::int64_t>{std::numeric_limits<std::int64_t>::min(), -1, 0, 1, 18});
      return "another length";
    case 4:
      plan.lengths.push_back(3);
      return "a length more";
    case 5:
      plan.dims["frames"] = some_number(dice);
      return "a dim";
    case 6:
      plan.micro_batches.push_back(dice.of(plan.micro_batches));
      return "a micro-batch twice";
    case 7:
      plan.micro_batches.erase(
          plan.micro_batches.begin() + dice.below(static_cast<int>(plan.micro_batches.size())));
      return "a micro-batch less";
    case 8: {
      PlanMicroBatch& micro = dice.of(plan.micro_batches);
      if (micro.groups.size() > 1) {  // two groups become one
        const PlanGroup last = micro.groups.back();
        micro.groups.pop_back();
        PlanGroup& first = micro.groups.front();
        first.ranks.insert(first.ranks.end(), last.ranks.begin(), last.ranks.end());
        std::ranges::sort(first.ranks);
        first.documents.insert(first.documents.end(), last.documents.begin(), last.documents.end());
      }
      return "two groups together";
    }
    default:
      plan.programs.begin()->second.front().layers = some_number(dice);
      return "layers of a run";
  }
}

}  // namespace

std::vector<Case> group_cases() {
  return {
      {"llama_gqa",
       llama({.heads = 6, .kv_heads = 2, .ffn = 13, .vocab = 31}),
       {1, 9, 2, 17, 3, 0, 5, 1, 12, 4}},
      {"llama_mha",
       llama({.heads = 7, .kv_heads = 7, .ffn = 9, .vocab = 23, .tied = true}),
       {30, 2, 1, 6}},
      {"gpt2",
       model_of(R"({"model_type": "gpt2", "n_layer": 3, "n_embd": 15, "n_head": 5,
         "n_inner": 13, "vocab_size": 31, "n_positions": 17})"),
       {17, 1, 3, 8, 1, 11, 2}},
      {"bert",
       model_of(R"({"model_type": "bert", "num_hidden_layers": 2, "hidden_size": 14,
         "num_attention_heads": 7, "intermediate_size": 13, "vocab_size": 31,
         "max_position_embeddings": 17})"),
       {4, 16, 1, 7, 2, 13, 5, 3, 9}}};
}

Plan random_plan(
    const TextShape& model,
    const std::vector<std::int64_t>& lengths,
    int ranks,
    std::uint64_t seed) {
  return PlanMaker(model, uniform_plan(model, lengths, ranks, {}), seed).make();
}

Edit random_edit(Plan plan, std::uint64_t seed) {
  Dice dice(seed);
  const int kind = dice.below(3);
  PlanGroup* const group = some_group(plan, dice);
  std::string what = kind == 0 && group != nullptr ? edit_group(*group, plan, dice)
                     : kind == 1                   ? edit_part(some_part(plan, dice), dice)
                                                   : edit_batch(plan, dice);
  return {.plan = std::move(plan), .what = std::move(what)};
}

}  // namespace paradyse::test
