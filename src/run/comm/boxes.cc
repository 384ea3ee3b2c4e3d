#include "src/run/comm/boxes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <stdexcept>

#include <fmt/format.h>

#include "paradyse/plan/index.h"
#include "src/run/comm/sum_rows.h"
#include "src/run/device/through_aten.h"
#include "src/run/kernels/aten/aten_kernels.h"

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

// Goes over the elements of a region in stretches of neighbours.
class Cursor {
 public:
  explicit Cursor(const Region& region) : region_(region), at_(region.offset) {
    if (!region_.loops.empty() && region_.loops.back().stride == 1) {
      stretch_ = region_.loops.back().count;
      outer_ = region_.loops.size() - 1;
    } else {
      outer_ = region_.loops.size();
    }
    left_ = stretch_;
  }

  [[nodiscard]] std::int64_t offset() const { return at_ + stretch_ - left_; }
  [[nodiscard]] std::int64_t left() const { return left_; }  // of the stretch
  void advance(std::int64_t count) {
    left_ -= count;
    if (left_ > 0) {
      return;
    }
    left_ = stretch_;
    for (std::size_t d = outer_; d-- > 0;) {
      const Region::Loop& loop = region_.loops[d];
      at_ += loop.stride;
      if (++index_[d] < loop.count) {
        return;
      }
      at_ -= loop.count * loop.stride;
      index_[d] = 0;
    }
  }

 private:
  Region region_;
  std::int64_t at_;  // of the stretch
  std::int64_t stretch_ = 1;
  std::int64_t left_ = 1;
  std::size_t outer_ = 0;  // loops around the stretch
  std::array<std::int64_t, kMaxDims> index_ = {};
};

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
    char* to,
    const Region& to_region,
    const char* from,
    const Region& from_region,
    std::int64_t item) {
  Cursor source(from_region);
  Cursor destination(to_region);
  for (std::int64_t left = from_region.elements(); left > 0;) {
    const std::int64_t count = std::min(source.left(), destination.left());
    std::memcpy(to + destination.offset() * item, from + source.offset() * item, idx(count * item));
    source.advance(count);
    destination.advance(count);
    left -= count;
  }
}

at::Tensor region_of(const at::Tensor& contiguous, const Region& region) {
  std::vector<std::int64_t> sizes = {1};
  std::vector<std::int64_t> strides = {1};
  for (const Region::Loop& loop : region.loops) {
    sizes.push_back(loop.count);
    strides.push_back(loop.stride);
  }
  return contiguous.as_strided(sizes, strides, contiguous.storage_offset() + region.offset);
}

void copy_region(
    const at::Tensor& to,
    const Region& to_region,
    const at::Tensor& from,
    const Region& from_region) {
  if (through_aten(to)) {
    region_of(to, to_region).copy_(region_of(from, from_region));
  } else {
    copy_region(
        data_of(to),
        to_region,
        data_of(from),
        from_region,
        static_cast<std::int64_t>(to.element_size()));
  }
}

void copy_all(const at::Tensor& to, const at::Tensor& from) {
  if (through_aten(to)) {
    at::Tensor(to).copy_(from.view(to.sizes()));
  } else {
    std::memcpy(data_of(to), from.const_data_ptr(), to.nbytes());
  }
}

void add_all(const at::Tensor& to, const std::vector<at::Tensor>& others) {
  if (through_aten(to)) {
    aten::sum_into(to, others, true);
    return;
  }
  std::vector<const void*> sources;
  sources.reserve(others.size());
  for (const at::Tensor& other : others) {
    sources.push_back(other.const_data_ptr());
  }
  const at::ScalarType type = to.scalar_type();
  sum_into(data_of(to), type, sources, type, to.numel(), true);
}

void sum_boxes(
    const at::Tensor& to,
    const Transfer& table,
    int rank,
    bool accumulate,
    const std::function<TensorSummand(const Box& box)>& theirs) {
  for_landings(
      to,
      table,
      rank,
      accumulate,
      [&](const Region& region, const std::vector<const Box*>& boxes, bool add) {
        const at::Tensor mine = region_of(to, region);
        std::vector<at::Tensor> sources;
        for (const Box* box : boxes) {
          const auto [tensor, at] = theirs(*box);
          sources.push_back(region_of(tensor, in_order_of_source(*box, at)).reshape(mine.sizes()));
        }
        aten::sum_into(mine, sources, add);
      });
}

void sum_boxes(
    const at::Tensor& to,
    const Transfer& table,
    int rank,
    bool accumulate,
    at::ScalarType type,
    const std::function<Summand(const Box& box)>& theirs) {
  char* const data = data_of(to);
  const auto to_item = static_cast<std::int64_t>(to.element_size());
  const auto item = static_cast<std::int64_t>(c10::elementSize(type));
  for_landings(
      to,
      table,
      rank,
      accumulate,
      [&](const Region& region, const std::vector<const Box*>& boxes, bool add) {
        Cursor mine(region);
        std::vector<const char*> begins;
        std::vector<Cursor> cursors;
        for (const Box* box : boxes) {
          const Summand summand = theirs(*box);
          begins.push_back(summand.data);
          cursors.emplace_back(in_order_of_source(*box, summand.region));
        }
        std::vector<const void*> sources(boxes.size());
        for (std::int64_t left = region.elements(); left > 0;) {
          std::int64_t count = mine.left();
          for (std::size_t b = 0; b < cursors.size(); ++b) {
            count = std::min(count, cursors[b].left());
            sources[b] = begins[b] + cursors[b].offset() * item;
          }
          sum_into(data + mine.offset() * to_item, to.scalar_type(), sources, type, count, add);
          mine.advance(count);
          for (Cursor& cursor : cursors) {
            cursor.advance(count);
          }
          left -= count;
        }
      });
}

}  // namespace paradyse
