#include "src/run/data/synthetic_items.h"

#include <algorithm>
#include <limits>
#include <random>
#include <utility>

#include "paradyse/plan/detail/index.h"
#include "src/run/data/sample_memory.h"
#include "src/run/device/host_memory.h"

namespace paradyse {

std::vector<Sample> synthetic_samples(
    const Model& model, const std::map<std::string, std::int64_t>& dims, std::int64_t count) {
  expect_room(model, dims, count, available_memory());
  std::mt19937_64 random(7);
  const Part& last = *model.parts.back().part;
  std::vector<Sample> samples(idx(count));
  for (Sample& sample : samples) {
    for (const Stream& input : model.inputs()) {
      std::vector<std::int64_t> sizes = row_sizes(input.rows, dims);
      sizes.push_back(input.columns);
      const at::Tensor numbers = at::empty(sizes, at::kDouble);
      auto* data = numbers.mutable_data_ptr<double>();
      const bool mask = model.is_mask(input.name);
      for (std::int64_t i = 0; i < numbers.numel(); ++i) {
        data[i] = mask ? static_cast<double>(random() % 3 != 0)
                       : static_cast<double>(random() >> 11U) * 0x1p-52 - 1;
      }
      if (input.name == last.input && last.shape.scored > 0) {  // the others have no target
        const std::int64_t others = last.shape.predicted - last.shape.scored;
        numbers.unflatten(-1, {-1, last.shape.predicted})
            .narrow(-1, last.shape.scored, others)
            .fill_(std::numeric_limits<double>::quiet_NaN());
      }
      sample.inputs[input.name] = numbers;
    }
    if (!last.input.empty()) {
      continue;
    }
    std::int64_t rows = 1;
    for (const std::int64_t size : row_sizes(model.stream(last.reads.front()).rows, dims)) {
      rows *= size;
    }
    const auto classes = static_cast<std::uint64_t>(last.weights(1).matrices.front().rows);
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto label = static_cast<std::int32_t>(random() % classes);
      sample.labels.push_back(random() % 3 == 0 ? label : -1);
    }
  }
  return samples;
}

std::vector<OwnedItem> synthetic_items(const Model& model, const BatchSizes& sizes) {
  std::vector<OwnedItem> items;
  if (model.of_samples()) {
    for (auto dims = sizes.dims.begin(); dims != sizes.dims.end();) {
      const auto next = std::find_if(
          dims, sizes.dims.end(), [&](const DimSizes& other) { return other != *dims; });
      for (Sample& sample : synthetic_samples(model, *dims, next - dims)) {
        items.emplace_back(std::move(sample));
      }
      dims = next;
    }
    return items;
  }
  const auto vocab = static_cast<std::uint64_t>(model.vocab());
  for (std::size_t d = 0; d < sizes.lengths.size(); ++d) {
    Document document;
    for (std::int64_t i = 0; i < sizes.lengths[d]; ++i) {  // a small generator of Knuth's
      const auto mixed = static_cast<std::uint64_t>(i + 1) * 6364136223846793005ULL +
                         static_cast<std::uint64_t>(d) * 1442695040888963407ULL;
      document.tokens.push_back(static_cast<std::int32_t>((mixed >> 33) % vocab));
    }
    if (model.masked_lm) {
      document.labels = document.tokens;
    }
    items.emplace_back(std::move(document));
  }
  return items;
}

}  // namespace paradyse
