// Groups of any size side by side (FlexSP, arXiv 2412.01523): documents go where they cost least,
// by the fast planner of groupings on what the layer costs of each size of group say.
//
// A type of group is a number of ranks and a layer that all layers are like, in a run of ranks of
// one learned speed or anywhere.  It takes a time once, of which every micro-batch takes the least
// of all types (gathering weights), and for documents of n tokens   wall(n) - once   each: what
// many small ones take together is more than one as long. Once it is known which documents share a
// group, the layer planner picks what its layers run, as it does for the borders' plans; the plan
// is predicted exactly, and the borders' plan is taken where it is predicted to be faster.
//
// The same with one size for all groups of a run is what static parallelism is at its best: rows
// for comparison, without the borders' plan.
#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/number_text.h"
#include "src/plan/search/batch/document_planner.h"
#include "src/plan/search/batch/micro_batches.h"
#include "src/plan/search/batch/table.h"
#include "src/plan/search/grouping/bounds.h"
#include "src/plan/search/grouping/planners.h"
#include "src/plan/search/grouping/rank_pools.h"
#include "src/plan/search/grouping/space.h"

namespace paradyse {
namespace {

// Where the exact count is above the estimate's, types get so much less room, so often.
constexpr double kLessRoom = 0.85;
constexpr int kCounts = 4;
// A plan of any sizes that could be faster by less than this is not sought: seeking takes a core
// from training.  One of a single size is, so that none is faster than what is found.
constexpr double kWorthSeeking = 0.99;
// Estimates are above what is predicted exactly by less than this, but for what lengths between
// the rungs of their ladder (layer_costs.h) are read off too high: ranks share few tokens unevenly.
constexpr double kRounding = 0.998;
constexpr double kLeastSeconds = 1e-9;
constexpr double kNever = std::numeric_limits<double>::infinity();

// Documents of a batch, of which more are planned in bundles: the work of planning grows as their
// square.  Bundles of much of what a group has room for waste room, so there may be more of them.
constexpr std::int64_t kItems = 512;
constexpr std::int64_t kMostItems = 4096;
constexpr std::int64_t kOfRoom = 8;

// Documents that stay together: each alone or, of very many, short ones of a share of the tokens,
// the shortest first.  `room`: tokens that the smallest groups have room for.
std::vector<std::vector<int>> bundles(const std::vector<std::int64_t>& lengths, std::int64_t room) {
  std::vector<int> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::int64_t most = 0;
  if (std::ssize(lengths) > kItems) {
    std::ranges::stable_sort(order, {}, [&](int d) { return lengths[idx(d)]; });
    const std::int64_t all = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    most = std::min({all / kItems, std::max(room / kOfRoom, all / kMostItems), room});
  }
  std::vector<std::vector<int>> items;
  std::int64_t tokens = 0;
  for (const int d : order) {
    const std::int64_t length = lengths[idx(d)];
    if (items.empty() || tokens + length > most) {
      items.emplace_back();
      tokens = 0;
    }
    items.back().push_back(d);
    tokens += length;
  }
  return items;
}

// A type of group before it is one for documents.
struct GroupKind {
  int ranks = 1;
  LayerChoice layer;
  std::int64_t capacity = 0;
  double once = 0;              // whatever documents it has
  std::vector<double> seconds;  // [document] beside that
  double total = 0;             // of all documents
};

class Groups {
 public:
  Groups(
      DocumentPlans& documents,
      const std::vector<std::int64_t>& lengths,
      Caps caps,
      const std::string& planner = "fast")
      : documents_(documents), lengths_(lengths), caps_(caps), planner_(planner) {
    for (const LayerCosts::Place& place : LayerCosts::places(lengths)) {
      surely_.push_back(1 - place.most_above);
    }
  }

  // Seconds of groups of any size, before any is predicted exactly; kNever: there are none.
  double estimated() {
    const std::vector<const GroupKind*> kinds = kinds_of(0);
    if (kinds.empty() || lengths_.empty()) {
      return kNever;
    }
    items_ = bundles(lengths_, room_of_smallest(kinds));
    const GroupingAnswer& answer = sought(kinds, 0, 1).answer;
    return answer.grouping ? answer.grouping->seconds + of_step() : kNever;
  }

  // `size`: ranks of every group that has documents; 0: any.  None is sought where a bound says
  // that it would not be worth it beside a plan of so many seconds.
  std::optional<Plan> make(int size, double worth_below = kNever) {
    const std::vector<const GroupKind*> kinds = kinds_of(size);
    if (kinds.empty() || lengths_.empty()) {
      return std::nullopt;
    }
    items_ = bundles(lengths_, room_of_smallest(kinds));
    if (bound(kinds, size) > worth_below) {
      return std::nullopt;
    }
    double room = 1;
    for (int attempt = 0; attempt < kCounts; ++attempt, room *= kLessRoom) {
      const auto& [task, answer] = sought(kinds, size, room);
      if (!answer.grouping) {
        return std::nullopt;
      }
      // Groups choose options by themselves; what all have to share (plan.h) is the checker's to
      // say.  The options that the task asks for they share.
      std::optional<Plan> plan = plan_of(task, *answer.grouping, size, /*tried=*/true);
      if (plan && !agreed(*plan)) {
        plan = plan_of(task, *answer.grouping, size, /*tried=*/false);
      }
      if (plan && agreed(*plan) && predicted_to_fit(documents_, *plan, caps_)) {
        return plan;
      }
    }
    return std::nullopt;
  }

 private:
  struct Sought {
    GroupingTask task;
    GroupingAnswer answer;
  };
  // The last one is remembered.
  const Sought& sought(const std::vector<const GroupKind*>& kinds, int size, double room) {
    if (!sought_ || asked_ != std::pair(size, room)) {
      asked_ = {size, room};
      GroupingTask task = grouping_task(kinds, room);
      GroupingAnswer answer = grouping_planner(planner_).plan_on(task, {.moves = kMovesOfTraining});
      sought_ = Sought{.task = std::move(task), .answer = std::move(answer)};
    }
    return *sought_;
  }

  // Tokens; in the layers that need least.
  static std::int64_t room_of_smallest(const std::vector<const GroupKind*>& kinds) {
    std::int64_t room = 0;
    for (const GroupKind* kind : kinds) {
      if (kind->ranks == kinds.front()->ranks) {
        room = std::max(room, kind->capacity);
      }
    }
    return room;
  }

  // Of the seconds of plans that are worth it.  Of one size it has to hold for what is predicted
  // exactly.  Estimates have all ranks at work at once: beside idle ones a group has more of the
  // cores, which is no faster for all groups together.
  [[nodiscard]] double bound(const std::vector<const GroupKind*>& kinds, int size) const {
    if (size == 0) {
      return area_bound(grouping_task(kinds, 1)).seconds / kWorthSeeking + of_step();
    }
    const PlanningTask& task = documents_.task();
    const std::vector<double>& least = least_.at(size);
    const double all = std::accumulate(least.begin(), least.end(), 0.0);
    const double share = std::min(1.0, static_cast<double>(task.machine.cores) / task.ranks);
    return kRounding * std::max(share * std::ranges::max(least), all * size / task.ranks) +
           of_step();
  }

  // Seconds of every plan, beside those of groups.
  [[nodiscard]] double of_step() const {
    return documents_.prediction().seconds_of_step(documents_.weights_whole());
  }

  [[nodiscard]] bool agreed(const Plan& plan) const {
    const PlanningTask& task = documents_.task();
    return documents_.weights_whole() ||  // nobody waits for other groups
           problems(plan, {.model = task.model, .precision = task.precision}).empty();
  }

  // Those that no other of as many ranks beats in room and in the seconds of all documents; found
  // once.  What is faster for some documents alone is left to the layer planner, once it is known
  // which share a group: few types make the search short.
  const std::vector<GroupKind>& kinds(int ranks) {
    const auto [known, fresh] = kinds_.try_emplace(ranks);
    std::vector<GroupKind>& kept = known->second;
    if (!fresh) {
      return kept;
    }
    const auto beats = [](const GroupKind& a, const GroupKind& b) {
      return a.capacity >= b.capacity && a.total <= b.total;
    };
    const std::vector<DocumentPlans::Room>& rooms = documents_.rooms(ranks, caps_);
    std::vector<std::vector<double>> walls = documents_.walls(rooms, lengths_, ranks);
    std::vector<double>& least = least_[ranks];
    least.assign(lengths_.size(), std::numeric_limits<double>::infinity());
    for (std::size_t i = 0; i < rooms.size(); ++i) {
      const auto& [layer, capacity] = rooms[i];
      GroupKind kind{
          .ranks = ranks,
          .layer = layer,
          .capacity = capacity,
          .once = documents_.once(layer, ranks).wall,
          .seconds = std::move(walls[i]),
          .total = 0};
      const double one = std::max(kind.once, documents_.estimate(layer, 1, ranks).wall);
      for (std::size_t d = 0; d < kind.seconds.size(); ++d) {
        double& seconds = kind.seconds[d];
        least[d] = std::min(least[d], std::max(0.0, surely_[d] * seconds - one));
        seconds = std::max(kLeastSeconds, seconds - kind.once);
        kind.total += seconds;
      }
      if (std::ranges::none_of(kept, [&](const GroupKind& other) { return beats(other, kind); })) {
        std::erase_if(kept, [&](const GroupKind& other) { return beats(kind, other); });
        kept.push_back(std::move(kind));
      }
    }
    return kept;
  }

  // Of a size, or of all; they stay where they are.
  std::vector<const GroupKind*> kinds_of(int size) {
    std::vector<const GroupKind*> found;
    const PlanningTask& task = documents_.task();
    for (const int ranks :
         size == 0 ? sizes_over_nodes(task.ranks, task.on_a_node()) : std::vector{size}) {
      for (const GroupKind& kind : kinds(ranks)) {
        found.push_back(&kind);
      }
    }
    return found;
  }

  [[nodiscard]] GroupingTask grouping_task(
      const std::vector<const GroupKind*>& kinds, double room) const {
    GroupingTask task{.ranks = documents_.task().ranks, .lengths = {}, .types = {}, .seconds = {}};
    const auto sum_of = [](const std::vector<int>& item, const auto& of_documents) {
      using Number = std::decay_t<decltype(of_documents[0])>;
      return std::accumulate(item.begin(), item.end(), Number{0}, [&](Number sum, int d) {
        return sum + of_documents[idx(d)];
      });
    };
    for (const std::vector<int>& item : items_) {
      task.lengths.push_back(sum_of(item, lengths_));
    }
    double least = std::numeric_limits<double>::infinity();
    for (const GroupKind* kind : kinds) {
      least = std::min(least, kind->once);
    }
    task.micro_batch_seconds = least;
    std::vector<GroupsOfAKind> all;
    for (const GroupKind* kind : kinds) {
      GroupsOfAKind& one = all.emplace_back(GroupsOfAKind{
          .type = {
              .name = std::to_string(kind->ranks) + " ranks",
              .ranks = kind->ranks,
              .capacity = std::max(
                  std::int64_t{1},
                  static_cast<std::int64_t>(room * static_cast<double>(kind->capacity))),
              .fixed_seconds = kind->once - least}});
      for (const std::vector<int>& item : items_) {
        one.seconds.push_back(sum_of(item, kind->seconds));
      }
    }
    const std::vector<double>& speeds = documents_.speeds().speeds();
    add_types(all, speeds, mean_speed(speeds), task);  // what all ranks share is cut by speed
    return task;
  }

  // Of these items, in the order of the batch.
  template <typename Items>
  [[nodiscard]] std::vector<std::int64_t> documents_of(const Items& items) const {
    std::vector<std::int64_t> documents;
    documents.reserve(items.size());
    for (const auto item : items) {
      documents.insert(documents.end(), items_[idx(item)].begin(), items_[idx(item)].end());
    }
    std::ranges::sort(documents);
    return documents;
  }

  // None: a group's documents fit no mix of layers.
  std::optional<Plan> plan_of(
      const GroupingTask& task, const Grouping& grouping, int of_size, bool tried) {
    Plan plan = empty_plan(
        documents_.task(),
        lengths_,
        of_size == 0 ? "groups of any size" : "groups of " + std::to_string(of_size) + " ranks");
    plan.messages = documents_.messages();
    for (const Grouping::MicroBatch& micro_batch : grouping.micro_batches) {
      const bool alone =  // no other has to agree
          documents_.weights_whole() ||
          (micro_batch.size() == 1 &&
           task.types[idx(micro_batch.front().type)].ranks == task.ranks);
      const auto of_group = [&](const Grouping::Group& group) -> std::optional<std::string> {
        std::vector<std::int64_t> lengths;
        lengths.reserve(group.documents.size());
        for (const std::int64_t d : documents_of(group.documents)) {
          lengths.push_back(lengths_[idx(d)]);
        }
        const std::int64_t tokens =
            std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
        const int size = task.types[idx(group.type)].ranks;
        const std::optional<DocumentPlans::Fitting> fitting = documents_.program_for(
            tokens, size, {lengths}, caps_, {.tried = tried, .whole = alone});
        return fitting ? std::optional(use(plan, fitting->program)) : std::nullopt;
      };
      // Ranks without documents gather weights as the others do.
      const auto idle = [&]() -> std::optional<std::string> {
        if (documents_.whole().empty()) {
          return std::nullopt;
        }
        return use(plan, {{.layers = plan.layers, .choice = documents_.whole().front()}});
      };
      std::optional<PlanMicroBatch> micro = side_by_side(task, micro_batch, of_group, idle);
      if (!micro) {
        return std::nullopt;
      }
      for (PlanGroup& group : micro->groups) {
        group.documents = documents_of(group.documents);
      }
      plan.micro_batches.push_back(*std::move(micro));
    }
    return plan;
  }

  DocumentPlans& documents_;
  const std::vector<std::int64_t>& lengths_;
  std::vector<std::vector<int>> items_;  // what groups have of them: bundles()
  Caps caps_;
  std::string planner_;         // of groupings
  std::vector<double> surely_;  // [document] of what is read off of it, so much at least
  std::map<int, std::vector<GroupKind>> kinds_;  // [ranks]
  // [ranks][document] Seconds in whatever layer, beside what a document of one token takes: those
  // of a group wait for messages once, and in layers unlike one another for fewer.
  std::map<int, std::vector<double>> least_;
  std::pair<int, double> asked_;  // size and room of sought_
  std::optional<Sought> sought_;
};

// Any, and each that groups of one size have.
std::vector<int> sizes(int ranks) {
  std::vector<int> found = {0};
  for (int size = 1; size < ranks; size *= 2) {
    found.push_back(size);
  }
  found.push_back(ranks);
  return found;
}

class FlexspPlanner final : public DocumentPlanner {
 public:
  using DocumentPlanner::DocumentPlanner;

 private:
  Answer make(const std::vector<std::int64_t>& lengths, Caps caps) override {
    Groups groups(documents(), lengths, caps);
    // Most estimates are below what is predicted exactly, and others above by less.
    if (documents().worth_below() < kNever &&
        kWorthSeeking * groups.estimated() > documents().worth_below()) {
      return {};  // the plan of the first kind is taken
    }
    Answer best = plan_by_borders(documents(), lengths, caps);
    // Any size, and each alone: what is predicted exactly may differ from what was added up.
    for (const int size : sizes(task().ranks)) {
      const double worth_below =
          best.plan ? std::min(best.plan->predicted.seconds.value_or(0), documents().worth_below())
                    : documents().worth_below();
      std::optional<Plan> grouped = groups.make(size, worth_below);
      if (grouped && (!best.plan || grouped->predicted.seconds < best.plan->predicted.seconds)) {
        best = {.plan = std::move(grouped), .why_not = {}};
      }
    }
    return best;
  }
};

class GroupsBy final : public DocumentPlanner {
 public:
  GroupsBy(PlanningTask task, std::string planner)
      : DocumentPlanner(std::move(task)), planner_(std::move(planner)) {}

 private:
  Answer make(const std::vector<std::int64_t>& lengths, Caps caps) override {
    Answer answer{.plan = Groups(documents(), lengths, caps, planner_).make(0), .why_not = {}};
    if (!answer.plan) {
      answer.why_not = "no plan fits in groups by " + planner_ + ": documents of up to " +
                       std::to_string(longest_of(lengths)) + " tokens do not fit";
    }
    return answer;
  }

  std::string planner_;
};

template <int ranks>
class OneSize final : public DocumentPlanner {
 public:
  using DocumentPlanner::DocumentPlanner;

 private:
  Answer make(const std::vector<std::int64_t>& lengths, Caps caps) override {
    const int size = std::min(ranks, task().ranks);
    Answer answer{.plan = Groups(documents(), lengths, caps).make(size), .why_not = {}};
    if (!answer.plan) {
      const std::string groups = "groups of " + counted(size, "rank");
      answer.why_not =
          task().memory_per_rank == 0
              ? "no plan: parallel.attention and parallel.mlp leave nothing that " + groups +
                    " can run among " + counted(task().ranks, "rank") +
                    ". Give another strategy, or another parallel.batch_planner"
              : "no plan fits in " + groups + ": documents of up to " +
                    std::to_string(longest_of(lengths)) +
                    " tokens do not fit. Give more memory, parallel.recompute = \"layer+full\", "
                    "or another parallel.batch_planner";
    }
    return answer;
  }
};

template <int ranks>
BatchPlannerRow one_size(const char* name, const char* summary) {
  return {
      .name = name,
      .summary = summary,
      .make = [](PlanningTask task) -> std::unique_ptr<BatchPlanner> {
        return std::make_unique<OneSize<ranks>>(std::move(task));
      },
      .sizes = [](int all) { return std::vector{std::min(ranks, all)}; }};
}

}  // namespace

std::vector<int> sizes_over_nodes(int ranks, int node) {
  constexpr int kFew = 8;
  std::vector<int> sizes;
  for (int size = 1; size <= ranks; ++size) {
    const bool power = std::has_single_bit(static_cast<unsigned>(size));
    const bool fits = ranks % size == 0 && (node % size == 0 || size % node == 0);
    if (ranks <= kFew || power || fits) {
      sizes.push_back(size);
    }
  }
  return sizes;
}

std::vector<int> any_size(int ranks) { return sizes_over_nodes(ranks, ranks); }

std::array<BatchPlannerRow, 5> groups_of_one_size() {
  return {
      one_size<1>("groups-of-1", "for comparison, every document on one rank"),
      one_size<2>("groups-of-2", "for comparison, every document split over two ranks"),
      one_size<4>(
          "groups-of-4", "for comparison, every document split over four ranks (or all, if fewer)"),
      one_size<8>(
          "groups-of-8",
          "for comparison, every document split over eight ranks (or all, if fewer)"),
      one_size<std::numeric_limits<int>::max()>(
          "groups-of-all", "for comparison, every document split over all ranks")};
}

BatchPlannerRow groups_by(std::string name, const GroupingPlannerRow& planner) {
  return {
      .name = std::move(name),
      .summary = std::string("for comparison, ") + planner.summary,
      .make = [planner =
                   std::string(planner.name)](PlanningTask task) -> std::unique_ptr<BatchPlanner> {
        return std::make_unique<GroupsBy>(std::move(task), planner);
      },
      .sizes = any_size};
}

BatchPlannerRow flexsp() {
  return {
      .name = "groups",
      .old_name = "flexsp",
      .summary = "groups of any size at the same time, or the plan of borders if that is faster",
      .make = [](PlanningTask task) -> std::unique_ptr<BatchPlanner> {
        return std::make_unique<FlexspPlanner>(std::move(task));
      },
      .sizes = any_size};
}

}  // namespace paradyse
