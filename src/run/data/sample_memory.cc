#include "src/run/data/sample_memory.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

#include "paradyse/run/detail/item.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/layout/dims_text.h"

namespace paradyse {

void refuse_sample(
    const std::string& what, double needed, std::int64_t available, const std::string& remedy) {
  constexpr double kMost = 9e18;
  throw std::runtime_error(fmt::format(
      "{} takes {} of memory, and {} are available on this machine; {}",
      what,
      bytes_text(static_cast<std::int64_t>(std::min(needed, kMost))),
      bytes_text(available),
      remedy));
}

void expect_room(
    const Model& model,
    const std::map<std::string, std::int64_t>& dims,
    std::int64_t count,
    std::int64_t available) {
  constexpr double kHeldWhole = 8;  // bytes of a number
  double needed = 0;
  for (const Stream& input : model.inputs()) {
    double elements = static_cast<double>(input.columns) * static_cast<double>(count);
    for (const std::int64_t size : row_sizes(input.rows, dims)) {
      elements *= static_cast<double>(size);
    }
    needed += kHeldWhole * elements;
  }
  if (needed <= static_cast<double>(available)) {
    return;
  }
  const std::string sizes = text_of(dims);
  refuse_sample(
      fmt::format("{} sample{} of {}", count, count == 1 ? "" : "s", sizes),
      needed,
      available,
      "give smaller sizes, or use a machine with more");
}

}  // namespace paradyse
