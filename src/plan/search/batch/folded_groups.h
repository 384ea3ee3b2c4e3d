// What groups of plans take, folded once: a planner comes back to the same groups many times, with
// other factors, on other ranks and in other plans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "src/plan/plan/group_timeline.h"
#include "src/plan/search/layers/part_cost.h"

namespace paradyse {

struct FoldedGroup {
  int domain = 1;                       // ranks that weights are gathered from
  std::vector<Footprint> held = {};     // [seat] beside what is there all the time
  std::vector<CostedPart> costed = {};  // of its program
  // [costed] Seconds by the time model alone, with copies to the host and back; none where they do
  // not go by the work.
  std::vector<double> parts = {};
};

class FoldedGroups {
 public:
  using Fold = std::function<FoldedGroup(
      const GroupTask& group, const std::vector<Seat>& seats, const Slowness& slowness)>;
  explicit FoldedGroups(Fold fold) : fold_(std::move(fold)) {}

  // Valid until the next call.
  const FoldedGroup& of(
      const GroupTask& group, const std::vector<Seat>& seats, const Slowness& slowness = {});

 private:
  // What its fold depends on: where a group gathers from nobody, not on its places in a sharding
  // group, or how weights travel; of one rank on no messages at all.
  struct Key {
    GroupTask group;
    std::vector<int> domain_ranks;
    bool across_nodes = false;
    Slowness slowness;

    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const;
  };

  Fold fold_;
  std::unordered_map<Key, FoldedGroup, Hash> known_;
  std::size_t choices_ = 0;  // of parts, in the keys of all
};

}  // namespace paradyse
