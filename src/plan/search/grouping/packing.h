// Groups while they are filled: what planners of groupings share.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/plan/search/grouping/grouping.h"
#include "src/plan/search/grouping/planners.h"

namespace paradyse {

struct OpenGroup {
  int type = 0;
  std::int64_t tokens = 0;
  double seconds = 0;  // of its documents and what the type takes besides
  std::vector<int> documents;

  OpenGroup() = default;
  OpenGroup(const GroupingTask& task, int group_type);
  void add(const GroupingTask& task, int document);
  void remove(const GroupingTask& task, int document);
  [[nodiscard]] bool takes(const GroupingTask& task, int document) const {
    return task.fits(type, tokens + task.lengths[idx(document)]);
  }
};
using OpenMicroBatch = std::vector<OpenGroup>;

// Gives documents to groups, each to the one that is done first and has room.
class Dealer {
 public:
  Dealer(const GroupingTask& task, OpenMicroBatch groups);

  [[nodiscard]] bool has_room(int document) const { return least_busy(document) != busy_.end(); }
  // False, and nothing done: no group has room.
  bool deal(int document);
  [[nodiscard]] double slowest() const { return slowest_; }  // seconds
  [[nodiscard]] const OpenMicroBatch& groups() const { return groups_; }

 private:
  using Busy = std::set<std::pair<double, std::size_t>>;  // seconds, group

  [[nodiscard]] Busy::const_iterator least_busy(int document) const;

  const GroupingTask& task_;
  OpenMicroBatch groups_;
  Busy busy_;
  double slowest_ = 0;
};
// All documents in their order, or none: one found no room.
std::optional<OpenMicroBatch> dealt(
    const GroupingTask& task, OpenMicroBatch groups, const std::vector<int>& documents);

// The same as a grouping: groups and micro-batches without documents left out, seconds added up
// plainly.
Grouping closed(const GroupingTask& task, const std::vector<OpenMicroBatch>& micro_batches);

// All documents, longest first, equal ones in the order of the batch.
std::vector<int> longest_first(const GroupingTask& task);
std::int64_t longest(const GroupingTask& task);  // 0 for no documents
std::int64_t tokens_of(const GroupingTask& task, const std::vector<int>& documents);

// Tokens that find room in a micro-batch, at best.
double micro_batch_room(const GroupingTask& task);

// The type with the fewest ranks that has room for the tokens; of several, the one in which the
// document is fastest.  -1: none has.
int least_type(const GroupingTask& task, std::int64_t tokens, int document);
// How many groups of a type a micro-batch has.
int side_by_side(const GroupingTask& task, int type);

// What to answer where a document fits into no group: which, and what it lacks.  "": all fit.
std::string why_none_fits(const GroupingTask& task);

// The best of what `plan` makes of each type that has room for the longest document; what fits
// nowhere is said.  `plan` must have an answer for such a type.
GroupingAnswer best_of_types(
    const GroupingTask& task, const std::function<std::optional<Grouping>(int type)>& plan);

}  // namespace paradyse
