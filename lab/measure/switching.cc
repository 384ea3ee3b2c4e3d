#include "lab/measure/switching.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>

#include <fmt/format.h>

#include "paradyse/plan/detail/static_strategy.h"
#include "paradyse/plan/index.h"
#include "paradyse/run/session.h"
#include "src/plan/search/batch/document_planner.h"
#include "src/run/data/synthetic_items.h"
#include "src/run/device/device.h"
#include "src/run/execute/gather.h"
#include "src/run/measure/measure.h"
#include "src/run/measure/micro_batch_seconds.h"
#include "src/run/weights/optimizer.h"

namespace paradyse {
namespace {

using Clock = std::chrono::steady_clock;

struct Runner {
  std::string name;
  std::string kind;
  PlanningTask task;
  bool learns = false;        // measured seconds correct its costs, as in `train`
  std::string strategy = {};  // of a static run, for all documents
  bool recomputes = false;    // a static run, where it must
};

// The strategies of the publication.
constexpr const char* kPublished[] = {"MegatronTS", "UlyssesZ", "MegatronCZ", "METP"};

// Which documents are whole, which over all ranks: no groups between.
constexpr const char* kBorders = "borders";

std::vector<Runner> runners(const BenchSwitchingRequest& request) {
  std::vector<Runner> all;
  const auto add = [&](const std::string& name, const char* kind, auto change) {
    Runner one{.name = name, .kind = kind, .task = request.task};
    change(one.task);
    all.push_back(std::move(one));
  };
  add("ours", "ours", [](PlanningTask&) {});
  all.back().learns = request.correct;
  if (request.task.batch_planner != kBorders) {
    add("ours by borders", "ablation", [](PlanningTask& task) { task.batch_planner = kBorders; });
    all.back().learns = request.correct;
  }
  for (const bool recomputes : {false, true}) {
    for (const Strategy& s : strategies("attention")) {
      add("static " + s.name + (recomputes ? ", recomputing" : ""), "static", [](PlanningTask&) {});
      all.back().strategy = s.name;
      all.back().recomputes = recomputes;
    }
  }
  const auto published = [&](PlanningTask& task) {
    task.planner = "paradyse-heuristic";
    task.batch_planner = kBorders;
    task.recompute = "none";
    if (request.published) {
      task.seconds = request.published;
    }
    for (const Strategy& s : strategies("attention")) {
      if (std::none_of(std::begin(kPublished), std::end(kPublished), [&](const char* name) {
            return s.name == name;
          })) {
        task.without.push_back(s.name);
      }
    }
  };
  add("published heuristic", "published", published);
  add("published heuristic, one strategy a layer", "published", [&](PlanningTask& task) {
    published(task);
    task.mix_parts = false;
  });
  if (!request.ablation) {
    return all;
  }
  add("published heuristic without smoothing", "ablation", [&](PlanningTask& task) {
    published(task);
    task.smoothing = false;
  });
  if (request.without_forest) {
    add("published heuristic without forest", "ablation", [&](PlanningTask& task) {
      published(task);
      task.seconds = request.without_forest;
    });
  }
  const auto without = [&](const std::string& what, auto change) {
    add("ours without " + what, "ablation", change);
    all.back().learns = request.correct;
  };
  for (const Strategy& s : strategies("attention")) {
    without(s.name, [&](PlanningTask& task) { task.without.push_back(s.name); });
  }
  without("recomputation", [](PlanningTask& task) { task.recompute = "none"; });
  without("options", [](PlanningTask& task) { task.try_options = false; });
  without("mixing", [](PlanningTask& task) { task.mix = false; });
  without("correction", [](PlanningTask&) {});
  all.back().learns = false;
  return all;
}

std::unique_ptr<StaticStrategy> static_of(const Runner& runner, bool packs) {
  return std::make_unique<StaticStrategy>(
      runner.task,
      runner.strategy,
      StaticStrategy::How{.recomputes = runner.recomputes, .packs = packs});
}

// What a micro-batch runs; where its groups are unlike, the ranks of each that has documents.
std::string program_text(const PlanMicroBatch& micro) {
  const PlanGroup& first = micro.groups.front();
  const auto as_first = [&](const PlanGroup& group) {
    return group.program == first.program && group.ranks.size() == first.ranks.size();
  };
  if (std::ranges::all_of(micro.groups, as_first)) {
    return first.program;
  }
  std::string text;
  for (const PlanGroup& group : micro.groups) {
    if (!group.documents.empty()) {
      text +=
          fmt::format("{}{} of {}", text.empty() ? "" : " | ", group.program, group.ranks.size());
    }
  }
  return text;
}

// The documents of every step.
std::vector<std::vector<std::int64_t>> steps_of(const BenchSwitchingRequest& request) {
  std::vector<std::vector<std::int64_t>> steps;
  std::int64_t tokens = 0;
  for (const std::int64_t n : request.lengths) {
    if (steps.empty() || request.tokens_per_step == 0 || tokens >= request.tokens_per_step) {
      steps.emplace_back();
      tokens = 0;
    }
    steps.back().push_back(n);
    tokens += n;
  }
  return steps;
}

// Work to measure, for all runs that came to it.
struct Trial {
  // Their plans do the same, and may be predicted otherwise.
  std::vector<std::pair<std::size_t, Plan>> runs;
};

struct Measured {
  double seconds = 0;
  RankNumbers ranks = {};
};

// Whether ranks do the same by either plan.
bool same_work(const Plan& a, const Plan& b) {
  const auto groups_alike = [&](const PlanGroup& one, const PlanGroup& other) {
    return one.ranks == other.ranks && one.documents == other.documents &&
           one.shares == other.shares && a.programs.at(one.program) == b.programs.at(other.program);
  };
  return a.weight_domain == b.weight_domain &&
         std::ranges::equal(
             a.micro_batches,
             b.micro_batches,
             [&](const PlanMicroBatch& one, const PlanMicroBatch& other) {
               return std::ranges::equal(one.groups, other.groups, groups_alike);
             });
}

class Bench {
 public:
  explicit Bench(const BenchSwitchingRequest& request)
      : request_(request), runners_(runners(request)), steps_(steps_of(request)) {
    for (const Runner& runner : runners_) {
      const bool planned = runner.strategy.empty();
      planners_.push_back(planned ? batch_planner(runner.task) : nullptr);
      statics_.push_back(planned ? nullptr : static_of(runner, request.tokens_per_step > 0));
      corpus_.runs.push_back({.name = runner.name, .kind = runner.kind, .steps = {}});
    }
    corpus_.name = request.corpus;
    corpus_.order = request.order;
    corpus_.packed = request.tokens_per_step > 0;
  }

  SwitchingCorpus run() {
    if (request_.backend->leads()) {
      find_rooms();
    }
    request_.backend->run(
        request_.task.ranks, [&](Communicators& communicators) { run_rank(communicators); });
    return corpus_;
  }

 private:
  // A search, so while no rank waits.
  void find_rooms() {
    for (const std::unique_ptr<StaticStrategy>& one : statics_) {
      if (one) {
        one->find_rooms();
      }
    }
  }

  // Rank 0: what a run does with a step.
  std::optional<Plan> plan(std::size_t run, std::size_t step) {
    const auto begin = Clock::now();
    const std::vector<std::int64_t>& lengths = steps_[step];
    std::optional<Plan> found =
        statics_[run] ? statics_[run]->plan(lengths) : planners_[run]->plan(lengths).plan;
    planning_.try_emplace({run, step}, seconds_since(begin));  // later it is remembered
    return found;
  }

  void run_rank(Communicators& communicators) {
    const PlanningTask& task = request_.task;
    RankSession session(
        communicators,
        task.model,
        {.dtype = request_.dtype,
         .masters = Masters::on_device,
         .memory_bytes = task.memory_per_rank,
         .device = request_.device,
         .times_parts = 1});
    session.parameters().initialize(1);
    AdamW optimizer(session.parameters(), {});
    const auto rounds = idx(request_.repeats + 1);                        // the first one warms up
    const std::size_t warm_up = std::min<std::size_t>(3, steps_.size());  // a few steps do
    for (std::size_t round = 0; round < rounds; ++round) {
      for (std::size_t s = 0; s < steps_.size(); ++s) {
        if (round == 0 && s >= warm_up) {
          break;
        }
        if (session.rank() == 0 && request_.progress) {
          const std::size_t before = round == 0 ? 0 : warm_up + (round - 1) * steps_.size();
          request_.progress(
              static_cast<std::int64_t>(before + s),
              static_cast<std::int64_t>(warm_up + (rounds - 1) * steps_.size()),
              fmt::format(
                  "{}, step {} of {}",
                  round == 0 ? "warm-up" : fmt::format("round {} of {}", round, rounds - 1),
                  s + 1,
                  round == 0 ? warm_up : steps_.size()));
        }
        one_step(round, s, session, optimizer);
      }
    }
  }

  // All runs' plans are made before any is measured: a run plans while the step before computes.
  void one_step(std::size_t round, std::size_t step, RankSession& session, AdamW& optimizer) {
    Communicator& world = session.world();
    const std::vector<Trial> trials = world.rank() == 0 ? plans(round, step) : std::vector<Trial>{};
    for (std::size_t t = 0;; ++t) {
      const Trial* trial = t < trials.size() ? &trials[t] : nullptr;
      const std::optional<Plan> plan = session.broadcast(
          trial != nullptr ? std::optional(trial->runs.front().second) : std::nullopt);
      if (!plan) {
        break;
      }
      const Measured measured = measure(*plan, session, optimizer);
      if (trial == nullptr || round == 0) {
        continue;
      }
      for (const auto& [run, its_plan] : trial->runs) {
        SwitchingStep& its = corpus_.runs[run].steps[step];
        its.seconds.push_back(measured.seconds);
        its.peak_bytes = std::max(its.peak_bytes, measured.ranks.peak_bytes);
        if (runners_[run].learns) {
          planners_[run]->observe(its_plan, measured.ranks.part_seconds);
        }
      }
    }
  }

  // Rank 0: every run's plan for a step, each plan once, in an order that is new each round: what
  // is measured first after other documents finds cold caches.
  std::vector<Trial> plans(std::size_t round, std::size_t step) {
    std::vector<Trial> trials;
    for (std::size_t run = 0; run < runners_.size(); ++run) {
      std::optional<Plan> found = plan(run, step);
      if (round > 0) {
        describe_step(run, step, found);
      }
      if (!found) {
        continue;
      }
      const auto same = std::find_if(trials.begin(), trials.end(), [&](const Trial& trial) {
        return same_work(trial.runs.front().second, *found);
      });
      if (same != trials.end()) {
        same->runs.emplace_back(run, *std::move(found));
      } else {
        trials.push_back({.runs = {{run, *std::move(found)}}});
      }
    }
    std::mt19937_64 random(round * steps_.size() + step);
    for (std::size_t i = trials.size(); i > 1; --i) {
      std::swap(trials[i - 1], trials[random() % i]);
    }
    return trials;
  }

  Measured measure(const Plan& plan, RankSession& session, AdamW& optimizer) {
    Communicator& world = session.world();
    const std::vector<OwnedItem> data = synthetic_items(request_.task.model, sizes_of(plan));
    const std::vector<Item> items = items_of(data);
    session.memory().reset_peak();
    world.barrier({.op = "bench", .part = ""});
    const auto begin = Clock::now();
    session.parameters().zero_gradients();
    const BatchResult result = session.play(plan, {.items = items}, /*backward=*/true);
    gradient_norm(session.parameters(), session.domain());
    optimizer.step(0.0, 1.0);
    synchronize(request_.device);
    world.barrier({.op = "bench", .part = ""});
    Measured measured{.seconds = seconds_since(begin)};
    measured.ranks = numbers_of_ranks(result, session);
    return measured;
  }

  // What the run plans for it now: one that learns may come to another plan later.  Predictions are
  // the first ones, made before this step's documents were measured.
  void describe_step(std::size_t run, std::size_t step, const std::optional<Plan>& mine) {
    const std::vector<std::int64_t>& lengths = steps_[step];
    std::vector<SwitchingStep>& steps = corpus_.runs[run].steps;
    const bool first = step >= steps.size();
    SwitchingStep& one = first ? steps.emplace_back() : steps[step];
    if (!first && one.fits != mine.has_value()) {
      throw std::logic_error(fmt::format(
          "switching: step {} of run '{}' {} a plan before and {} now; please report it",
          step + 1,
          runners_[run].name,
          one.fits ? "had" : "had not",
          one.fits ? "has not" : "has"));
    }
    one.tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    one.longest = *std::max_element(lengths.begin(), lengths.end());
    one.fits = mine.has_value();
    one.planning_seconds = planning_.at({run, step});
    if (!mine) {
      return;
    }
    if (first) {
      one.predicted_seconds = mine->predicted.seconds.value_or(0);
    }
    one.programs.clear();
    for (const PlanMicroBatch& micro : mine->micro_batches) {
      one.programs.push_back(program_text(micro));
      for (const PlanGroup& group : micro.groups) {
        const PredictedBytes bytes = group.predicted.bytes.value_or(PredictedBytes{});
        one.predicted_peak_bytes = std::max(one.predicted_peak_bytes, bytes.total());
      }
    }
  }

  const BenchSwitchingRequest& request_;
  std::vector<Runner> runners_;
  std::vector<std::vector<std::int64_t>> steps_;
  std::vector<std::unique_ptr<BatchPlanner>> planners_;             // [run] null: a static one
  std::vector<std::unique_ptr<StaticStrategy>> statics_;            // [run] null: a planned one
  std::map<std::pair<std::size_t, std::size_t>, double> planning_;  // [run, step] seconds
  SwitchingCorpus corpus_;
};

}  // namespace

SwitchingCorpus bench_switching(const BenchSwitchingRequest& request) {
  return Bench(request).run();
}

std::vector<LongestDocument> longest_documents(const BenchSwitchingRequest& request) {
  std::vector<LongestDocument> longest;
  if (request.task.memory_per_rank == 0) {
    return longest;
  }
  for (const Runner& runner : runners(request)) {
    const std::int64_t tokens = runner.strategy.empty()
                                    ? *DocumentPlans(runner.task).longest()
                                    : *static_of(runner, /*packs=*/false)->longest();
    longest.push_back({.run = runner.name, .tokens = tokens});
  }
  return longest;
}

}  // namespace paradyse
