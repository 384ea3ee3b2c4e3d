#include "src/plan/simulate/sample_space.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/layout_planner.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/number_text.h"
#include "src/plan/layout/dims_text.h"
#include "src/plan/search/layers/part_cost.h"
#include "src/plan/search/layouts/sample_plans.h"
#include "src/plan/search/layouts/samples.h"
#include "src/plan/simulate/additive.h"
#include "src/plan/simulate/cluster_groups.h"

namespace paradyse {
namespace {

// In the length of an item, for each kind of them: what is above that says which item has room
// where, and no group has room for two.
constexpr std::int64_t kItem = 1024;

class SampleSpace {
 public:
  SampleSpace(const Model& model, const Cluster& cluster, const ClusterSpaceOptions& options)
      : real_(cluster),
        cluster_(alike(cluster)),
        node_(std::min(cluster.ranks_per_node, cluster.ranks())),
        options_(options),
        plans_(planning_task(
            with_tiles(model, tiles_of(cluster, model, options.simulation.precision.activation)),
            cluster_,
            options.weight_domain == 0 ? cluster.ranks() : options.weight_domain,
            options.simulation,
            options.reserve)),
        costs_(cluster_, options.simulation),
        messages_(plans_.messages()) {
    messages_.overlap = options.overlapped;
    ranks_ = known_ranks();
    expect_group_sizes(options.group_sizes, ranks_);
    ranks_ = wanted_of(std::move(ranks_), options.group_sizes);
  }

  SampleSpaces make(const BatchSizes& batch) {
    rows_ = batch.lengths;
    sizes_ = samples_by_size(batch);
    SampleSpaces found;
    idle_ = idle_program();
    const GroupTask idle = group(idle_, {.dims = {}, .ranks = 1});
    weights_seconds_ = costs_.seconds(idle, {0}, model()).weights;
    for (const SamplesOfASize& size : sizes_) {
      if (!fits(size, 1)) {
        return no_room(size);
      }
    }
    expect_room_for(idle);
    std::vector<std::int64_t> at_once(sizes_.size(), 1);
    for (bool more = true; more; more = grow(at_once)) {
      if (std::optional<GroupSpace> space = space_of(at_once)) {
        found.spaces.push_back(*std::move(space));
      }
    }
    if (found.spaces.empty()) {
      return no_room(sizes_.front());
    }
    return found;
  }

  bool has_room(const DimSizes& dims) {
    return way({.dims = dims, .rows = model().rows(dims), .samples = 1, .ranks = ranks_.back()})
        .has_value();
  }

 private:
  [[nodiscard]] const Model& model() const { return plans_.task().model; }
  [[nodiscard]] int domain() const { return plans_.task().ranks; }

  [[nodiscard]] std::vector<int> known_ranks() const {
    std::vector<int> found = sizes_in_nodes(domain(), node_);
    if (options_.flexsp) {
      std::erase_if(found, [&](int size) {
        const int nodes = size / node_;
        return size < node_ ? !std::has_single_bit(static_cast<unsigned>(size))
                            : !std::has_single_bit(static_cast<unsigned>(nodes));
      });
    }
    if (found.back() != domain()) {
      found.push_back(domain());
    }
    return found;
  }

  void expect_room_for(const GroupTask& idle) {
    const PredictedBytes bytes =
        plans_.prediction().fullest_rank(idle, seats_side_by_side(1, plans_.task()));
    if (bytes.total() > plans_.budget(0)) {
      throw std::invalid_argument(
          model().name + " leaves no memory for a rank without samples on " +
          std::to_string(domain()) + " ranks of " + cluster_.name + ": each needs " +
          bytes_text(bytes.total()) + " and has " + bytes_text(plans_.budget(0)) +
          " without the reserve; give more ranks or memory, or a larger sharding group "
          "(weight_domain)");
    }
  }

  // How a group runs so many samples of a size.
  struct Way {
    std::size_t program = 0;  // index
    double seconds = 0;       // beside what every micro-batch takes of weights
  };
  // None: there is no room, or no way to run on so many ranks.
  const std::optional<Way>& way(const SampleGroup& asked) {
    const auto [known, fresh] = ways_.try_emplace(asked);
    if (fresh) {
      known->second = find(asked);
    }
    return known->second;
  }

  std::optional<Way> find(const SampleGroup& asked) {
    const SamplePlans::Found* found = nullptr;
    try {
      found = &plans_.best(asked, messages_, Caps::held);
    } catch (const std::invalid_argument& error) {
      no_way_ = error.what();
      return std::nullopt;
    }
    if (!found->fitting) {
      PredictedBytes& least = least_[asked.dims];
      const bool less = least.total() == 0 || found->least.total() < least.total();
      least = asked.samples == 1 && less ? found->least : least;
      return std::nullopt;
    }
    const auto same = std::ranges::find(programs_, found->fitting->program);
    const auto program = idx(same - programs_.begin());
    if (same == programs_.end()) {
      programs_.push_back(found->fitting->program);
    }
    std::vector<int> first(idx(asked.ranks));
    std::iota(first.begin(), first.end(), 0);
    const AdditiveSeconds seconds =
        costs_.seconds(group(programs_[program], asked), first, model());
    // layers that are recomputed as a whole gather their weights once more
    return Way{.program = program, .seconds = seconds.group + (seconds.weights - weights_seconds_)};
  }

  [[nodiscard]] GroupTask group(const LayerRuns& program, const SampleGroup& of) const {
    return {
        .layers = program,
        .lengths = of.dims.empty() ? std::vector<std::int64_t>{}
                                   : std::vector<std::int64_t>(idx(of.samples), of.rows),
        .ranks = of.ranks,
        .shares = {},
        .dims = of.dims,
        .weight_domain = domain(),
        .keep = plans_.task().training,
        .messages = messages_,
        .tiles = model().tiles()};
  }

  bool fits(const SamplesOfASize& size, std::int64_t at_once) {
    return std::ranges::any_of(ranks_, [&](int ranks) {
      return way({.dims = size.dims, .rows = size.rows, .samples = at_once, .ranks = ranks})
          .has_value();
    });
  }

  // Twice as many at once of the sizes of which there are more, and for which there is room.
  bool grow(std::vector<std::int64_t>& at_once) {
    bool grown = false;
    const std::int64_t before = std::ranges::max(at_once);
    for (std::size_t s = 0; s < sizes_.size() && model().has_dim("batch"); ++s) {
      const std::int64_t next = std::min(2 * before, std::ssize(sizes_[s].samples));
      if (at_once[s] == before && next > before && fits(sizes_[s], next)) {
        at_once[s] = next;
        grown = true;
      }
    }
    return grown;
  }

  // Runs wherever weights are gathered, and is asked for no room.
  LayerRuns idle_program() {
    const LayoutTask layout{
        .model = &model(),
        .documents = samples_of(model(), sizes_.front().dims, 1, 1, {}),
        .domain = domain(),
        .recompute = {},
        .seconds = {}};
    return runs_of(choices(layout, plan_layouts(layout, model().layers)));
  }

  SampleSpaces no_room(const SamplesOfASize& size) {
    const PredictedBytes least = least_[size.dims];
    SampleSpaces none{.sample = idx(size.samples.front())};
    const std::string sample =
        "sample " + std::to_string(none.sample) + " (" + text_of(size.dims) + ")";
    if (least.total() == 0) {
      none.why_not = sample + " has no way to run: " + no_way_;
      return none;
    }
    none.why_not = sample + " finds no room: it needs " + bytes_text(least.total()) +
                   " on the rank with the highest peak (" + bytes_text(least.static_bytes) +
                   " for parameters, gradients and optimizer, " + bytes_text(least.saved) +
                   " saved for the backward pass, " + bytes_text(least.transient) +
                   " while it computes), and a rank of " + cluster_.name + " has " +
                   bytes_text(plans_.budget(size.rows)) + " without the reserve";
    none.needed_bytes = 1 + static_cast<std::int64_t>(std::ceil(
                                static_cast<double>(least.total()) / (1 - options_.reserve)));
    return none;
  }

  // Units of one size with as many samples.
  struct Kind {
    std::vector<std::optional<Way>> ways;  // [index of ranks_]
    std::ptrdiff_t fitting = 0;            // of those
    double seconds = 0;                    // on the most ranks on which it fits
    std::int64_t length = 0;               // in the task
  };
  using Kinds = std::map<std::pair<std::size_t, std::int64_t>, Kind>;  // by size and samples

  Kind kind_of(const SamplesOfASize& size, std::int64_t count) {
    Kind kind;
    for (const int ranks : ranks_) {
      const std::optional<Way>& found =
          way({.dims = size.dims, .rows = size.rows, .samples = count, .ranks = ranks});
      kind.ways.push_back(found);
      kind.fitting += found ? 1 : 0;
      kind.seconds = found ? found->seconds : kind.seconds;
    }
    return kind;
  }

  // What fits on fewer sizes of groups is longer, so that a capacity says what a type has room for.
  static std::vector<const Kind*> numbered(Kinds& kinds) {
    std::vector<Kind*> order;
    for (auto& [of, kind] : kinds) {
      order.push_back(&kind);
    }
    std::ranges::stable_sort(
        order, {}, [](const Kind* kind) { return std::pair(-kind->fitting, kind->seconds); });
    std::int64_t length = kItem * std::ssize(order);
    for (Kind* const kind : order) {
      kind->length = length++;
    }
    return {order.begin(), order.end()};
  }

  // Items of at most so many samples each; none: one of them finds no room.
  std::optional<GroupSpace> space_of(const std::vector<std::int64_t>& at_once) {
    const std::vector<SampleUnit> units = sample_units(sizes_, at_once);
    Kinds kinds;
    for (const SampleUnit& unit : units) {
      const auto [kind, fresh] = kinds.try_emplace({unit.size, unit.count()});
      if (fresh) {
        kind->second = kind_of(sizes_[unit.size], unit.count());
      }
    }
    const std::vector<const Kind*> order = numbered(kinds);
    GroupSpace space{
        .name = options_.flexsp ? "flexsp" : "full",
        .task =
            {.ranks = cluster_.ranks(),
             .lengths = {},
             .types = {},
             .seconds = {},
             .micro_batch_seconds = weights_seconds_,
             .overlapped = options_.overlapped,
             .node = node_},
        .programs = programs_,
        .idle = idle_,
        .weight_domain = domain(),
        .model_name = model().name,
        .model_sha256 = model().sha256,
        .layers = model().layers,
        .cluster_name = cluster_.name,
        .cluster_sha256 = {},
        .tiles = model().tiles(),
        .messages = messages_,
        .items = {},
        .rows = rows_};
    std::vector<const Kind*> kind_of_item;
    for (const SampleUnit& unit : units) {
      const Kind& kind = kinds.at({unit.size, unit.count()});
      kind_of_item.push_back(&kind);
      space.task.lengths.push_back(kind.length);
      space.items.push_back(
          {.samples = unit.samples, .dims = sizes_[unit.size].dims, .programs = {}});
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      std::int64_t capacity = 0;
      for (const Kind* const kind : order) {
        if (!kind->ways[r]) {
          break;
        }
        capacity = kind->length;
      }
      if (capacity == 0) {
        continue;
      }
      space.task.types.push_back(
          {.name = counted(ranks_[r], "rank"), .ranks = ranks_[r], .capacity = capacity});
      for (std::size_t i = 0; i < units.size(); ++i) {
        const std::optional<Way>& found = kind_of_item[i]->ways[r];
        space.task.seconds.push_back(found ? found->seconds : kNoRoomSeconds);
        space.items[i].programs.push_back(found ? found->program : 0);
      }
    }
    if (!too_long(space.task).empty()) {
      return std::nullopt;
    }
    if (!end_seconds_) {
      const SamplesOfASize& size = sizes_.front();
      end_seconds_ = end_of_step(space, model(), real_, options_.simulation, size.rows, size.dims);
    }
    space.batch_seconds = *end_seconds_;
    check(space.task);
    return space;
  }

  const Cluster& real_;  // as it is described
  Cluster cluster_;      // all of it as the slowest device
  int node_ = 1;
  const ClusterSpaceOptions& options_;
  SamplePlans plans_;
  AdditiveCosts costs_;
  Messages messages_;
  std::vector<int> ranks_;  // of groups
  std::vector<std::int64_t> rows_;
  std::vector<SamplesOfASize> sizes_;
  LayerRuns idle_;
  double weights_seconds_ = 0;              // of every micro-batch
  std::optional<double> end_seconds_ = {};  // of a batch, beside its micro-batches
  std::map<SampleGroup, std::optional<Way>> ways_;
  std::vector<LayerRuns> programs_;
  std::map<DimSizes, PredictedBytes> least_;  // of one sample that found no room
  std::string no_way_;
};

}  // namespace

SampleSpaces sample_spaces(
    const Model& model,
    const Cluster& cluster,
    const ClusterSpaceOptions& options,
    const BatchSizes& samples) {
  expect_weight_domain(cluster, options.weight_domain);
  return SampleSpace(model, cluster, options).make(samples);
}

bool has_room(
    const Model& model,
    const Cluster& cluster,
    const ClusterSpaceOptions& options,
    const DimSizes& dims) {
  expect_weight_domain(cluster, options.weight_domain);
  return SampleSpace(model, cluster, options).has_room(dims);
}

}  // namespace paradyse
