#include "paradyse/plan/placement.h"

#include <stdexcept>
#include <utility>

namespace paradyse {

using Kind = Placement::Kind;

Placement shard(int dim, Cuts cuts) {
  return {.kind = Kind::shard, .dim = dim, .cuts = std::move(cuts), .across = {}};
}
Placement blocks(Cuts rows, Cuts columns) {
  return {.kind = Kind::shard, .dim = 0, .cuts = std::move(rows), .across = std::move(columns)};
}
Placement replicate() { return {.kind = Kind::replicate, .cuts = {}, .across = {}}; }
Placement invariant() { return {.kind = Kind::invariant, .cuts = {}, .across = {}}; }
Placement partial() { return {.kind = Kind::partial, .cuts = {}, .across = {}}; }

Placement gradient(const Placement& placement) {
  switch (placement.kind) {
    case Kind::replicate:
      return partial();
    case Kind::partial:
      return replicate();
    case Kind::shard:
    case Kind::invariant:
      break;
  }
  return placement;
}

Redistribution redistribution(const Placement& from, const Placement& to) {
  using enum Collective;
  if (from == to) {
    return {none, none};
  }
  switch (from.kind) {
    case Kind::shard:
      switch (to.kind) {
        case Kind::shard:
          return {all_to_all, all_to_all};
        case Kind::replicate:
          return {all_gather, reduce_scatter};
        case Kind::invariant:
          return {all_gather, slice};
        case Kind::partial:
          break;
      }
      break;
    case Kind::replicate:
      if (to.kind == Kind::shard) {
        return {slice, pad};
      }
      break;
    case Kind::invariant:
      if (to.kind == Kind::shard) {
        return {slice, all_gather};
      }
      if (to.kind == Kind::replicate) {
        return {none, all_reduce};
      }
      break;
    case Kind::partial:
      switch (to.kind) {
        case Kind::shard:
          return {reduce_scatter, all_gather};
        case Kind::replicate:
          return {all_reduce, all_reduce};
        case Kind::invariant:
          return {all_reduce, none};
        case Kind::partial:
          break;
      }
      break;
  }
  throw std::invalid_argument(
      "redistribution: no row turns " + to_string(from) + " into " + to_string(to) +
      "; the table of docs/strategies.md has those whose adjoint is known");
}

Layout layout(Extent whole, const Placement& placement) {
  Layout result = matrix("rows", whole);
  result.partial = placement.kind == Kind::partial;
  if (placement.kind == Kind::shard) {
    result.dims[static_cast<std::size_t>(placement.dim)].cuts = placement.cuts;
    result.dims[static_cast<std::size_t>(1 - placement.dim)].cuts = placement.across;
  }
  return result;
}

Extent local_extent(Extent whole, const Placement& placement, int rank) {
  Extent extent = whole;
  if (placement.kind == Kind::shard) {
    const auto r = static_cast<std::size_t>(rank);
    (placement.dim == 0 ? extent.rows : extent.cols) = size(placement.cuts.at(r));
    if (!placement.across.empty()) {
      (placement.dim == 0 ? extent.cols : extent.rows) = size(placement.across.at(r));
    }
  }
  return extent;
}

Transfer transfer(Extent whole, const Placement& from, const Placement& to, int ranks) {
  const auto movable = [](const Placement& placement) {
    return placement.kind == Kind::shard || placement.kind == Kind::replicate;
  };
  if (!movable(from) || !movable(to)) {
    throw std::invalid_argument(
        "transfer: copies go from S or R to S or R, not from " + to_string(from) + " to " +
        to_string(to));
  }
  return transfer(layout(whole, from), layout(whole, to), ranks);
}

std::string to_string(const Placement& placement) {
  switch (placement.kind) {
    case Kind::shard:
      return placement.across.empty() ? "S(" + std::to_string(placement.dim) + ")" : "S(0, 1)";
    case Kind::replicate:
      return "R";
    case Kind::invariant:
      return "I";
    case Kind::partial:
      return "P";
  }
  throw std::logic_error("to_string: Placement with an unknown kind");
}

std::string to_string(Collective collective) {
  switch (collective) {
    case Collective::none:
      return "none";
    case Collective::slice:
      return "slice";
    case Collective::pad:
      return "pad";
    case Collective::all_gather:
      return "all_gather";
    case Collective::all_to_all:
      return "all_to_all";
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::reduce_scatter:
      return "reduce_scatter";
  }
  throw std::logic_error("to_string: unknown Collective");
}

}  // namespace paradyse
