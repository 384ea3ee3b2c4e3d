#include "paradyse/plan/detail/layout.h"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <utility>

#include "paradyse/plan/detail/index.h"

namespace paradyse {

Piece Dim::piece(int rank) const {
  if (!cuts.empty()) {
    return cuts.at(idx(rank));
  }
  Piece all;
  append(all, {0, size});
  return all;
}

std::size_t Layout::place(const std::string& dim) const {
  std::string names;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    if (dims[d].name == dim) {
      return d;
    }
    names.append(d == 0 ? "" : ", ").append(dims[d].name);
  }
  throw std::invalid_argument("layout: no dim '" + dim + "'; there are " + names);
}

std::int64_t Layout::elements() const { return extent().elements(); }
std::int64_t Layout::elements(int rank) const { return extent(rank).elements(); }

Extent Layout::extent() const {
  Extent extent{.rows = 1, .cols = dims.back().size};
  for (std::size_t d = 0; d + 1 < dims.size(); ++d) {
    extent.rows *= dims[d].size;
  }
  return extent;
}

Extent Layout::extent(int rank) const {
  const auto held = [&](const Dim& dim) {
    return dim.cuts.empty() ? dim.size : size(dim.cuts.at(idx(rank)));
  };
  Extent extent{.rows = 1, .cols = held(dims.back())};
  for (std::size_t d = 0; d + 1 < dims.size(); ++d) {
    extent.rows *= held(dims[d]);
  }
  return extent;
}

std::vector<std::int64_t> Layout::strides(int rank) const {
  std::vector<std::int64_t> strides(dims.size(), 1);
  for (std::size_t d = dims.size() - 1; d > 0; --d) {
    strides[d - 1] = strides[d] * size(dims[d].piece(rank));
  }
  return strides;
}

bool Layout::cuts_rows() const {
  return std::any_of(
      dims.begin(), dims.end() - 1, [](const Dim& dim) { return !dim.cuts.empty(); });
}

Layout Layout::whole() const {
  Layout result = *this;
  result.partial = false;
  for (Dim& dim : result.dims) {
    dim.cuts = {};
  }
  return result;
}

Layout Layout::sum() const {
  Layout result = *this;
  result.partial = true;
  return result;
}

Layout Layout::cut(const std::string& dim, Cuts cuts) const {
  Layout result = *this;
  result.dims[place(dim)].cuts = std::move(cuts);
  return result;
}

Layout Layout::along(const std::string& dim) const {
  Layout result = *this;
  const auto first = result.dims.begin() + static_cast<std::ptrdiff_t>(place(dim));
  std::rotate(first, first + 1, result.dims.end() - 1);
  return result;
}

Layout Layout::with_columns(std::int64_t width, Cuts cuts) const {
  Layout result = *this;
  result.partial = false;
  result.dims.back().size = width;
  result.dims.back().cuts = std::move(cuts);
  return result;
}

Layout matrix(const std::string& rows, Extent whole, Cuts row_cuts, Cuts column_cuts) {
  return {
      .dims = {
          {.name = rows, .size = whole.rows, .cuts = std::move(row_cuts)},
          {.name = "columns", .size = whole.cols, .cuts = std::move(column_cuts)}}};
}

namespace {

bool meet(const Piece& a, const Piece& b) {
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (std::max(a[i].begin, b[j].begin) < std::min(a[i].end, b[j].end)) {
      return true;
    }
    (a[i].end < b[j].end ? i : j) += 1;
  }
  return false;
}

}  // namespace

bool is_partition(const Layout& layout, int ranks) {
  std::int64_t held = 0;
  for (int r = 0; r < ranks; ++r) {
    held += layout.elements(r);
  }
  if (held != layout.elements()) {
    return false;
  }
  std::vector<std::vector<Piece>> pieces;  // [rank][dim], each ascending
  for (int r = 0; r < ranks; ++r) {
    std::vector<Piece>& mine = pieces.emplace_back();
    for (const Dim& dim : layout.dims) {
      mine.push_back(dim.piece(r));
      std::ranges::sort(mine.back(), {}, &Interval::begin);
    }
    for (const std::vector<Piece>& other : std::span(pieces).first(pieces.size() - 1)) {
      if (std::equal(mine.begin(), mine.end(), other.begin(), meet)) {
        return false;
      }
    }
  }
  return true;
}

Layout gradient(const Layout& layout, int ranks) {
  Layout result = layout;
  result.partial = !layout.partial && !is_partition(layout, ranks);
  return result;
}

bool lie_alike(const Layout& a, const Layout& b, int ranks) {
  // of one rank a sum is its only term
  if ((a.partial != b.partial && ranks > 1) || a.dims.size() != b.dims.size()) {
    return false;
  }
  for (std::size_t d = 0; d < a.dims.size(); ++d) {
    if (a.dims[d].name != b.dims[d].name || a.dims[d].size != b.dims[d].size) {
      return false;
    }
    for (int r = 0; r < ranks; ++r) {
      if (a.dims[d].piece(r) != b.dims[d].piece(r)) {
        return false;
      }
    }
  }
  return true;
}

std::string to_string(const Layout& layout) {
  if (layout.partial) {
    return "P";
  }
  std::string cut;
  for (const Dim& dim : layout.dims) {
    if (!dim.cuts.empty()) {
      cut.append(cut.empty() ? "" : ", ").append(dim.name);
    }
  }
  return cut.empty() ? "R" : "S(" + cut + ")";
}

}  // namespace paradyse
