#include "src/run/comm/boxes.h"

#include <map>
#include <stdexcept>

#include <fmt/format.h>

#include "paradyse/plan/detail/index.h"

namespace paradyse {
namespace {

using Landing = std::map<Region, std::vector<const Box*>>;

// The same elements in the order of the source's memory.
Region in_order_of_source(const Box& box, const Region& region) {
  Region result{.offset = region.offset};
  for (const std::size_t i : source_order(box)) {
    result.loops.push_back(region.loops[i]);
  }
  return result;
}

// Calls body(region, boxes that land there, whether to add) for every region of `to`. Boxes that
// land on the same elements are added in one pass; where regions overlap only in part (shared
// key/value heads), box after box.
template <typename Body>
void for_landings(
    const at::Tensor& to, const Transfer& table, int rank, bool accumulate, Body body) {
  Landing landing;
  for (const Box& box : table.boxes) {
    if (box.source == rank) {
      landing[source_region(box)].push_back(&box);
    }
  }
  const bool covered = table.covered[idx(rank)];
  if (!covered && !accumulate) {
    to.zero_();
  }
  for (const auto& [region, boxes] : landing) {
    body(region, boxes, accumulate || !covered);
  }
}

}  // namespace

void check_piece(
    const at::Tensor& tensor, std::int64_t elements, const Call& call, const char* which) {
  if (!tensor.is_contiguous() || tensor.numel() != elements) {
    throw std::logic_error(fmt::format(
        "{}: the {} ({} elements, {}contiguous) is not the contiguous piece of {} elements that "
        "the copy table says",
        to_string(call),
        which,
        tensor.numel(),
        tensor.is_contiguous() ? "" : "not ",
        elements));
  }
}

void check_contiguous(const at::Tensor& tensor, const Call& call) {
  if (!tensor.is_contiguous()) {
    throw std::logic_error(to_string(call) + ": the tensor is not contiguous");
  }
}

char* data_of(const at::Tensor& tensor) {
  return static_cast<char*>(const_cast<void*>(tensor.const_data_ptr()));
}

Region at_source(const Box& box) {
  Region region{.offset = box.source_offset};
  for (const Loop& loop : box.loops) {
    region.loops.push_back({loop.count, loop.source});
  }
  return region;
}

Region at_destination(const Box& box) {
  Region region{.offset = box.destination_offset};
  for (const Loop& loop : box.loops) {
    region.loops.push_back({loop.count, loop.destination});
  }
  return region;
}

Region all_of(const at::Tensor& contiguous) {
  Region region;
  region.loops.push_back({contiguous.numel(), 1});
  return region;
}

Region packed(const Box& box, std::int64_t offset) {
  Region region{.offset = offset};
  std::int64_t stride = box.elements();
  for (const Loop& loop : box.loops) {
    stride /= loop.count;
    region.loops.push_back({loop.count, stride});
  }
  return region;
}

void copy_region(
    const at::Tensor& to, const Region& to_region, const at::Tensor& from, const Region& region) {
  kernels_for(to.device()).copy_region(to, to_region, from, region);
}

void copy_all(const at::Tensor& to, const at::Tensor& from) {
  copy_region(to, all_of(to), from, all_of(from));
}

void add_all(const at::Tensor& to, const std::vector<at::Tensor>& others) {
  std::vector<kernels::Summand> sources;
  sources.reserve(others.size());
  for (const at::Tensor& other : others) {
    sources.push_back({other, all_of(other)});
  }
  kernels_for(to.device()).sum_regions(to, all_of(to), sources, true);
}

void sum_boxes(
    const at::Tensor& to,
    const Transfer& table,
    int rank,
    bool accumulate,
    const std::function<kernels::Summand(const Box& box)>& theirs) {
  const Kernels& kernels = kernels_for(to.device());
  for_landings(
      to,
      table,
      rank,
      accumulate,
      [&](const Region& region, const std::vector<const Box*>& boxes, bool add) {
        std::vector<kernels::Summand> sources;
        sources.reserve(boxes.size());
        for (const Box* box : boxes) {
          kernels::Summand source = theirs(*box);
          source.region = in_order_of_source(*box, source.region);
          sources.push_back(std::move(source));
        }
        kernels.sum_regions(to, region, sources, add);
      });
}

}  // namespace paradyse
