// The samples of a batch by their sizes, and units of them that run at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "paradyse/plan/plan.h"

namespace paradyse {

// Samples of a batch that have the same sizes.
struct SamplesOfASize {
  DimSizes dims;
  std::int64_t rows = 0;                   // of a sample
  std::vector<std::int64_t> samples = {};  // by number in the batch
};

// As they come; of a batch that says nothing of dims all have `dims`.
std::vector<SamplesOfASize> samples_by_size(const BatchSizes& batch, const DimSizes& dims = {});

// Samples that run at once, all of one size.
struct SampleUnit {
  std::size_t size = 0;               // index of its SamplesOfASize
  std::vector<std::int64_t> samples;  // by number in the batch

  [[nodiscard]] std::int64_t count() const { return std::ssize(samples); }
};

// Of each size as few units as there can be with at most `at_once[size]` samples each, which have
// so many as one another, or one fewer.
std::vector<SampleUnit> sample_units(
    const std::vector<SamplesOfASize>& sizes, const std::vector<std::int64_t>& at_once);

// Seconds, in a task of groupings, of units that a group has no room for.
inline constexpr double kNoRoomSeconds = 1e12;

}  // namespace paradyse
