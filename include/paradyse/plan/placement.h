// How a tensor lies over a group of ranks, and how one placement becomes another.
//
// The gradient of a placement is a placement, and the adjoint of a redistribution is a
// redistribution: with this table there is no place where a factor p can be lost or gained.
// "dim" is always a dimension of a tensor.  A placement is a layout (layout.h) of a matrix.
#pragma once

#include <string>

#include "paradyse/plan/cuts.h"
#include "paradyse/plan/transfer.h"

namespace paradyse {

struct Placement {
  enum class Kind {
    shard,      // putting the ranks' pieces together gives the tensor (`dim`, `cuts`, `across`)
    replicate,  // all ranks hold the tensor and use it differently: its gradient is partial
    invariant,  // all ranks hold the tensor and use it identically: its gradient is invariant
    partial,    // adding up the ranks' tensors gives the tensor: its gradient is replicate
  };

  Kind kind = Kind::replicate;
  int dim = 0;  // read for shard alone, as are the cuts
  Cuts cuts;
  Cuts across;  // of the other dim of a matrix; empty: every rank has all of it

  friend bool operator==(const Placement&, const Placement&) = default;
};

Placement shard(int dim, Cuts cuts);
// Rank r holds rows[r] x columns[r] of a matrix, disjoint from those of other ranks or the same.
Placement blocks(Cuts rows, Cuts columns);
Placement replicate();
Placement invariant();
Placement partial();

// The placement of the gradient of a tensor placed like this.
Placement gradient(const Placement& placement);

enum class Collective { none, slice, pad, all_gather, all_to_all, all_reduce, reduce_scatter };

// The collectives that turn `from` into `to`, and the gradient of `to` into the gradient of `from`.
struct Redistribution {
  Collective forward = Collective::none;
  Collective backward = Collective::none;

  friend constexpr bool operator==(Redistribution, Redistribution) = default;
};

// The row of the redistribution table (docs/strategies.md).
// Throws std::invalid_argument, naming both placements, for a pair that is not in the table.
Redistribution redistribution(const Placement& from, const Placement& to);

// A matrix [rows, columns] placed like this; `invariant` lies as `replicate` does.
Layout layout(Extent whole, const Placement& placement);
// A rank's piece of it.
Extent local_extent(Extent whole, const Placement& placement, int rank);
// C for a matrix; both S or R.
Transfer transfer(Extent whole, const Placement& from, const Placement& to, int ranks);

// "S(0)", "S(0, 1)", "R", "I" or "P": the notation of logs, plan files and test names.
std::string to_string(const Placement& placement);
std::string to_string(Collective collective);

}  // namespace paradyse
