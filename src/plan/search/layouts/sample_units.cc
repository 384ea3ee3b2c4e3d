#include "src/plan/search/layouts/sample_units.h"

#include <algorithm>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/layout.h"

namespace paradyse {

std::vector<SamplesOfASize> samples_by_size(const BatchSizes& batch, const DimSizes& dims) {
  std::vector<SamplesOfASize> sizes;
  for (std::size_t i = 0; i < batch.lengths.size(); ++i) {
    const DimSizes& own = batch.dims.empty() ? dims : batch.dims[i];
    auto found = std::ranges::find(sizes, own, &SamplesOfASize::dims);
    if (found == sizes.end()) {
      found = sizes.insert(found, {.dims = own, .rows = batch.lengths[i]});
    }
    found->samples.push_back(static_cast<std::int64_t>(i));
  }
  return sizes;
}

std::vector<SampleUnit> sample_units(
    const std::vector<SamplesOfASize>& sizes, const std::vector<std::int64_t>& at_once) {
  std::vector<SampleUnit> units;
  for (std::size_t s = 0; s < sizes.size(); ++s) {
    const std::vector<std::int64_t>& samples = sizes[s].samples;
    const auto count = std::ssize(samples);
    const auto pieces = static_cast<int>((count + at_once[s] - 1) / at_once[s]);
    for (const Piece& piece : even_cuts(count, pieces)) {
      SampleUnit& unit = units.emplace_back(SampleUnit{.size = s, .samples = {}});
      for (const Interval run : piece) {
        for (std::int64_t i = run.begin; i < run.end; ++i) {
          unit.samples.push_back(samples[idx(i)]);
        }
      }
    }
  }
  return units;
}

}  // namespace paradyse
