// A global batch of documents over groups of ranks, as numbers alone: no model, no programs.
//
// FlexSP (arXiv 2412.01523) states the problem, docs/internals/grouping.md how it is solved here.
// Documents go into groups, groups lie side by side in micro-batches, micro-batches follow one
// another; a *type* of group says how many ranks it has and how they run, which fixes what a
// document takes there and how many tokens find room.  Minimise
//
//     sum over micro-batches m of  [ b + max over groups g of m of (f_g + sum over k in g of t_gk)
//     ]
//
// such that the ranks of m's groups are at most N, tokens of a group at most its type's capacity,
// and each document is in exactly one group.  With overlap, b is hidden: max(b, slowest group).
// Next: planners.h finds groupings, bounds.h says how good one can be, space.h ties types to
// programs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paradyse/plan/detail/index.h"

namespace paradyse {

struct GroupType {
  std::string name;  // "8 x UlyssesZ", for people
  int ranks = 1;
  std::int64_t capacity = 0;  // tokens of all its documents together, at most
  double fixed_seconds = 0;   // f: of a group that has documents, beside them
  int pool = -1;              // the pool that it lies in; -1: anywhere
  // What a second of one of its ranks counts in areas: more where devices do more in it.  Over all
  // ranks of the task the mean is 1, so an area over all of them bounds seconds.
  double price = 1;

  [[nodiscard]] double worth() const { return ranks * price; }
};

struct GroupingTask {
  int ranks = 1;                      // N
  std::vector<std::int64_t> lengths;  // [document] tokens, each above 0
  // Those that lie anywhere, then pool by pool; in each ranks ascend.  Equal ranks: ways to run.
  std::vector<GroupType> types;
  std::vector<double> seconds;     // t: [type][document], above 0
  double micro_batch_seconds = 0;  // b: of every micro-batch, beside its slowest group
  bool overlapped = false;         // b is hidden behind the slowest group
  // Ranks of a node: groups of fewer lie inside one, others have whole ones.  0: groups lie
  // anywhere.
  int node = 0;
  // Of devices, or learned speeds, that are unlike: ranks of each run of like ones, whole nodes or
  // inside one; together all ranks.  The groups of a micro-batch lie all in pools, or all anywhere.
  std::vector<int> pools = {};

  [[nodiscard]] int documents() const { return static_cast<int>(lengths.size()); }
  [[nodiscard]] double at(int type, int document) const {
    return seconds[idx(type) * lengths.size() + idx(document)];
  }
  [[nodiscard]] bool fits(int type, std::int64_t tokens) const {
    return tokens <= types[idx(type)].capacity;
  }
  // Of a micro-batch whose slowest group takes `slowest`.
  [[nodiscard]] double micro_batch(double slowest) const {
    return overlapped ? (slowest > micro_batch_seconds ? slowest : micro_batch_seconds)
                      : slowest + micro_batch_seconds;
  }
};

struct Grouping {
  struct Group {
    int type = 0;                // index into GroupingTask::types
    std::vector<int> documents;  // indices into GroupingTask::lengths, ascending; at least one

    friend bool operator==(const Group&, const Group&) = default;
  };
  using MicroBatch = std::vector<Group>;

  std::vector<MicroBatch> micro_batches;
  double seconds = 0;  // of all of them

  friend bool operator==(const Grouping&, const Grouping&) = default;
};

// What the formula above gives, added up plainly: judges what planners keep in sums.
double group_seconds(const GroupingTask& task, const Grouping::Group& group);
std::int64_t group_tokens(const GroupingTask& task, const Grouping::Group& group);
double slowest_group(const GroupingTask& task, const Grouping::MicroBatch& micro_batch);
double seconds_of(const GroupingTask& task, const Grouping& grouping);

// The first ranks of groups of these sizes side by side: the largest first, then each inside a node
// in that with least room for it.  Sizes that divide one another come to lie at multiples of
// themselves.  Nothing: they do not all find room so.
std::optional<std::vector<int>> first_ranks(int ranks, int node, std::span<const int> sizes);
// The same of a micro-batch's groups, each pool by itself; types are known.  Nothing, too, where
// some lie in pools and some anywhere.
std::optional<std::vector<int>> first_ranks(
    const GroupingTask& task, const Grouping::MicroBatch& micro_batch);

// Everything that is wrong with a grouping, each a sentence; none: it is sound, and its `seconds`
// are seconds_of() within a part in 10^9.
std::vector<std::string> problems(const GroupingTask& task, const Grouping& grouping);

// Throws std::invalid_argument for a task that is none: no ranks, no types, types whose ranks do
// not ascend or are above N or their pool's, pools that are not all ranks, prices whose mean over
// the ranks is above 1, a length below 1, seconds that are not positive numbers, of which there are
// more or fewer than types x documents.
void check(const GroupingTask& task);

// As planners see it that know alike devices alone: types that lie anywhere, with the numbers that
// they have.
GroupingTask without_pools(const GroupingTask& task);

// The documents that fit into no group, however large.
std::vector<int> too_long(const GroupingTask& task);

}  // namespace paradyse
