#include "src/plan/search/layouts/part_ways.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "paradyse/plan/cost.h"
#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/op_traits.h"
#include "src/plan/search/layers/part_choices.h"

namespace paradyse {
namespace {

// Of its share of a stream, what a rank has less than: else every other rank could be idle.
constexpr double kMostOfShare = 2;
constexpr double kBetweenEquals = 1e-9;

int domain_of(const LayoutTask& task) {
  return task.domain > 0 ? task.domain : task.documents.ranks();
}

bool is_even(const Layout& layout, int ranks) {
  std::int64_t most = 0;
  for (int r = 0; r < ranks; ++r) {
    most = std::max(most, layout.elements(r));
  }
  return static_cast<double>(most) * ranks < kMostOfShare * static_cast<double>(layout.elements());
}

}  // namespace

LayoutCost& LayoutCost::operator+=(const LayoutCost& other) {
  forward += other.forward;
  backward += other.backward;
  again += other.again;
  seconds += other.seconds;
  return *this;
}

double value(const LayoutTask& task, const LayoutCost& cost) {
  const double main = task.objective == LayoutTask::Objective::elements
                          ? cost.forward + cost.backward
                          : cost.seconds;
  const double other =
      task.objective == LayoutTask::Objective::elements ? cost.forward + cost.again : 0;
  return main + kBetweenEquals * other;
}

bool ends_at_home(const Model& model) { return !model.of_samples(); }

Placement home_of(const Stream& stream) { return {"S(" + stream.home + ")"}; }

PartWays::PartWays(const LayoutTask& task) : task_(task) {
  if (task.objective == LayoutTask::Objective::seconds && !task.seconds) {
    throw std::invalid_argument("layouts: there are no predicted seconds; give a cluster");
  }
  if (!task.documents.mesh.empty() && ends_at_home(*task.model)) {
    throw std::invalid_argument(
        "layouts: tensors of this model begin and end sharded over all ranks, but on a mesh one "
        "axis shards a dim: leave the mesh out");
  }
  for (const Stream& stream : task.model->streams) {
    if (!stream.home.empty()) {
      streams_.push_back({.name = stream.name, .places = places_of(stream)});
    }
  }
  for (const Stack& stack : task.model->stacks()) {
    parts_.insert(parts_.end(), stack.parts.begin(), stack.parts.end());
  }
}

std::vector<Placement> PartWays::places_of(const Stream& stream) const {
  const int ranks = task_.documents.ranks();
  const std::size_t axes = std::max<std::size_t>(1, task_.documents.mesh.size());
  // Another dim on each axis, or copies.
  std::vector<Placement> all = {{}};
  for (std::size_t axis = 0; axis < axes; ++axis) {
    std::vector<Placement> more;
    for (const Placement& before : all) {
      for (const std::string& dim : stream.rows) {
        const std::string cut = "S(" + dim + ")";
        if (std::ranges::find(before, cut) == before.end()) {
          more.push_back(before);
          more.back().push_back(cut);
        }
      }
      more.push_back(before);
      more.back().emplace_back("R");
    }
    all = std::move(more);
  }
  const bool copies = task_.objective == LayoutTask::Objective::seconds;
  std::vector<Placement> found;
  for (const Placement& place : all) {
    const bool cut = std::ranges::find(place, "R") == place.end();
    if (ranks == 1 || (cut ? is_even(placed(stream, task_.documents, place), ranks) : copies)) {
      found.push_back(place);
    }
  }
  if (found.empty()) {
    found.push_back(ends_at_home(*task_.model) ? home_of(stream) : Placement(axes, "R"));
  }
  return found;
}

LayoutCost PartWays::cost(const ScheduledPart& part, const ScheduledPart* all_again) {
  const int ranks = task_.documents.ranks();
  LayoutCost sum;
  if (task_.seconds) {
    sum.seconds = task_.seconds(part);
    if (std::isinf(sum.seconds)) {  // nobody takes it
      return sum;
    }
  }
  for (int rank = 0; rank < ranks; ++rank) {
    const Seat seat{.group_rank = rank, .domain_rank = rank};
    const GroupElements mine = sent_in_group(part, seat);
    sum.forward += static_cast<double>(mine.forward);
    sum.backward += static_cast<double>(mine.backward);
    if (all_again != nullptr) {
      sum.again += static_cast<double>(sent_in_group(*all_again, seat).backward);
    }
  }
  sum.forward /= ranks;
  sum.backward /= ranks;
  sum.again /= ranks;
  return sum;
}

std::optional<PartWay> PartWays::way(const Part& part, PartChoice choice, std::string* why) {
  choice.part = part.name;
  choice.recompute = task_.recompute.parts;
  choice.with_layer = task_.recompute.layer;
  if (task_.tiles > 1 && takes(part.kind, choice.strategy, kTilesOption)) {
    choice.options[kTilesOption] = task_.tiles;
  }
  try {
    Task task{
        .part = *std::ranges::find(parts_, &part, &std::shared_ptr<const Part>::get),
        .choice = {},
        .streams = streams_of(*task_.model, part, choice, task_.documents),
        .documents = task_.documents,
        .domain = domain_of(task_)};
    if (const std::vector<Misfit> wrong = misfits(task, choice); !wrong.empty()) {
      throw std::invalid_argument(wrong.front().why);
    }
    if (strategy(part.kind, choice.strategy).verb == Verb::hold &&
        task.documents.ranks() != task.domain) {
      throw std::invalid_argument(
          "is tensor parallel, but other groups of the micro-batch may have other sizes");
    }
    const ScheduledPart built = scheduled_part(task, choice);
    PartWay found{.choice = choice, .cost = {}, .collectives = {}};
    if (task_.objective == LayoutTask::Objective::elements) {
      PartChoice again = choice;
      again.recompute = Recompute::full;
      const ScheduledPart all_again = scheduled_part(task, again);
      found.cost = cost(built, &all_again);
    } else {
      found.cost = cost(built);
    }
    for (const Op& op : built.program().ops) {
      const OpTraits& kind = traits(op.kind);
      if (kind.meets != OpTraits::Meets::group) {
        continue;
      }
      found.collectives.push_back(
          kind.rings > 0 ? "ring"
                         : collective(
                               built.program().values[idx(op.in[0])].layout,
                               built.program().values[idx(op.out[0])].layout));
    }
    return found;
  } catch (const std::invalid_argument& error) {
    if (why != nullptr) {
      *why = error.what();
    }
    return std::nullopt;
  }
}

// The choice by its strategy's defaults and by all that is worth a try, but for tiles, which are
// the task's.
std::vector<PartChoice> PartWays::with_options(
    const Part& part, const Strategy& strategy, const PartChoice& choice) const {
  const Task task{
      .part = *std::ranges::find(parts_, &part, &std::shared_ptr<const Part>::get),
      .choice = choice,
      .documents = task_.documents,
      .domain = domain_of(task_)};
  std::vector<PartChoice> all;
  for (OptionValues& options :
       option_sets(strategy, choice.options, task, [](const Option& option) {
         return option.name != kTilesOption;
       })) {
    all.push_back(choice);
    all.back().options = std::move(options);
  }
  return all;
}

std::vector<PartWay> PartWays::all(const Part& part) {
  std::vector<PartChoice> choices = {{}};
  for (const PlacedStream& stream : streams_) {
    if (std::ranges::find(part.reads, stream.name) == part.reads.end()) {
      continue;
    }
    std::vector<PartChoice> more;
    for (const PartChoice& choice : choices) {
      for (const Placement& place : stream.places) {
        more.push_back(choice);
        more.back().in[stream.name] = place;
      }
    }
    choices = std::move(more);
  }
  std::vector<PartWay> found;
  for (const PartChoice& at : choices) {
    for (const Strategy& strategy : strategies(part.kind)) {
      PartChoice plain = at;
      plain.strategy = strategy.name;
      for (PartChoice& choice : with_options(part, strategy, plain)) {
        if (std::optional<PartWay> one = way(part, std::move(choice))) {
          found.push_back(*std::move(one));
        }
      }
    }
  }
  return found;
}

LayoutCost PartWays::move(
    const std::string& stream, const Placement& from, const Placement& to, bool in_layer) {
  const Stream& of = task_.model->stream(stream);
  const Layout lies = placed(of, task_.documents, from);
  const Layout shall = placed(of, task_.documents, to);
  const int ranks = task_.documents.ranks();
  if (from == to || lie_alike(lies, shall, ranks)) {  // timeline() writes no move
    return {};
  }
  const ScheduledPart part = scheduled_move(
      stream,
      lies,
      shall,
      task_.documents,
      domain_of(task_),
      {.with_layer = in_layer && task_.recompute.layer});
  return cost(part, &part);
}

std::string PartWays::collective_of(
    const std::string& stream, const Placement& from, const Placement& to) const {
  const Stream& of = task_.model->stream(stream);
  return from == to
             ? "keep"
             : collective(placed(of, task_.documents, from), placed(of, task_.documents, to));
}

}  // namespace paradyse
