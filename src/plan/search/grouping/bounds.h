// How fast a grouping can be at best.
#pragma once

#include <string>

#include "src/plan/search/grouping/grouping.h"

namespace paradyse {

struct LowerBound {
  double seconds = 0;
  std::string name;  // of the argument that gave it: "area", ...
};

// min over M >= tokens / capacity of  M b + max( (1/N) sum_k min_d d t_k(d), max_k min_d t_k(d) ).
LowerBound area_bound(const GroupingTask& task);
// Let the longest micro-batch take C, b aside.  Every document then runs under a type in which it
// takes at most C, so that all need A(C) = sum_k min d t_k(d) over those types; the longest does at
// most min(N C, G) of that work, where G is what documents of as many tokens as find room can need
// (a fractional knapsack, bounded by duality at the mean price of a token); the others do the rest
// in at least (A(C) - min(N C, G)) / N.  The bound is M b + the least of C + that over all C: A
// changes where a document gets a type, and between two such C the sum does not fall.
LowerBound longest_micro_batch_bound(const GroupingTask& task);
// Every type uses up a share of a micro-batch's memory, d n / capacity rank-memories for a document
// of n tokens, and M micro-batches have M N of them.  At any price of a rank-memory (Lagrangian
// duality) documents need at least  sum_k min_t (d t_k + price d n_k / capacity) - price M N  rank
// seconds; the bound is the least over M of M b + the largest of that over prices, over N.  Where
// no type buys room with time it is the area bound.
LowerBound memory_bound(const GroupingTask& task);
// The largest of all bounds that are known here.
LowerBound lower_bound(const GroupingTask& task);

}  // namespace paradyse
