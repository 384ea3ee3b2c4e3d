#include "src/plan/search/batch/folded_groups.h"

namespace paradyse {
namespace {

constexpr std::size_t kKept = 8192;
constexpr std::size_t kChoicesKept = 65536;  // of all, about a kilobyte each

std::size_t choices_in(const LayerRuns& layers) {
  std::size_t choices = 0;
  for (const LayerRun& run : layers) {
    choices += run.choice.size();
  }
  return choices;
}

}  // namespace

std::size_t FoldedGroups::Hash::operator()(const Key& key) const {
  std::size_t hash = 1469598103934665603ULL;
  const auto mix = [&](std::uint64_t number) { hash = (hash ^ number) * 1099511628211ULL; };
  for (const std::int64_t length : key.group.lengths) {
    mix(static_cast<std::uint64_t>(length));
  }
  mix(static_cast<std::uint64_t>(key.group.ranks));
  mix(static_cast<std::uint64_t>(key.group.weight_domain));
  mix(static_cast<std::uint64_t>(key.across_nodes));
  for (const LayerRun& run : key.group.layers) {
    for (const PartChoice& part : run.choice) {
      mix(std::hash<std::string>()(part.strategy));
      mix(static_cast<std::uint64_t>(part.recompute));
    }
  }
  return hash ^ (hash >> 32);
}

const FoldedGroup& FoldedGroups::of(
    const GroupTask& group, const std::vector<Seat>& seats, const Slowness& slowness) {
  Key key{
      .group = group,
      .domain_ranks = {},
      .across_nodes = seats.front().across_nodes,
      .slowness = slowness};
  Messages& messages = key.group.messages;
  if (group.weight_domain == 1) {
    messages = {.overlap = messages.overlap && group.ranks > 1};
  } else {
    for (const Seat& seat : seats) {
      key.domain_ranks.push_back(seat.domain_rank);
    }
  }
  const auto found = known_.find(key);
  if (found != known_.end()) {
    return found->second;
  }
  if (known_.size() >= kKept || choices_ >= kChoicesKept) {
    known_.clear();
    choices_ = 0;
  }
  choices_ += choices_in(key.group.layers);
  FoldedGroup folded = fold_(key.group, seats, slowness);
  return known_.emplace(std::move(key), std::move(folded)).first->second;
}

}  // namespace paradyse
