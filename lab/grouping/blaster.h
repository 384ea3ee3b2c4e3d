// How FlexSP (arXiv 2412.01523, section 4.2) and planners like it cut a batch and its lengths.
#pragma once

#include <cstdint>
#include <vector>

#include "src/plan/search/grouping/grouping.h"

namespace paradyse {

// The *blaster*: the batch, longest first, in so many contiguous micro-batches that the largest sum
// of tokens is least.  Pre: 1 <= micro_batches <= documents.
std::vector<std::vector<int>> blasted(const GroupingTask& task, int micro_batches);

// Documents of similar length, planned as if all were as long as the longest of them.
struct Bucket {
  std::int64_t length = 0;
  std::vector<int> documents;
};
// The documents in at most so many buckets that rounding up adds the fewest tokens, shortest first.
std::vector<Bucket> bucketed(
    const GroupingTask& task, const std::vector<int>& documents, int buckets);

}  // namespace paradyse
