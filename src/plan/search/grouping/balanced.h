// Groups of one size, balanced on time over the whole batch as machines in scheduling are: the
// groups of all M micro-batches together are the machines; done, they are sorted by time, and the
// slowest of them are one micro-batch, the next slowest the next.  M goes from the least with room
// for all tokens to the first that works out, and options.more_micro_batches further; the best M
// and the best size win.
//
// balanced.cc has one balance, longest first (Graham 1969, LPT): each document, the longest first,
// goes to the least busy group with room.
#pragma once

#include <functional>
#include <optional>

#include "src/plan/search/grouping/packing.h"

namespace paradyse {

// All documents in so many groups of the type; none: that does not work out.
using Balance =
    std::function<std::optional<OpenMicroBatch>(const GroupingTask& task, int type, int groups)>;

// With a group for each document `balance` must work out.
GroupingAnswer balanced(
    const GroupingTask& task, const GroupingOptions& options, const Balance& balance);

}  // namespace paradyse
